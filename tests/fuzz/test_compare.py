"""Where two logs of one scenario part."""

from __future__ import annotations

import msgspec

from kvproof.fuzz.compare import difference
from kvproof.model.facts import Admitted, EngineError, Fact, Pools
from kvproof.model.reference import reference_player
from kvproof.model.scenario import Evict, Finish, Geometry, Piece, Prefill, Scenario, Submit
from kvproof.model.text import encode_text, parse_scenario

RUN = Scenario(
    geometry=Geometry(window=4, page_size=2, slots=2, pool_tokens=32),
    operations=(
        Submit(request="A", prompt=(Piece("A", 8),)), Prefill(request="A"), Finish(request="A"),
        Submit(request="B", prompt=(Piece("A", 8), Piece("B", 12))), Prefill(request="B"),
        Evict(tokens=2, swa_tokens=4),
    ),
)  # fmt: skip


def log() -> list[Fact]:
    return list(reference_player(RUN.geometry).play(RUN))


def test_a_log_is_like_itself_whatever_pages_it_names() -> None:
    moved = [
        msgspec.structs.replace(fact, free=tuple(reversed(fact.free)))
        if isinstance(fact, Pools)
        else fact
        for fact in log()
    ]
    assert difference(log(), moved) is None


def test_the_first_difference_is_told_with_its_step() -> None:
    other = [
        msgspec.structs.replace(fact, matched_len=0)
        if isinstance(fact, Admitted) and fact.request == "B"
        else fact
        for fact in log()
    ]
    found = difference(log(), other)
    assert found is not None
    assert found.step == 4
    assert found.sentence.startswith("step 5: one says admitted")


def test_an_engine_that_ends_early_differs() -> None:
    error = EngineError(cause="raised", message="AssertionError: no at sglang/a.py:1 in f")
    found = difference(log(), [*log()[:-1], error])
    assert found is not None
    assert found.other == "the engine raised: AssertionError: no"


def test_an_eviction_of_the_swa_pool_is_written_and_read() -> None:
    assert b"evict 2 tokens, 4 of the SWA pool" in encode_text(RUN)
    assert parse_scenario(encode_text(RUN)) == RUN
