"""Simplifying takes each kind of step, ends where no step helps, and never loses what it keeps."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from kvproof.fuzz.simplify import Breaks, one_by_one, scenario_size, simplify
from kvproof.fuzz.strategies import scenarios
from kvproof.model.facts import Admitted
from kvproof.model.forward_reference import forward_player
from kvproof.model.forwards import Idle, Layer, Pad, Plan, Rebind, Release, Replay
from kvproof.model.monitor import check
from kvproof.model.reference import reference_player
from kvproof.model.scenario import (
    Decode,
    Evict,
    Finish,
    Geometry,
    Operation,
    Piece,
    Prefill,
    Retract,
    Scenario,
    Submit,
    decode_scenario,
    encode_scenario,
    requests_of,
)
from kvproof.model.verdict import Cause, Invariant

from .conftest import UNCAPPED


def scenario(*operations: Operation, slots: int = 1) -> Scenario:
    return Scenario(
        geometry=Geometry(window=4, page_size=2, slots=slots, pool_tokens=64),
        operations=operations,
    )


def breaks(invariant: Invariant, cause: Cause) -> Callable[[Scenario], bool]:
    def on_the_model(scenario: Scenario) -> bool:
        log = reference_player(scenario.geometry, UNCAPPED).play(scenario)
        return (invariant, cause) in check(log).violations

    return on_the_model


STALE_DECODE = breaks("FRESH-DECODE", "other-request")

THREE_REQUESTS = scenario(
    Submit(request="X", prompt=(Piece("X", 16),)), Prefill(request="X", tokens=8),
    Prefill(request="X"), Finish(request="X"),
    Submit(request="Y", prompt=(Piece("Y", 16),)), Prefill(request="Y"), Decode(pad=2),
    Finish(request="Y"), Evict(tokens=2),
    Submit(request="Z", prompt=(Piece("X", 14), Piece("Z", 15))), Prefill(request="Z"),
    Decode(pad=1), Decode(),
    slots=3,
)  # fmt: skip


def test_all_that_a_request_decoded_becomes_its_prompt_at_once() -> None:
    """No part of it will do, and the steps of others behind its end are none of it."""

    def all_or_nothing(found: Scenario) -> bool:
        ops = [op for op in found.operations if isinstance(op, Submit | Decode | Finish)]
        if not (ops and isinstance(ops[0], Submit) and Finish(request="A") in ops):
            return False
        end = ops.index(Finish(request="A"))
        own = sum(isinstance(op, Decode) for op in ops[:end])
        others = sum(isinstance(op, Decode) for op in ops[end:])
        return own in {0, 5} and ops[0].prompt == (Piece("A", 6 - own),) and others == 2

    found = scenario(
        Submit(request="A", prompt=(Piece("A", 1),)), Prefill(request="A"), *[Decode()] * 5,
        Finish(request="A"),
        Submit(request="B", prompt=(Piece("B", 1),)), Prefill(request="B"), Decode(), Decode(),
    )  # fmt: skip
    assert all_or_nothing(found)
    smallest = simplify(found, all_or_nothing)
    assert smallest.operations == (
        Submit(request="A", prompt=(Piece("A", 6),)), Finish(request="A"), Decode(), Decode(),
    )  # fmt: skip


def test_three_requests_become_two() -> None:
    """One request takes another's place, a decoded token goes into a prompt, one slot is left."""
    assert not STALE_DECODE(THREE_REQUESTS)  # three slots: nobody recycles
    found = scenario(*THREE_REQUESTS.operations, slots=1)
    assert STALE_DECODE(found)
    smallest = simplify(found, STALE_DECODE)
    assert smallest == Scenario(
        geometry=Geometry(window=3, page_size=1, slots=1, pool_tokens=64),
        operations=(
            Submit(request="A", prompt=(Piece("A", 4),)), Prefill(request="A"),
            Finish(request="A"),
            Submit(request="B", prompt=(Piece("A", 2),)), Prefill(request="B"), Decode(),
        ),
    )  # fmt: skip


def kinds(scenario: Scenario) -> list[str]:
    return [type(operation).__name__ for operation in scenario.operations]


def submits(scenario: Scenario) -> dict[str, tuple[Piece, ...]]:
    return {op.request: op.prompt for op in scenario.operations if isinstance(op, Submit)}


def test_operations_go() -> None:
    start = scenario(Decode(), Evict(tokens=3), Finish(request="A"), Decode())
    smallest = simplify(start, lambda s: "Evict" in kinds(s))
    assert smallest.operations == (Evict(tokens=1),)


def test_slots_go() -> None:
    assert simplify(scenario(slots=3), lambda s: s.geometry.slots >= 2).geometry.slots == 2


def test_chunks_and_padding_go() -> None:
    start = scenario(Submit(request="A", prompt=(Piece("A", 3),)),
                     Prefill(request="A", tokens=2), Decode(pad=3))  # fmt: skip
    smallest = simplify(start, lambda s: kinds(s) == ["Submit", "Prefill", "Decode"])
    assert smallest.operations[1:] == (Prefill(request="A"), Decode())


def test_prompts_become_shorter() -> None:
    start = scenario(Submit(request="A", prompt=(Piece("A", 20), Piece("B", 37))))
    smallest = simplify(start, lambda s: "Submit" in kinds(s))
    assert [piece.until for piece in submits(smallest)["A"]] == [1]


def test_later_pieces_move_up() -> None:
    start = scenario(Submit(request="A", prompt=(Piece("A", 20), Piece("B", 37))))
    smallest = simplify(start, lambda s: any(len(prompt) == 2 for prompt in submits(s).values()))
    assert submits(smallest) == {"A": (Piece("B", 1), Piece("A", 2))}


def test_a_piece_that_another_goes_on_from_goes() -> None:
    start = scenario(Submit(request="A", prompt=(Piece("A", 2), Piece("A", 5))))
    smallest = simplify(start, lambda s: [p[-1].until for p in submits(s).values()] == [5])
    assert submits(smallest) == {"A": (Piece("A", 5),)}


def test_a_piece_that_ends_before_it_starts_goes() -> None:
    start = scenario(Submit(request="A", prompt=(Piece("A", 10), Piece("B", 5), Piece("C", 12))))

    def has_two_texts_up_to_12(s: Scenario) -> bool:
        return [(len({*p}), p[-1].until) for p in submits(s).values()] == [(2, 12)]

    smallest = simplify(start, has_two_texts_up_to_12)
    assert [piece.until for piece in submits(smallest)["A"]] == [10, 12]


def test_no_piece_ends_before_the_first_position() -> None:
    """What simplifying tries must be a scenario: an engine's process refuses any other."""
    tried: list[Scenario] = []

    def keep(scenario: Scenario) -> bool:
        tried.append(scenario)
        return "Submit" in kinds(scenario)

    simplify(scenario(Submit(request="A", prompt=(Piece("A", 10), Piece("B", 5)))), keep)
    assert len(tried) > 5
    for candidate in tried:
        assert decode_scenario(encode_scenario(candidate)) == candidate


def test_a_decode_becomes_a_token_of_the_prompt() -> None:
    """Where a step only made a request longer, a longer prompt does the same."""
    start = scenario(
        Submit(request="A", prompt=(Piece("A", 3),)), Prefill(request="A"), Decode(), Decode(),
        Finish(request="A"),
    )  # fmt: skip

    def is_long(s: Scenario) -> bool:
        lengths = [
            getattr(fact, "computed_len", 0) for fact in reference_player(s.geometry).play(s)
        ]
        return max(lengths) >= 5

    smallest = simplify(start, is_long)
    assert kinds(smallest) == ["Submit", "Prefill"]
    assert submits(smallest) == {"A": (Piece("A", 5),)}


def test_a_request_that_was_retracted_has_its_answer_in_its_prompt() -> None:
    """A stale decode that hangs on the token that a retracted request has come to."""
    start = Scenario(
        geometry=Geometry(window=3, page_size=1, slots=1, pool_tokens=64),
        operations=(
            Submit(request="A", prompt=(Piece("A", 3),)), Prefill(request="A"),
            Retract(request="A"), Prefill(request="A"), Finish(request="A"),
            Submit(request="B", prompt=(Piece("A", 2),)), Prefill(request="B"), Decode(),
        ),
    )  # fmt: skip
    stale = breaks("FRESH-DECODE", "other-request")
    assert stale(start)
    assert kinds(simplify(start, stale)) == [
        "Submit", "Prefill", "Finish", "Submit", "Prefill", "Decode",
    ]  # fmt: skip


def test_one_request_takes_over_another_s_text() -> None:
    start = scenario(
        Submit(request="A", prompt=(Piece("A", 4),)), Submit(request="B", prompt=(Piece("B", 8),)),
        Submit(request="C", prompt=(Piece("A", 4), Piece("C", 5))),
    )  # fmt: skip

    def shares(s: Scenario) -> bool:
        prompts = list(submits(s).values())
        return len(prompts) >= 2 and prompts[-1][0].text == prompts[-2][0].text

    smallest = simplify(start, shares)
    assert len(requests_of(smallest.operations)) == 2


def test_requests_get_the_first_names_and_texts_those_of_who_ends_in_them() -> None:
    start = scenario(
        Submit(request="Q", prompt=(Piece("system", 2), Piece("question", 3))),
        Submit(request="R", prompt=(Piece("system", 2), Piece("answer", 3))),
    )

    def branches(s: Scenario) -> bool:
        prompts = [*submits(s).values()]
        texts = {piece.text for prompt in prompts for piece in prompt}
        return [len(prompt) for prompt in prompts] == [2, 2] and len(texts) == 3

    smallest = simplify(start, branches)
    assert [[piece.text for piece in prompt] for prompt in submits(smallest).values()] == [
        ["C", "A"], ["C", "B"],
    ]  # fmt: skip
    assert requests_of(smallest.operations) == ["A", "B"]


def test_names_stay_where_they_matter() -> None:
    start = scenario(Submit(request="Q", prompt=(Piece("q", 3),)))
    assert simplify(start, lambda s: "Q" in submits(s)).operations[0] == Submit(
        request="Q", prompt=(Piece("q", 1),)
    )


def test_what_breaks_nothing_else_stays_as_it_is() -> None:
    start = scenario(Decode(pad=2), Evict(tokens=3))
    assert simplify(start, lambda s: s == start) == start


@pytest.mark.parametrize("invariant", ["FRESH-DECODE", "FRESH-PREFILL"])
@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck), database=None)
@given(data=st.data())
def test_the_result_is_smallest_and_still_breaks(invariant: Invariant, data: st.DataObject) -> None:
    keeps = breaks(invariant, "other-request")
    start = data.draw(scenarios().filter(keeps))
    assume(len(start.operations) < 30)
    smallest = simplify(start, keeps)
    assert keeps(smallest)
    assert scenario_size(smallest) <= scenario_size(start)
    assert decode_scenario(encode_scenario(smallest)) == smallest
    operations = smallest.operations
    for gone in range(len(operations)):
        kept = operations[:gone] + operations[gone + 1 :]
        assert not keeps(Scenario(geometry=smallest.geometry, operations=kept)), gone
    assert simplify(smallest, keeps) == smallest


def test_a_long_scenario_takes_few_tries() -> None:
    """Delta debugging: two operations of a thousand are found by halves."""
    tried = 0

    def needs_two(s: Scenario) -> bool:
        nonlocal tried
        tried += 1
        evicted = [op.tokens for op in s.operations if isinstance(op, Evict)]
        return {300, 700} <= {*evicted}

    start = scenario(*(Evict(tokens=number) for number in range(1000)))
    smallest = simplify(start, needs_two)
    assert smallest.operations == (Evict(tokens=300), Evict(tokens=700))
    assert tried < 150


def test_decodes_go_into_the_prompt_together() -> None:
    tried = 0

    def is_long(s: Scenario) -> bool:
        nonlocal tried
        tried += 1
        length = max((p[-1].until for p in submits(s).values()), default=0)
        return length + kinds(s).count("Decode") >= 64

    start = scenario(Submit(request="A", prompt=(Piece("A", 4),)), *(Decode() for _ in range(60)))
    smallest = simplify(start, is_long)
    assert smallest.operations == (Submit(request="A", prompt=(Piece("A", 64),)),)
    assert tried < 200


def test_sizes_become_smaller_and_the_pool_stays_roomy() -> None:
    start = Scenario(
        geometry=Geometry(window=128, page_size=256, slots=64, pool_tokens=2**20, draft_tokens=4),
        operations=(Submit(request="A", prompt=(Piece("A", 40),)),),
    )

    def has_the_prompt(s: Scenario) -> bool:
        return s.geometry.window >= 3 and submits(s) == {"A": (Piece("A", 40),)}

    smallest = simplify(start, has_the_prompt)
    assert smallest.geometry == Geometry(window=3, page_size=1, slots=1, pool_tokens=84)


def test_an_swa_pool_gets_smaller_where_that_saves_steps() -> None:
    """What breaks since it is full needs as many steps as fill it (#27210)."""
    start = Scenario(
        geometry=Geometry(window=4, page_size=4, slots=1, pool_tokens=64, swa_tokens=20),
        operations=(Submit(request="A", prompt=(Piece("A", 4),)), *[Decode()] * 30),
    )

    def is_full(s: Scenario) -> bool:
        pool = s.geometry.swa_pool_tokens
        filled = 4 + kinds(s).count("Decode")
        # A prompt of four tokens is admitted where eight fit.
        return submits(s) == {"A": (Piece("A", 4),)} and pool >= 8 and filled > pool

    smallest = simplify(start, is_full)
    assert kinds(smallest) == ["Submit", *["Decode"] * 5]
    assert smallest.geometry.swa_tokens == 8


def test_an_swa_pool_stays_as_it_is_where_nothing_is_saved() -> None:
    start = Scenario(
        geometry=Geometry(window=1, page_size=1, slots=1, pool_tokens=64, swa_tokens=20),
        operations=(Submit(request="A", prompt=(Piece("A", 1),)),),
    )
    assert simplify(start, lambda s: bool(submits(s))) == start


def test_a_request_that_only_made_room_stays_in_its_slot() -> None:
    start = scenario(
        Submit(request="A", prompt=(Piece("A", 3),)), Prefill(request="A"), Finish(request="A"),
        Submit(request="B", prompt=(Piece("B", 3),)), Prefill(request="B"),
    )  # fmt: skip

    def admits_two(s: Scenario) -> bool:
        log = reference_player(s.geometry).play(s)
        return sum(isinstance(fact, Admitted) for fact in log) == 2

    smallest = simplify(start, admits_two)
    assert kinds(smallest) == ["Submit", "Prefill", "Submit", "Prefill"]
    assert smallest.geometry.slots == 2


def test_the_search_may_be_another() -> None:
    """What searches is handed every round's candidates, and its answer is taken."""
    rounds = 0

    def search(breaks: Breaks, candidates: Iterable[Scenario]) -> Scenario | None:
        nonlocal rounds
        rounds += 1
        return one_by_one(breaks, candidates)

    start = scenario(*THREE_REQUESTS.operations, slots=1)
    assert simplify(start, STALE_DECODE, search=search) == simplify(start, STALE_DECODE)
    assert rounds > 5


def test_large_sizes_are_halved_together() -> None:
    """A tail shorter than the window stays one, and the plays after that are of few tokens."""
    tried: list[int] = []

    def is_stale(s: Scenario) -> bool:
        tried.append(s.geometry.window)
        return STALE_DECODE(s)

    start = Scenario(
        geometry=Geometry(window=128, page_size=64, slots=1, pool_tokens=4096),
        operations=(
            Submit(request="A", prompt=(Piece("A", 600),)), Prefill(request="A", tokens=256),
            Prefill(request="A"), Finish(request="A"),
            Submit(request="B", prompt=(Piece("A", 512), Piece("B", 520))), Prefill(request="B"),
            Evict(tokens=128), Decode(),
        ),
    )  # fmt: skip
    smallest = simplify(start, is_stale)
    assert tried[:4] == [64, 32, 16, 16]
    assert len(smallest.operations) == 6
    assert smallest.geometry.window == 3


def test_forwards_become_fewer_and_smaller() -> None:
    def is_changed(s: Scenario) -> bool:
        violations = check(forward_player(s.geometry).play(s)).violations
        return ("CURRENT", "changed-after-plan") in violations

    start = Scenario(
        geometry=Geometry(
            window=16, page_size=4, slots=3, pool_tokens=256, draft_tokens=3, swa_tokens=192
        ),
        operations=(
            Plan(mode="extend", requests=("X", "Y", "Z"), tokens=9), Layer(), Pad(rows=3), Layer(),
            Plan(mode="decode", requests=("Z", "Y")), Layer(), Release(request="X"),
            Replay(mode="verify", requests=("Y",)), Idle(rows=2),
            Plan(mode="extend", requests=("Y", "W"), tokens=5), Pad(rows=2), Rebind(), Layer(),
        ),
    )  # fmt: skip
    smallest = simplify(start, is_changed)
    assert smallest.operations == (
        Plan(mode="extend", requests=("A",), tokens=1), Rebind(), Layer(),
    )  # fmt: skip
    assert smallest.geometry.slots == smallest.geometry.draft_tokens == 1
