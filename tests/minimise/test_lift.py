"""A log lifts to the scenario that it is of, whoever wrote it."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, assume, given, settings
from msgspec.structs import replace

from kvproof.fuzz.strategies import Sizes, scenarios
from kvproof.model.facts import Admitted, Advanced, Answered, Fact, Ran, Released, Started, Step
from kvproof.model.forward_reference import forward_player
from kvproof.model.forwards import Idle, Layer, Pad, Plan, Release, Replay
from kvproof.model.scenario import (
    Abort,
    BadFileError,
    Decode,
    Finish,
    Geometry,
    Operation,
    Piece,
    Prefill,
    Scenario,
    Submit,
)
from kvproof.triage.lift import Lifter, lift
from kvproof.triage.rehearse import as_recorded, busy_run

from .conftest import STALE, played

FORWARDS = Scenario(
    geometry=Geometry(window=4, page_size=2, slots=2, pool_tokens=32, swa_tokens=24),
    operations=(
        Plan(mode="extend", requests=("A", "B"), tokens=3), Layer(), Pad(rows=2), Layer(),
        Replay(mode="decode", requests=("B",)), Release(request="A"), Idle(rows=1),
    ),
)  # fmt: skip

LONG = Sizes(draft_tokens=(1, 2), overlaps=(0, 0, 1))
IN_STEP = Sizes(draft_tokens=(1, 2), overlaps=(0,))
"""Without overlap: a recorder tells of results, not of launches."""

hypothesis = settings(
    max_examples=40, deadline=None, suppress_health_check=list(HealthCheck), database=None
)


def happened(log: list[Fact]) -> list[Fact]:
    """All but how the operations are spelled, and where the log stands."""
    return [fact for fact in log if not isinstance(fact, Step)]


def launched(log: list[Fact]) -> list[Fact]:
    """What went to which slot, reused how much, and ran where."""
    return [fact for fact in log if isinstance(fact, Admitted | Ran | Advanced | Released)]


def foresees_an_answer(scenario: Scenario) -> bool:
    """Whether a prompt goes on in the text of a request that has not ended. No client can do that,
    and a recorder never says what that request answered."""
    open_at: dict[str, tuple[str, int]] = {}
    for operation in scenario.operations:
        match operation:
            case Submit(request=request, prompt=prompt) if prompt:
                if any(
                    piece.text == text and piece.until > length
                    for text, length in open_at.values()
                    for piece in prompt
                ):
                    return True
                open_at.setdefault(request, (prompt[-1].text, prompt[-1].until))
            case Finish(request=request) | Abort(request=request):
                open_at.pop(request, None)
    return False


def prompts(scenario: Scenario) -> dict[str, tuple[Piece, ...]]:
    return {op.request: op.prompt for op in scenario.operations if isinstance(op, Submit)}


@hypothesis
@given(scenarios(LONG))
def test_a_driver_s_log_plays_again_to_the_same_facts(scenario: Scenario) -> None:
    log = played(scenario)
    lifted = lift(log)
    assert lifted.geometry == scenario.geometry
    assert len(lifted.operations) == len(scenario.operations)
    assert happened(played(lifted)) == happened(log)


@hypothesis
@given(scenarios(IN_STEP))
def test_a_recorder_s_log_plays_again_to_the_same_launches(scenario: Scenario) -> None:
    assume(not foresees_an_answer(scenario))
    recorded = list(as_recorded(played(scenario)))
    lifted = lift(recorded)
    assert launched(list(as_recorded(played(lifted)))) == launched(recorded)


def test_a_busy_run_plays_again_to_the_same_launches() -> None:
    geometry = Geometry(window=8, page_size=4, slots=8, pool_tokens=2**14)
    scenario = busy_run(requests=60, geometry=geometry, answer=6)
    recorded = list(as_recorded(played(scenario)))
    lifted = lift(recorded)
    assert launched(list(as_recorded(played(lifted)))) == launched(recorded)
    # Chat turns go on in the text of the answer that they hold.
    turns = [prompt for prompt in prompts(lifted).values() if len(prompt) > 2]
    assert len(turns) > 5
    # As many texts as branches, not one a page.
    texts = {piece.text for prompt in prompts(lifted).values() for piece in prompt}
    assert len(texts) <= 60 + 6


def submitted(request: str, *pieces: tuple[str, int]) -> list[Operation]:
    """As a recorder writes it: pages, then a text of the request's own."""
    named = (*(Piece(*piece) for piece in pieces), Piece(f"answer of {request}", pieces[-1][1]))
    return [Submit(request=request, prompt=named), Prefill(request=request)]


def log_of(*parts: list[Operation] | Answered) -> list[Fact]:
    geometry = Geometry(window=4, page_size=2, slots=4, pool_tokens=64)
    log: list[Fact] = [
        Started(target="t", backend="rules", geometry=geometry, ring_stride=4, reprefill_tail=0)
    ]
    for part in parts:
        if isinstance(part, Answered):
            log.append(part)
        else:
            log += [Step(index=len(log), operation=operation) for operation in part]
    return log


def answered(request: str, *pieces: tuple[str, int]) -> Answered:
    return Answered(request=request, tokens=tuple(Piece(*piece) for piece in pieces))


def lifted_prompts(*parts: list[Operation] | Answered) -> dict[str, list[tuple[str, int]]]:
    return {
        name: [(piece.text, piece.until) for piece in prompt]
        for name, prompt in prompts(lift(log_of(*parts))).items()
    }


END = [Finish(request="A")]


def test_a_shared_page_is_one_text_and_a_branch_a_new_one() -> None:
    assert lifted_prompts(
        submitted("A", ("p", 2), ("q", 4), ("tail", 5)), answered("A", ("p", 2), ("q", 4)), END,
        submitted("B", ("p", 2), ("other", 4)),
    ) == {"A": [("A", 5)], "B": [("A", 2), ("B", 4)]}  # fmt: skip


def test_a_prompt_that_holds_an_answer_names_its_text() -> None:
    assert lifted_prompts(
        submitted("A", ("p", 2), ("tail", 3)),
        answered("A", ("p", 2), ("with answer", 4), ("more", 6), ("partial", 7)), END,
        submitted("B", ("p", 2), ("with answer", 4), ("more", 6), ("new", 8)),
    ) == {"A": [("A", 3)], "B": [("A", 6), ("B", 8)]}  # fmt: skip


def test_a_twin_has_the_same_tail_and_an_answer_of_its_own() -> None:
    assert lifted_prompts(
        submitted("A", ("p", 2), ("tail", 3)),
        submitted("B", ("p", 2), ("tail", 3)),
        answered("A", ("p", 2), ("one answer", 4)), END,
        answered("B", ("p", 2), ("another", 4)),
    ) == {"A": [("A", 3)], "B": [("A", 3), ("B", 3)]}  # fmt: skip


def test_twins_that_answer_alike_share_the_answer() -> None:
    assert lifted_prompts(
        submitted("A", ("p", 2), ("tail", 3)),
        submitted("B", ("p", 2), ("tail", 3)),
        answered("A", ("p", 2), ("answer", 4)), END,
        answered("B", ("p", 2), ("answer", 4), ("longer", 6)),
        submitted("C", ("p", 2), ("answer", 4), ("longer", 6), ("new", 8)),
    ) == {"A": [("A", 3)], "B": [("A", 3)], "C": [("A", 6), ("C", 8)]}  # fmt: skip


def test_answers_that_part_later_are_two_texts() -> None:
    """The stated approximation: B's answer shares no page with A's, though it did."""
    assert lifted_prompts(
        submitted("A", ("p", 2)),
        submitted("B", ("p", 2)),
        answered("A", ("p", 2), ("same", 4), ("one way", 6)), END,
        answered("B", ("p", 2), ("same", 4), ("other way", 6)),
        submitted("C", ("p", 2), ("same", 4), ("other way", 6), ("new", 8)),
    ) == {
        "A": [("A", 2)], "B": [("A", 2), ("B", 2)], "C": [("A", 2), ("B", 6), ("C", 8)],
    }  # fmt: skip


def test_a_name_may_be_used_again() -> None:
    lifted = lift(
        log_of(
            submitted("A", ("p", 2)), answered("A", ("p", 2)), END,
            submitted("A", ("other", 2)), answered("A", ("other", 2)),
        )
    )  # fmt: skip
    first, second = [op.prompt for op in lifted.operations if isinstance(op, Submit)]
    assert first[-1].text != second[-1].text


def test_an_answer_of_an_unknown_request_says_nothing() -> None:
    assert lifted_prompts(submitted("A", ("p", 2)), answered("Z", ("p", 2), ("q", 4))) == {
        "A": [("A", 2)]
    }


def test_the_last_chunk_takes_what_is_left() -> None:
    """A budget of 3 tokens would be rounded down to a page of 2."""
    operations = [
        Submit(request="A", prompt=(Piece("A", 5),)),
        Prefill(request="A", tokens=2), Prefill(request="A", tokens=3),
    ]  # fmt: skip
    log = log_of(operations)
    log.insert(3, Advanced(request="A", computed_len=2, prefilling=True))
    log.append(Advanced(request="A", computed_len=5))
    assert lift(log).operations[1:] == (Prefill(request="A", tokens=2), Prefill(request="A"))


def test_what_comes_after_a_step_is_cut() -> None:
    lifter = Lifter()
    for fact in played(STALE):
        lifter.feed(fact)
    assert lifter.scenario(until=2).operations == STALE.operations[:3]
    assert lifter.scenario() == STALE


def test_steps_are_cut_by_the_log_s_own_numbers() -> None:
    """A recorder that was asked for a new file goes on counting."""
    lifter = Lifter()
    for fact in played(STALE):
        lifter.feed(replace(fact, index=fact.index + 100) if isinstance(fact, Step) else fact)
    assert lifter.scenario(until=102).operations == STALE.operations[:3]


def test_a_log_without_a_start_is_refused() -> None:
    with pytest.raises(BadFileError, match="'started'"):
        lift([Step(index=0, operation=Decode())])


def test_a_log_of_forwards_passes_through() -> None:
    assert lift(forward_player(FORWARDS.geometry).play(FORWARDS)) == FORWARDS
