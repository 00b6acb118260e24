"""`Ran`: judged without a look at the rows, it comes to what its reads and writes come to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hypothesis import example, given, settings
from hypothesis import strategies as st

from kvproof.fuzz.strategies import Sizes, scenarios
from kvproof.model.facts import (
    Admitted,
    Advanced,
    Answered,
    Ended,
    Fact,
    Mode,
    Pools,
    Ran,
    Read,
    Released,
    Started,
    Step,
    Wrote,
)
from kvproof.model.forward import RuleForward, lane_of
from kvproof.model.monitor import Monitor
from kvproof.model.player import Lane, Player
from kvproof.model.reference import Policy, ReferenceEngine
from kvproof.model.scenario import (
    Decode,
    Finish,
    Geometry,
    Piece,
    Prefill,
    Scenario,
    Submit,
    Verify,
)
from kvproof.spec.window import Order


def judged(log: Sequence[Fact], *, expand: bool) -> Monitor:
    monitor = Monitor(expand=expand)
    for fact in log:
        monitor.feed(fact)
    return monitor


def assert_same_judgement(log: Sequence[Fact]) -> Monitor:
    """Violations with their evidence and their order, counts, tests and witnesses are the same."""
    quick, slow = judged(log, expand=False), judged(log, expand=True)
    assert list(quick.violations.items()) == list(slow.violations.items())
    assert quick.counts == slow.counts
    assert quick.checked == slow.checked
    assert quick.witnesses == slow.witnesses
    assert quick.ghost.rows() == slow.ghost.rows()
    return quick


class Recorded:
    """A forward that reports lanes, and what the rules say of some of them."""

    def __init__(self, rules: RuleForward, ran: Sequence[bool]) -> None:
        self.rules = rules
        self.ran = ran
        self.launches = 0

    def _launch(self, lanes: Sequence[Lane], mode: Mode) -> list[Fact]:
        facts: list[Fact] = []
        for lane in lanes:
            self.launches += 1
            if self.ran[self.launches % len(self.ran)]:
                facts.append(
                    Ran(request=lane.request, mode=mode, slot=lane.slot, start=lane.start,
                        end=lane.end)
                )  # fmt: skip
            else:
                facts += self.rules.lane(lane, mode)
        return facts

    def prefill(self, lanes: Sequence[Lane]) -> list[Fact]:
        return self._launch(lanes, "prefill")

    def decode(self, lanes: Sequence[Lane]) -> list[Fact]:
        return self._launch(lanes, "decode")

    def verify(self, lanes: Sequence[Lane]) -> list[Fact]:
        return self._launch(lanes, "verify")


SIZES = Sizes(draft_tokens=(1, 2, 4))
orders = st.sampled_from(("read, then write", "write, then read"))


@settings(max_examples=300, deadline=None)
@given(
    scenario=scenarios(SIZES),
    order=orders,
    tail=st.sampled_from((0, None)),
    spare=st.integers(-2, 2),
    ran=st.lists(st.booleans(), min_size=1, max_size=5),
    snapshots=st.booleans(),
)
def test_a_played_log_is_judged_the_same(
    scenario: Scenario,
    order: Order,
    tail: int | None,
    spare: int,
    ran: list[bool],
    snapshots: bool,
) -> None:
    geometry = scenario.geometry
    stride = max(1, geometry.ring_stride + spare)
    policy = Policy(
        reprefill_tail=geometry.window if tail is None else tail, stride=stride, verify_order=order
    )
    rules = RuleForward(window=geometry.window, stride=stride, verify_order=order)
    player = Player(
        engine=ReferenceEngine(geometry=geometry, policy=policy),
        forward=Recorded(rules, ran),  # type: ignore[arg-type]
    )
    log = [f for f in player.play(scenario) if snapshots or not isinstance(f, Pools)]
    assert_same_judgement(log)
    spelled = [f for fact in log for f in (rules.lane(lane_of(fact), fact.mode)
                                           if isinstance(fact, Ran) else (fact,))]  # fmt: skip
    assert judged(spelled, expand=False).violations == judged(log, expand=False).violations


# Logs that no player gives: gaps, steps back, shared slots, rows and lanes of anywhere.

GEOMETRY = Geometry(window=4, page_size=2, slots=2, pool_tokens=64, draft_tokens=3)
names = st.sampled_from("ABC")
slots = st.sampled_from((1, 1, 2, 0))
positions = st.integers(0, 20)


@st.composite
def wild_facts(draw: st.DrawFn) -> Fact:
    name, slot, start = draw(names), draw(slots), draw(positions)
    match draw(st.integers(0, 10)):
        case 0 | 1:
            return Admitted(
                request=name, slot=slot, prompt_len=20, matched_len=draw(st.integers(0, 8))
            )
        case 2:
            return Advanced(request=name, computed_len=start)
        case 3:
            return Released(request=name, slot=slot)
        case 4:
            rows = draw(st.lists(st.integers(0, 17), max_size=5))
            return Wrote(request=draw(names | st.none()), mode="decode", slot=slot,
                         positions=tuple(range(start, start + len(rows))),
                         rows=tuple(rows))  # fmt: skip
        case 5:
            rows = draw(st.lists(st.integers(0, 17), max_size=5))
            return Read(request=draw(names | st.none()), mode="decode", slot=slot,
                        position=start + 3, first=start, rows=tuple(rows))  # fmt: skip
        case 6:
            return Ran(request=draw(names | st.none()), mode="prefill", slot=slot, start=start,
                       end=start + draw(st.integers(0, 12)))  # fmt: skip
        case 7:
            return Ran(request=name, mode="verify", slot=slot, start=start,
                       end=start + draw(st.integers(0, 3)))  # fmt: skip
        case 8:
            tokens = (Piece(draw(st.sampled_from("XZ")), draw(st.integers(0, 20))), Piece(name, 20))
            return Answered(request=name, tokens=tokens)
        case _:
            return Ran(request=name, mode="decode", slot=slot, start=start, end=start + 1)


def wild_log(facts: Sequence[Fact], stride: int, order: Order) -> Iterator[Fact]:
    yield Started(target="wild", backend="rules", geometry=GEOMETRY, ring_stride=stride,
                  reprefill_tail=0, verify_order=order)  # fmt: skip
    for index, name in enumerate("ABC"):
        prompt = (Piece("X", 6), Piece(name, 20))
        yield Step(index=index, operation=Submit(request=name, prompt=prompt))
    for index, fact in enumerate(facts, start=3):
        yield Step(index=index, operation=Decode())
        yield fact
    yield Ended(steps=len(facts) + 3)


@settings(max_examples=600, deadline=None)
@given(
    facts=st.lists(wild_facts(), min_size=5, max_size=30),
    stride=st.sampled_from((6, 6, 4, 3, 1)),
    order=orders,
)
@example(
    # A long chunk leaves a gap; what is rejected lies before it.
    facts=[
        Admitted(request="A", slot=1, prompt_len=20, matched_len=0),
        Ran(request="A", mode="prefill", slot=1, start=0, end=5),
        Ran(request="A", mode="prefill", slot=1, start=5, end=20),
        Advanced(request="A", computed_len=3),
        Ran(request="A", mode="decode", slot=1, start=17, end=18),
    ],
    stride=6,
    order="read, then write",
)
def test_a_wild_log_is_judged_the_same(facts: list[Fact], stride: int, order: Order) -> None:
    assert_same_judgement([*wild_log(facts, stride, order)])


def test_a_stale_window_is_counted_row_by_row() -> None:
    """Five queries of a chunk of B see rows of A: 3 + 2 + 1 pairs of query and row."""
    scenario = Scenario(
        geometry=Geometry(window=4, page_size=2, slots=1, pool_tokens=64),
        operations=(
            Submit(request="A", prompt=(Piece("A", 9),)), Prefill(request="A"),
            Finish(request="A"),
            Submit(request="B", prompt=(Piece("A", 4), Piece("B", 9))), Prefill(request="B"),
        ),
    )  # fmt: skip
    rules = RuleForward(window=4, stride=4, verify_order="write, then read")
    player = Player(
        engine=ReferenceEngine(geometry=scenario.geometry, policy=Policy(reprefill_tail=0)),
        forward=Recorded(rules, [True]),  # type: ignore[arg-type]
    )
    monitor = assert_same_judgement([*player.play(scenario)])
    assert sum(n for (name, _), n in monitor.counts.items() if name == "FRESH-PREFILL") == 6


def test_verify_in_both_orders_is_reached() -> None:
    """The strategies above draw verifies: one by hand, so that it is sure."""
    for order in ("read, then write", "write, then read"):
        geometry = Geometry(window=4, page_size=2, slots=1, pool_tokens=64, draft_tokens=3)
        scenario = Scenario(
            geometry=geometry,
            operations=(
                Submit(request="A", prompt=(Piece("A", 5),)), Prefill(request="A"),
                *[Verify(accepted=n % 3 + 1) for n in range(9)],
            ),
        )  # fmt: skip
        rules = RuleForward(window=4, stride=6, verify_order=order)
        player = Player(
            engine=ReferenceEngine(geometry=geometry, policy=Policy(verify_order=order)),
            forward=Recorded(rules, [True]),  # type: ignore[arg-type]
        )
        monitor = assert_same_judgement([*player.play(scenario)])
        assert monitor.checked["FRESH-DECODE"] == 27
        assert not monitor.violations
