"""Counterexamples and exposures on the releases that are installed."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import pytest

from kvproof.cli.prove import Installed
from kvproof.kernels.engines.errors import EngineError
from kvproof.kernels.engines.store import EngineStore
from kvproof.model.facts import Admitted, Started
from kvproof.model.monitor import check
from kvproof.model.scenario import Decode
from kvproof.proofs.asked import Eviction, Group, Store
from kvproof.proofs.catalogue import CATALOGUE
from kvproof.proofs.prove import prove
from kvproof.proofs.scenarios import hit
from kvproof.proofs.solver import Prover
from kvproof.proofs.theorem import ALL_RELEASES, UNCAPPED
from kvproof.spec.cursor import cursor
from kvproof.spec.translate import RESERVED_LOC

CONSTRUCTIONS = ("0.5.15:registry", "0.5.16:registry", "0.5.16:SWARadixCache", "0.5.23:registry")
REPLAYED = ("C3", "C5", "X1", "X3", "X4", "X6", "P5", "T2", "T3", "T4")


def need(release: str) -> None:
    try:
        EngineStore().find(release.partition(":")[0])
    except EngineError as error:
        pytest.skip(error.cause)


@pytest.fixture(scope="module")
def installed() -> Iterator[Installed]:
    releases = Installed()
    yield releases
    releases.close()


@pytest.mark.parametrize("identifier", REPLAYED)
def test_counterexamples_break_the_releases_too(identifier: str, installed: Installed) -> None:
    for release in CONSTRUCTIONS:
        need(release)
    [theorem] = [theorem for theorem in CATALOGUE if theorem.identifier == identifier]
    result = prove(theorem, Prover(), releases=installed)
    assert result.verdict == "as expected", result.status
    played = [each.target for o in result.obligations for each in o.confirmations]
    assert "0.5.15:registry" in played


@pytest.mark.parametrize("release", CONSTRUCTIONS)
def test_a_construction_is_exposed_exactly_if_its_tail_is_short(
    release: str, installed: Installed
) -> None:
    """C5 on the real objects: what the method returns decides."""
    need(release)
    window, page = 5, 2
    scenario = hit(window=window, page_size=page, matched_len=8, tail=1, then=(Decode(),), slots=6)
    log = installed.play(scenario, release)
    assert not isinstance(log, str), log
    [started] = [fact for fact in log if isinstance(fact, Started)]
    last = [fact for fact in log if isinstance(fact, Admitted)][-1]
    exposed = max(started.reprefill_tail, 1) < window - 1
    assert exposed == (release in UNCAPPED)
    assert (check(log).worst_of("FRESH-DECODE") is not None) == exposed
    assert last.matched_len == (8 if exposed else 4)


@pytest.mark.parametrize("release", ALL_RELEASES)
def test_the_real_resolver_has_the_branches_of_the_rule(release: str, installed: Installed) -> None:
    """T1 on the release's own method."""
    need(release)
    swa = (RESERVED_LOC, 5, 6, 7, 8)
    stores = {
        "no plan": Store(planned_locs=(), planned_map=swa, locs=(3, 4), map=swa),
        "current": Store(planned_locs=(3, 4), planned_map=swa, locs=(3, 4), map=swa),
        "stale shape": Store(planned_locs=(1, 2), planned_map=swa, locs=(3, 4, 0), map=swa),
        "idle": Store(planned_locs=(1, 2), planned_map=swa, locs=(0, 0), map=swa, idle=True),
    }
    for name, store in stores.items():
        assert installed.ask(store, release) == store.due, name


@pytest.mark.parametrize("release", ALL_RELEASES)
def test_the_real_cursor_is_the_rule_of_the_release(release: str, installed: Installed) -> None:
    """P5 on the release's own function, over a grid of sizes."""
    need(release)
    for window, page_size, length in product((1, 2, 3, 5, 6), (1, 2, 3, 4), range(1, 14)):
        for evicted in (0, page_size):
            if evicted > length:
                continue
            question = Eviction(
                evicted=evicted,
                protected=0,
                computed_len=length,
                window=window,
                page_size=page_size,
            )
            old = cursor(evicted, 0, length, max(window, page_size), page_size)
            due = (old,) if release in UNCAPPED else question.due
            assert installed.ask(question, release) == due, question


@pytest.mark.parametrize("replayed", [False, True])
def test_a_ring_of_one_group_is_right_only_where_a_verify_stops_at_a_groups_end(
    installed: Installed, replayed: bool
) -> None:
    """R6 with S = W: docs/findings/a-ring-of-one-group.md."""
    need("0.5.23")
    ratio = 4
    for first, drafts in product(range(8, 12), range(1, ratio + 1)):
        end = first + drafts - 1
        if end // ratio == first // ratio and end % ratio != ratio - 1:
            continue  # no group ends
        question = Group(ratio=ratio, first=first, drafts=drafts, replayed=replayed)
        answer = installed.ask(question, "0.5.23:registry")
        if end % ratio == ratio - 1 or drafts == 1:
            assert answer == question.due, question
        else:
            written = range(end - ratio + 1, end + 1)  # the last keys of the ring's rows
            assert answer == tuple(written), question
