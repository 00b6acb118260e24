"""The release's SWA allocator: what no scenario reaches is called directly."""

from __future__ import annotations

import json
import subprocess
import sys
from random import Random

import pytest

from kvproof.fuzz.constructions import PAGED_SWA
from kvproof.kernels.engines.environment import engine_env
from kvproof.kernels.engines.errors import EngineError
from kvproof.kernels.engines.store import EngineStore
from kvproof.model.monitor import check
from kvproof.model.page_pools import PagePools
from kvproof.model.scenario import Finish, Geometry, Piece, Prefill, Scenario, Submit, Verify
from kvproof.spec.pages import is_page_congruent, new_pages, page_ceil

ALLOCATOR = """
import json, sys

from kvproof.kernels.engines import shims

shims.install(rocm_gate=False, allocator_twins=True)

import torch

from kvproof.fuzz.drivers.pool import call_with_known, free_pages, paged_swa_pool
from kvproof.model.scenario import Geometry


def make(page_size, tokens, swa_tokens):
    geometry = Geometry(window=4, page_size=page_size, slots=1, pool_tokens=tokens)
    return call_with_known(
        shims.engine_family().part("allocator"),
        {
            "size": tokens, "size_swa": swa_tokens, "page_size": page_size,
            "dtype": torch.bfloat16, "device": "cpu", "need_sort": False,
            "kvcache": paged_swa_pool(geometry, swa_tokens=swa_tokens),
        },
    )
"""

TAILS = """
def allocate(page_size, tokens, swa_tokens, length, tail):
    allocator = make(page_size, tokens, swa_tokens)
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


def asked(release, script, question):
    """What a script says that calls the allocator of a release."""
    try:
        engine = EngineStore().find(release)
    except EngineError as error:
        pytest.skip(str(error))
    ran = subprocess.run(
        [sys.executable, "-P", "-c", ALLOCATOR + script, json.dumps(question)],
        env=engine_env(engine), check=True, capture_output=True, text=True,
    )  # fmt: skip
    return json.loads(ran.stdout)


@pytest.mark.parametrize("release", ["0.5.15", "0.5.16", "0.5.23"])
def test_a_tail_takes_pages_of_the_window_alone(release):
    """Against PAGE-4 and PAGE-5; a pool that is too small lends nothing, and the other neither."""
    refused = 0
    for sizes, got in zip(SIZES, asked(release, TAILS, SIZES), strict=True):
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


BORROWED = """
PAGE = 4


def play(operations, tokens, swa_tokens):
    allocator = make(PAGE, tokens, swa_tokens)
    leases, saved = [], None
    for name, count in operations:
        if name == "lend":
            nothing, whole = torch.zeros(1, dtype=torch.int64), torch.tensor([count * PAGE])
            arguments = (nothing, nothing, whole, whole, torch.tensor([-1]), count * PAGE)
            locs = allocator.alloc_extend(*arguments)
            if locs is not None:
                leases.append(locs)
        elif name == "free":
            allocator.free(leases.pop(count))
        elif name == "free SWA":
            allocator.free_swa(leases[count])
        elif name == "save":
            saved = allocator.backup_state(), len(leases)
        elif name == "restore":
            allocator.restore_state(saved[0])
            del leases[saved[1]:]
        else:
            allocator.clear()
            leases = []
        entries = allocator.full_to_swa_index_mapping[:-1].tolist()
        yield {
            "free": free_pages(allocator.full_attn_allocator),
            "swa_free": free_pages(allocator.swa_attn_allocator),
            "map": {loc // PAGE: to // PAGE for loc, to in enumerate(entries) if to},
            "leases": [lease[::PAGE].floor_divide(PAGE).tolist() for lease in leases],
        }


json.dump([[*play(*each)] for each in json.loads(sys.argv[1])], sys.stdout)
"""

PAGES, SWA_PAGES = 8, 6


def borrowing(random):
    """Operations on the pools, and what `PagePools` says after each; a draft's borrowing too."""
    pools = PagePools(full_pages=PAGES, swa_pages=SWA_PAGES, faults=frozenset())
    leases, operations, states, saved = [], [], [], None
    for _ in range(12):
        kinds = ["lend"] * 3 + (["restore"] if saved else ["free", "free SWA", "save", "clear"])
        name = random.choice(kinds)
        if name.startswith("free") and not leases:
            continue
        count = random.randrange(len(leases)) if name.startswith("free") else random.randint(1, 3)
        operations.append((name, count))
        if name == "lend" and pools.has(count):
            leases.append(pools.lend(count))
        elif name == "free":
            pools.take_back(leases.pop(count))
        elif name == "free SWA":
            pools.take_swa_back(leases[count])
        elif name == "save":
            saved = pools.saved(), len(leases)
        elif name == "restore":
            pools.restore(saved[0])
            del leases[saved[1] :]
            saved = None
        elif name == "clear":
            pools.clear()
            leases = []
        live = [page for lease in leases for page in lease if page in pools.to]
        states.append((len(pools.free), len(pools.free_swa), len(live), len(leases)))
    return operations, states


@pytest.mark.parametrize("release", ["0.5.12", "0.5.13", "0.5.14", "0.5.15", "0.5.16"])
def test_what_was_saved_is_restored_but_for_the_map(release):
    """The releases that have it; EAGLE of 0.5.12 and DFLASH to 0.5.13 borrow a draft's pages so."""
    random = Random(0)
    drawn = [borrowing(random) for _ in range(150)]
    question = [(operations, PAGES * 4, SWA_PAGES * 4) for operations, _ in drawn]
    restored = left = 0
    for (operations, states), got in zip(drawn, asked(release, BORROWED, question), strict=True):
        at_save = None
        for (name, _), state, seen in zip(operations, states, got, strict=True):
            lent = {page for lease in seen["leases"] for page in lease}
            mapped = {int(page): to for page, to in seen["map"].items()}
            held = [mapped[page] for page in lent if page in mapped]
            sizes = (len(seen["free"]), len(seen["swa_free"]), len(held), len(seen["leases"]))
            assert sizes == state, operations
            assert lent.isdisjoint(seen["free"])
            assert len(lent) + len(seen["free"]) == PAGES
            assert len(held) == len(set(held))
            assert set(held).isdisjoint(seen["swa_free"])
            lists = seen["free"], seen["swa_free"]
            if name == "save":
                at_save = lists
            elif name == "restore":
                assert lists == at_save
                restored += 1
                # MAP does not hold here; nobody reads the entries before the pages are lent again.
                left += not mapped.keys() <= lent
    assert restored
    assert left


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
