"""What `doctor` tries in an engine's process, one probe a question.

A probe returns what it found, in a few words. It raises `NotWorkingError` with a next step where
it knows one, `NotApplicableError` where the question does not arise, and anything else as it comes.
"""

from __future__ import annotations

import pkgutil
import platform
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Literal, TypeAlias

from kvproof.kernels.catalogue import FAMILIES, family_of

Gate: TypeAlias = Literal["none", "on", "off"]

WINDOW = 4
STRIDE = 6
SLOT = 2


class NotWorkingError(Exception):
    """A probe that failed for a known cause."""

    def __init__(self, reason: str, *, next_step: str) -> None:
        super().__init__(reason)
        self.next_step = next_step


class NotApplicableError(Exception):
    """A probe whose question does not arise for this engine."""


@dataclass(frozen=True, kw_only=True)
class Probe:
    """One question to an engine.

    Attributes:
        name: shown in the table.
        run: asks it, given the engine's root.
        gate: ``on`` and ``off`` run under the shims with the ROCm gate so set; ``none`` without
            any shim.
    """

    name: str
    run: Callable[[Path], str]
    gate: Gate = "on"


def _base(_root: Path) -> str:
    found = {"Python": platform.python_version()}
    for name in ("torch", "triton", "numpy"):
        __import__(name)
        found[name] = version(name)
    return ", ".join(f"{name} {number}" for name, number in found.items())


def _layout(root: Path) -> str:
    return f"as in sglang {family_of(root).name}"


def _origin(root: Path) -> str:
    import sglang

    where = Path(str(sglang.__file__)).resolve()
    if not where.is_relative_to(root.resolve()):
        raise NotWorkingError(
            f"sglang is imported from {where.parent}",
            next_step="remove that folder from PYTHONPATH or from the working environment",
        )
    return "the engine's own files are what is imported"


def _part(role: str) -> Callable[[Path], str]:
    def run(root: Path) -> str:
        family = family_of(root)
        if role not in family.parts:
            raise NotApplicableError("this release ships none")
        found = family.part(role)
        # A Triton kernel has no qualified name.
        return f"{found.__module__}.{getattr(found, '__qualname__', found.__name__)}"

    return run


def _recorder(root: Path) -> str:
    """Whether every method is there that the recorder listens to."""
    family = family_of(root)
    if not family.methods:
        raise NotApplicableError("the recorder does not follow this release")
    places = [place for places in family.methods.values() for place in places]
    missing = []
    for place in places:
        owner, _, name = place.rpartition(".")
        # It is wrapped where it is defined, so an inherited one will not do.
        if name not in vars(pkgutil.resolve_name(owner)):
            missing.append(place.partition(":")[2])
    if missing:
        raise NotWorkingError(
            f"not there: {', '.join(missing)}",
            next_step="correct Family.methods in kernels/catalogue.py for this release",
        )
    return f"{len(places)} methods to listen to"


def _of_ring(run: Callable[[Path], str]) -> Callable[[Path], str]:
    """A probe that asks about the ring, where the release knows one."""

    def ask(root: Path) -> str:
        if not family_of(root).has_ring:
            raise NotApplicableError("this release has no unified_kv, and so no ring")
        return run(root)

    return ask


def _gate(*, wanted: bool) -> Callable[[Path], str]:
    def run(root: Path) -> str:
        is_on = bool(family_of(root).part("gate")())
        if is_on != wanted:
            raise NotWorkingError(
                f"unified_kv is {'on' if is_on else 'off'} with the gate "
                f"{'on' if wanted else 'off'}",
                next_step="read the gate module of this engine, and compare with the shim",
            )
        return f"unified_kv is {'on' if is_on else 'off'}"

    return run


def _same(what: str, found: object, expected: object) -> None:
    if found != expected:
        raise NotWorkingError(
            f"{what}: {found} instead of {expected}",
            next_step="the kernel or the interpreter differs from the releases kvproof knows: "
            "run kvproof fuzz, and report what it finds",
        )


def _scatter(root: Path) -> str:
    """Positions 0 to 7 in one chunk: the last window is written, each to its row."""
    import torch

    tokens = 8
    store = family_of(root).launcher("scatter")
    ring = torch.full(((SLOT + 1) * STRIDE, 8), -1.0, dtype=torch.bfloat16)
    positions = torch.arange(tokens, dtype=torch.int32)
    store(
        kv=positions.to(torch.bfloat16)[:, None].expand(tokens, 8).contiguous(),
        state_slot=torch.full_like(positions, SLOT),
        positions=positions,
        unified_kv=ring,
        win=WINDOW,
        ring_stride=STRIDE,
        final_pos=torch.full_like(positions, tokens - 1),
    )
    expected = [-1] * len(ring)
    for position in range(tokens - WINDOW, tokens):
        expected[SLOT * STRIDE + position % STRIDE] = position
    _same("rows", [int(row) for row in ring[:, 0]], expected)
    return f"{WINDOW} rows written, each where it belongs"


def _decode_indices(root: Path) -> str:
    """A query at position 7 names the rows of positions 4 to 7."""
    import torch

    position = 7
    write = family_of(root).launcher("decode indices")
    ends = torch.tensor([0, WINDOW], dtype=torch.int32)
    streams = [torch.full((WINDOW,), -1, dtype=torch.int32) for _ in range(3)]
    write(
        state_slot_per_seq=torch.tensor([SLOT], dtype=torch.int32),
        batch_id_per_token=torch.tensor([0], dtype=torch.int32),
        positions=torch.tensor([position], dtype=torch.int32),
        swa_indptr=ends, csa_indptr=ends, hca_indptr=ends,
        swa_indices=streams[0], csa_indices=streams[1], hca_indices=streams[2],
        T=1, win=WINDOW, ring_stride=STRIDE,
    )  # fmt: skip
    expected = [SLOT * STRIDE + at % STRIDE for at in range(position - WINDOW + 1, position + 1)]
    for stream in streams:
        _same("rows", stream.tolist(), expected)
    return f"{WINDOW} rows named"


def _prefill_indices(root: Path) -> str:
    """A chunk of positions 7 and 8: the first reads 4 to 6 from the ring, the second 5 and 6."""
    import torch

    start, tokens = 7, 2
    build = family_of(root).launcher("prefill indices")
    positions = torch.arange(start, start + tokens, dtype=torch.int32)
    ring, ring_ends, chunk, chunk_ends = build(
        compress_ratio=0,
        state_slot=torch.full_like(positions, SLOT),
        positions=positions,
        chunk_start=torch.full_like(positions, start),
        cu_q=torch.zeros_like(positions),
        win=WINDOW, ring_stride=STRIDE, swa_pages=(SLOT + 1) * STRIDE,
        c128_page_indices=None, c4_sparse_page_indices=None,
    )  # fmt: skip
    _same("lengths in the ring", ring_ends.tolist(), [0, 3, 5])
    _same("lengths in the chunk", chunk_ends.tolist(), [0, 1, 3])
    _same(
        "rows", ring[:5].tolist(), [SLOT * STRIDE + at % STRIDE for at in (4, 5, 6, 5, 6)]
    )  # fmt: skip
    _same("chunk rows", chunk[:3].tolist(), [0, 0, 1])
    return "5 rows of the ring and 3 of the chunk named"


_ROLES = dict.fromkeys(role for family in FAMILIES for role in family.parts)

PROBES = (
    Probe(name="Python packages", run=_base, gate="none"),
    Probe(name="layout", run=_layout, gate="none"),
    Probe(name="import", run=_origin),
    *(Probe(name=role, run=_part(role)) for role in _ROLES),
    Probe(name="recorder", run=_recorder),
    Probe(name="gate on", run=_of_ring(_gate(wanted=True))),
    Probe(name="scatter kernel", run=_of_ring(_scatter)),
    Probe(name="decode index kernel", run=_of_ring(_decode_indices)),
    Probe(name="prefill index kernel", run=_of_ring(_prefill_indices)),
    Probe(name="gate off", run=_of_ring(_gate(wanted=False)), gate="off"),
)
