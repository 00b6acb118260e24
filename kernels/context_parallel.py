"""Context parallelism's sliced metadata, through the release's own functions on a CPU.

``python -m kvproof.kernels.context_parallel`` runs in an engine's process and prints a `Report`. A
prefill's tokens are dealt to the ranks in turn: token ``i`` of the batch goes to rank
``i % ranks``. Each rank attends with its own queries over the keys of all, and each writes the
whole chunk to its ring. So every rank must give the rows of the attention that an undivided forward
gives, bit for bit, and leave the ring that it leaves.

What is real: ``_attach_unified_kv_prefill_meta``, ``apply_cp_reindex`` and ``_forward_unified_kv``
of the release's backend, with its index, attention and scatter kernels. What is not: the ranks. The
parallel context is told its rank and size, the question whether the forward is divided is answered
for it, and what an all-gather would bring is at hand.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from itertools import product
from types import SimpleNamespace
from typing import Any
from unittest import mock

import msgspec
import torch

from kvproof.kernels.engines import shims
from kvproof.kernels.exact_model import ExactModel
from kvproof.kernels.layer import LOG2E, OnGpu
from kvproof.spec.ring import ring_stride

_BACKEND = "sglang.srt.layers.attention.deepseek_v4_backend_hip_radix"

WINDOW, SLOTS, HEADS, DIM = 4, 3, 2, 32
ROWS = 3
"""Compressed rows that the queries of a layer with them see at most."""

CHUNKS = ((1, 5, 11), (2, 0, 5))
"""Slot, start and end of each request's chunk: one goes on, or hit; one begins. 11 tokens."""


class Rank(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank of a divided forward did.

    Attributes:
        ratio: of the layer: 0 for a window alone, 128 with compressed rows.
        padding: rows of the batch that stand for no token.
        positions: whether its sliced metadata are those of its tokens.
        attention: whether its rows are those of the undivided forward.
        ring: the same of its ring.
        raised: what it raised instead; empty for nothing.
    """

    ranks: int
    rank: int
    ratio: int
    padding: int
    positions: bool = False
    attention: bool = False
    ring: bool = False
    raised: str = ""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """All of them, of one release."""

    version: str
    ranks: tuple[Rank, ...]


class _Forward:
    """One prefill of two requests, as a release's backend would run it."""

    def __init__(self, *, ratio: int, size: int, padded: bool) -> None:
        self.backend = importlib.import_module(_BACKEND)
        self.ratio = ratio
        places = [(slot, at) for slot, start, end in CHUNKS for at in range(start, end)]
        # Each rank has as many rows: the batch is padded, or its last chunk is shorter.
        self.tokens = len(places) if padded else len(places) // size * size
        self.places = places[: self.tokens]
        self.padding = -self.tokens % size
        model = ExactModel.seeded(0, layers=1, heads=HEADS, dim=DIM, device="cpu")
        states = model.embed(range(self.tokens + self.padding))
        [weights] = model.layers
        self.q, self.keys = weights.queries(states), weights.keys(states)
        stride = ring_stride(WINDOW, 1)
        self.pages = (SLOTS + 1) * stride
        self.rows = weights.keys(model.embed(range(1000, 1000 + self.pages + 8)))
        self.pool = SimpleNamespace(
            get_unified_kv=lambda _layer: self.rows,
            unified_swa_window=WINDOW,
            unified_swa_ring_size=stride,
            unified_swa_pages=self.pages,
        )
        self.engine = object.__new__(self.backend.DeepseekV4HipRadixBackend)
        for name, value in {"token_to_kv_pool": self.pool, "softmax_scale": 1 / LOG2E}.items():
            setattr(self.engine, name, value)

    def core(self) -> Any:
        """The forward's metadata, over the global batch."""
        slots = torch.tensor([slot for slot, _ in self.places])
        ends = {slot: at + 1 for slot, at in self.places}
        lengths = {slot: sum(other == slot for other, _ in self.places) for slot in ends}
        core = _blank(self.backend.DSV4AttnMetadata)
        core.positions_casual = self.positions.to(torch.int32)
        core.seq_lens_casual = core.positions_casual + 1
        core.swa_topk_lengths = core.seq_lens_casual.clamp(max=WINDOW)
        rows = len(self.positions)
        core.raw_out_loc = torch.arange(self.tokens if _told(core) else rows)
        # One row of numbers a token: whose they are can be told after the slicing.
        numbers = torch.arange(rows, dtype=torch.int32)
        for name in (
            "page_table", "swa_page_indices", "c4_topk_lengths_raw", "c4_topk_lengths_clamp1",
            "c128_topk_lengths_raw", "c128_topk_lengths_clamp1",
        ):  # fmt: skip
            setattr(core, name, numbers[:, None] if "lengths" not in name else numbers)
        seen = numbers % (ROWS + 1)
        table = torch.arange(ROWS, dtype=torch.int32).expand(rows, -1)
        core.c128_page_indices = torch.where(table < seen[:, None], table, -1)
        attach = self.engine._attach_unified_kv_prefill_meta
        asked = {
            "core": core,
            "req_pool_indices": torch.tensor([*ends]),
            "req_pool_indices_repeated": torch.cat([slots, slots.new_zeros(self.padding)]),
            "seq_lens": torch.tensor([*ends.values()]),
            "extend_seq_lens": torch.tensor([*lengths.values()]),
            "num_tokens": self.tokens,
        }
        names = inspect.signature(attach).parameters
        attach(**{name: value for name, value in asked.items() if name in names})
        return core

    @property
    def positions(self) -> torch.Tensor:
        """Of the global batch; of padded rows 0."""
        return torch.tensor([*(at for _, at in self.places), *[0] * self.padding])

    def run(self, core: Any, mine: slice, *, gathered: int) -> torch.Tensor:
        """Attention of the queries ``mine``; the ring is written."""
        out: torch.Tensor = self.engine._forward_unified_kv(
            q=self.q[mine].contiguous().as_subclass(OnGpu),
            kv=self.keys[:gathered],
            layer=SimpleNamespace(layer_id=0, v_head_dim=DIM),
            forward_batch=SimpleNamespace(
                positions=self.positions,
                forward_mode=importlib.import_module(
                    "sglang.srt.model_executor.forward_batch_info"
                ).ForwardMode.EXTEND,
                req_pool_indices=torch.tensor([slot for slot, *_ in CHUNKS]),
            ),
            compress_ratio=self.ratio,
            attn_sink=torch.full((HEADS,), -1e30),
            core_attn_metadata=core,
        )
        return out.as_subclass(torch.Tensor)


def _told(core: Any) -> bool:
    """Whether a release is told how many rows stand for tokens: it gathers those alone."""
    return "num_tokens" in inspect.signature(core.apply_cp_reindex).parameters


def _blank(cls: Any) -> Any:
    made = object.__new__(cls)
    for each in fields(cls):
        object.__setattr__(made, each.name, None)
    return made


@contextmanager
def _divided(rank: int, size: int) -> Iterator[None]:
    """A forward that is divided among ranks, as far as the backend asks."""
    backend = importlib.import_module(_BACKEND)
    parallel = importlib.import_module("sglang.srt.runtime_context").get_parallel()
    if hasattr(backend, "is_cp_active"):
        gate = mock.patch.object(backend, "is_cp_active", return_value=True)
    else:
        dsa = importlib.import_module("sglang.srt.layers.attention.dsa.utils")
        gate = mock.patch.object(dsa, "is_dsa_prefill_cp_round_robin_split", return_value=True)
    ranks = {"attn_cp_rank": rank, "attn_cp_size": size}
    # Newer contexts hold that the widths of all groups multiply to the world's.
    world = {"tp_size": size, "tp_rank": rank}
    with gate, parallel.override(**ranks, **world):
        yield


def examine(*, ranks: int, rank: int, ratio: int, padded: bool) -> Rank:
    """Run one rank's part of a forward beside the undivided one."""
    part, undivided = (_Forward(ratio=ratio, size=ranks, padded=padded) for _ in range(2))
    found = Rank(ranks=ranks, rank=rank, ratio=ratio, padding=part.padding)
    parallel = importlib.import_module("sglang.srt.runtime_context").get_parallel()
    with parallel.override(attn_cp_rank=0, attn_cp_size=1):
        undivided.padding = 0
        expected = undivided.run(undivided.core(), slice(part.tokens), gathered=part.tokens)
    mine = slice(rank, None, ranks)
    try:
        with _divided(rank, ranks):
            core = part.core()
            told = _told(core)
            core.apply_cp_reindex(**({"num_tokens": part.tokens} if told else {}))
            sliced = torch.equal(core.positions_casual, part.positions[mine].to(torch.int32))
            out = part.run(core, mine, gathered=part.tokens + (0 if told else part.padding))
    except Exception as error:  # whatever the release raises is what it does
        return msgspec.structs.replace(found, raised=f"{type(error).__name__}: {error}")
    own = range(rank, part.tokens, ranks)
    return msgspec.structs.replace(
        found,
        positions=sliced,
        attention=torch.equal(out[: len(own)], expected[mine]),
        ring=torch.equal(part.rows, undivided.rows),
    )


def main() -> None:
    """Examine two and four ranks, with and without padding, and print what was found."""
    shims.install(rocm_gate=True, allocator_twins=True, interpret=True)
    torch.set_grad_enabled(False)
    found = [
        examine(ranks=ranks, rank=rank, ratio=ratio, padded=padded)
        for ranks, ratio, padded in product((2, 4), (0, 128), (False, True))
        for rank in range(ranks)
    ]
    report = Report(version=importlib.import_module("sglang").__version__, ranks=tuple(found))
    sys.stdout.buffer.write(msgspec.json.encode(report) + b"\n")


if __name__ == "__main__":
    main()
