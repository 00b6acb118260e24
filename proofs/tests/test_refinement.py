"""The transition rules that are proved are what the model does: row by row, while it plays."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from kvproof.model.facts import Admitted, Advanced, Read, Released, Started, Step
from kvproof.model.ghost import Ghost
from kvproof.model.monitor import Monitor
from kvproof.model.reference import Policy, reference_player
from kvproof.model.scenario import (
    Abort,
    Decode,
    Finish,
    Geometry,
    Operation,
    Piece,
    Prefill,
    Retract,
    Scenario,
    Submit,
    Verify,
)
from kvproof.model.transition import (
    Cell,
    Launch,
    Ring,
    Seat,
    admitted,
    decoded,
    is_fresh,
    prefilled,
    verified,
)
from kvproof.spec.window import Order

names = st.sampled_from("AB")
prompts = st.builds(
    lambda shared, own: (Piece("X", shared), Piece("Y", shared + own)),
    st.integers(0, 9), st.integers(1, 9),
)  # fmt: skip
operations: st.SearchStrategy[Operation] = st.one_of(
    st.builds(Submit, request=names, prompt=prompts),
    st.builds(Prefill, request=names, tokens=st.none() | st.integers(1, 12)),
    st.builds(Decode),
    st.builds(Verify, accepted=st.integers(1, 4)),
    st.builds(Finish, request=names),
    st.builds(Retract, request=names),
    st.builds(Abort, request=names),
)
geometries = st.builds(
    Geometry,
    window=st.integers(1, 5), page_size=st.integers(1, 3), slots=st.integers(1, 2),
    pool_tokens=st.just(120), draft_tokens=st.integers(1, 4),
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(
    geometry=geometries,
    steps=st.lists(operations, min_size=4, max_size=30),
    order=st.sampled_from(("read, then write", "write, then read")),
    spare=st.integers(-1, 2),
)
def test_rows_change_as_the_rules_say(
    geometry: Geometry, steps: list[Operation], order: Order, spare: int
) -> None:
    stride = max(1, geometry.ring_stride + spare)
    policy = Policy(verify_order=order, stride=stride, reprefill_tail=0)
    ring = Ring(
        window=geometry.window, stride=stride, draft_tokens=geometry.draft_tokens,
        verify_order=order,
    )  # fmt: skip
    watch = _Watch(ring)
    scenario = Scenario(geometry=geometry, operations=tuple(steps))
    for fact in reference_player(geometry, policy).play(scenario):
        watch.feed(fact)


class _Watch:
    """Every row of every lent slot, by the rules, beside the monitor's ghost."""

    def __init__(self, ring: Ring) -> None:
        self.ring = ring
        self.monitor = Monitor()
        self.seats: dict[str, list[Seat]] = {}
        self.reads: dict[str, list[tuple[int, int, bool]]] = {}
        self.operation: object = None

    @property
    def ghost(self) -> Ghost:
        return self.monitor.ghost

    def feed(self, fact: object) -> None:
        if isinstance(fact, Read) and fact.request is not None:
            lease = self.monitor.leases[fact.request]
            self.reads.setdefault(fact.request, []).extend(
                (
                    row % self.ring.stride,
                    position,
                    self.ghost.stale_cause(lease, position, row) is None,
                )
                for position, row in enumerate(fact.rows, fact.first)
            )
        self.monitor.feed(fact)  # type: ignore[arg-type]
        match fact:
            case Started():
                assert fact.ring_stride == self.ring.stride
            case Step():
                self.operation = fact.operation
            case Admitted():
                self.seats[fact.request] = [
                    admitted(
                        self.cell(fact.request, offset), offset=offset, matched=fact.matched_len
                    )
                    for offset in range(self.ring.stride)
                ]
            case Released():
                self.seats.pop(fact.request)
            case Advanced():
                self.advance(fact)
            case _:
                pass

    def advance(self, fact: Advanced) -> None:
        launches = [self.launch(seat, fact.computed_len) for seat in self.seats[fact.request]]
        for offset, position, fresh in self.reads.pop(fact.request, []):
            assert bool(is_fresh(launches[offset].found, position)) == fresh
        for offset, launch in enumerate(launches):
            ghost, rule = self.cell(fact.request, offset), launch.after.cell
            assert rule.own == ghost.own
            if rule.own:
                assert (rule.position, rule.committed) == (ghost.position, ghost.committed)
        self.seats[fact.request] = [launch.after for launch in launches]

    def launch(self, seat: Seat, computed: int) -> Launch:
        if isinstance(self.operation, Prefill):
            return prefilled(seat, self.ring, computed)
        if isinstance(self.operation, Decode):
            return decoded(seat, self.ring)
        return verified(seat, self.ring, computed - seat.computed)

    def cell(self, request: str, offset: int) -> Cell:
        lease = self.monitor.leases[request]
        written = self.ghost.written(lease.slot * self.ring.stride + offset)
        if written is None:
            return Cell(own=False, position=0, committed=True)
        return Cell(
            own=written.occupancy == lease.occupancy,
            position=written.position,
            committed=not written.rejected,
        )
