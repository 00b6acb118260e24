"""The release's SWA allocator: what no scenario reaches is called directly."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from kvproof.fuzz.constructions import PAGED_SWA
from kvproof.kernels.engines.environment import engine_env
from kvproof.kernels.engines.errors import EngineError
from kvproof.kernels.engines.store import EngineStore
from kvproof.model.monitor import check
from kvproof.model.scenario import Finish, Geometry, Piece, Prefill, Scenario, Submit, Verify
from kvproof.spec.pages import is_page_congruent, new_pages, page_ceil

TAILS = """
import json, sys

from kvproof.kernels.engines import shims

shims.install(rocm_gate=False, allocator_twins=True)

import torch

from kvproof.fuzz.drivers.pool import MapReader, call_with_known, free_pages, paged_swa_pool
from kvproof.model.scenario import Geometry


def allocate(page_size, tokens, swa_tokens, length, tail):
    geometry = Geometry(window=4, page_size=page_size, slots=1, pool_tokens=tokens)
    allocator = call_with_known(
        shims.engine_family().part("allocator"),
        {
            "size": tokens, "size_swa": swa_tokens, "page_size": page_size,
            "dtype": torch.bfloat16, "device": "cpu", "need_sort": False,
            "kvcache": paged_swa_pool(geometry, swa_tokens=swa_tokens),
        },
    )
    # Entries of an earlier owner: what is not in the tail must not keep them.
    allocator.full_to_swa_index_mapping[page_size:tokens + page_size] = page_size
    nothing, whole = torch.zeros(1, dtype=torch.int64), torch.tensor([length])
    locs = allocator.alloc_extend_swa_tail(
        nothing, nothing, whole, whole, torch.tensor([-1]), length, tail
    )
    return {
        "locs": None if locs is None else locs.tolist(),
        "entries": None if locs is None else allocator.full_to_swa_index_mapping[locs].tolist(),
        "free": len(free_pages(allocator.full_attn_allocator)),
        "swa_free": free_pages(allocator.swa_attn_allocator),
    }


json.dump([allocate(*sizes) for sizes in json.loads(sys.argv[1])], sys.stdout)
"""

TOKENS = 16

SIZES = [
    (page_size, TOKENS, swa_tokens, length, length - start)
    for page_size in (2, 4)
    for swa_tokens in (4, TOKENS)
    for length in range(1, 12)
    # `_swa_tail_len` of the caller begins a tail at a page.
    for start in range(0, length + 1, page_size)
]


@pytest.mark.parametrize("release", ["0.5.15", "0.5.16", "0.5.23"])
def test_a_tail_takes_pages_of_the_window_alone(release):
    """Against PAGE-4 and PAGE-5; a pool that is too small lends nothing, and the other neither."""
    try:
        engine = EngineStore().find(release)
    except EngineError as error:
        pytest.skip(str(error))
    ran = subprocess.run(
        [sys.executable, "-P", "-c", TAILS, json.dumps(SIZES)],
        env=engine_env(engine), check=True, capture_output=True, text=True,
    )  # fmt: skip
    refused = 0
    for sizes, got in zip(SIZES, json.loads(ran.stdout), strict=True):
        page_size, tokens, swa_tokens, length, tail = sizes
        taken = new_pages(0, length, page_size) // page_size
        swa_taken = new_pages(0, tail, page_size) // page_size
        if page_ceil(tail, page_size) > swa_tokens:
            assert got["locs"] is None, sizes
            refused += 1
            taken = swa_taken = 0
        assert got["free"] == tokens // page_size - taken, sizes
        assert len(got["swa_free"]) == swa_tokens // page_size - swa_taken, sizes
        if got["locs"] is None:
            continue
        assert all(is_page_congruent(at, loc, page_size) for at, loc in enumerate(got["locs"]))
        before, behind = got["entries"][: length - tail], got["entries"][length - tail :]
        if tail:
            assert not any(before), sizes
        assert all(
            is_page_congruent(at, loc, page_size) for at, loc in enumerate(behind, length - tail)
        ), sizes
        lent = {loc // page_size for loc in behind}
        assert len(lent) == swa_taken, sizes
        assert lent.isdisjoint({0, *got["swa_free"]}), sizes
    assert refused


@pytest.mark.parametrize(
    ("release", "breaks"), [("0.5.12", True), ("0.5.13", True), ("0.5.15", False),
                            ("0.5.16", False), ("0.5.23", False)],
)  # fmt: skip
def test_a_page_freed_by_its_first_part_leaves_the_map(start, release, breaks):
    """docs/findings/a-page-freed-by-its-first-part.md: 0.5.14 clears whole pages."""
    scenario = Scenario(
        geometry=Geometry(window=1, page_size=2, slots=1, pool_tokens=64, draft_tokens=2),
        operations=(
            Submit(request="A", prompt=(Piece("A", 4),)), Prefill(request="A"),
            Verify(accepted=1), Finish(request="A"),
        ),
    )  # fmt: skip
    monitor = check(start(release, construction=PAGED_SWA).play(scenario, timeout=60))
    found = {("MAP", "mapped-free"), ("MAP", "stale-entry")} if breaks else set()
    assert set(monitor.violations) == found
    assert monitor.checked["MAP"]
