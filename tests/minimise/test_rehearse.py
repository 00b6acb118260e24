"""The busy run hides exactly what it says that it hides."""

from __future__ import annotations

import pytest

from kvproof.model.facts import Answered, Ended, Pools, Ran, Read, Started, Step, Wrote
from kvproof.model.monitor import check
from kvproof.model.scenario import Geometry, Submit
from kvproof.triage.rehearse import as_recorded, busy_run

from .conftest import CAPPED, UNCAPPED, played

GEOMETRY = Geometry(window=8, page_size=4, slots=8, pool_tokens=2**14)


@pytest.mark.parametrize("seed", range(2))
def test_one_decode_is_stale_without_a_cap_and_none_with_one(seed: int) -> None:
    run = busy_run(requests=30, geometry=GEOMETRY, answer=6, seed=seed)
    assert run == busy_run(requests=30, geometry=GEOMETRY, answer=6, seed=seed)
    monitor = check(played(run, UNCAPPED))
    violation = monitor.worst_of("FRESH-DECODE")
    assert violation is not None
    assert violation.evidence is not None
    assert violation.evidence.reader.request == "r27"
    assert violation.evidence.reader.tail == 1
    assert violation.cause == "other-request"
    # A window's worth of reads in each of its decodes at most: no other request's are stale.
    assert monitor.counts["FRESH-DECODE", "other-request"] <= 8 * 8
    assert check(played(run, CAPPED)).worst_of("FRESH-DECODE") is None


def test_a_recorder_sees_launches_and_page_names_only() -> None:
    run = busy_run(requests=30, geometry=GEOMETRY, answer=6)
    recorded = list(as_recorded(played(run)))
    assert isinstance(recorded[0], Started)
    assert isinstance(recorded[-1], Ended)
    assert not any(isinstance(fact, Pools | Read | Wrote) for fact in recorded)
    assert sum(isinstance(fact, Ran) for fact in recorded) > 100
    assert {fact.request for fact in recorded if isinstance(fact, Answered)} == {
        f"r{number}" for number in range(30)
    }
    names: dict[str, int] = {}
    for fact in recorded:
        if isinstance(fact, Step) and isinstance(fact.operation, Submit):
            for piece in fact.operation.prompt:
                assert names.setdefault(piece.text, piece.until) == piece.until
    assert not {"system0", "r0"} & names.keys()
