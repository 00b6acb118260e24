"""A stack of layers on the real kernels: floats, taint and payloads say the same."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kvproof.fuzz.drivers.layered import LayeredForward, LayersDisagreeError
from kvproof.fuzz.drivers.wire import Layering
from kvproof.fuzz.sweep import hit
from kvproof.kernels.exact_model import ExactModel, mix, relative_error
from kvproof.kernels.launch import Ring
from kvproof.kernels.layer import LayerRules, Queries, rows_by_rule
from kvproof.model.facts import Compared, EngineError, Fact, Stored, encode_fact
from kvproof.model.forward import RuleForward
from kvproof.model.layers import Stack
from kvproof.model.monitor import check
from kvproof.model.player import Lane
from kvproof.model.scenario import Decode, Geometry, Scenario

from .conftest import Start

GEOMETRY = Geometry(window=3, page_size=2, slots=2, pool_tokens=32)
RATIOS = (0, 2)


def compared(facts: list[Fact]) -> dict[str, Compared]:
    assert not isinstance(facts[-1], EngineError), facts[-1]
    return {fact.request: fact for fact in facts if isinstance(fact, Compared)}


def departs(fact: Compared) -> list[list[bool]]:
    return [[error > fact.noise for error in errors] for errors in (*fact.states, *fact.rows)]


def with_a_decode(scenario: Scenario) -> Scenario:
    return Scenario(geometry=scenario.geometry, operations=(*scenario.operations, Decode(pad=1)))


@pytest.mark.parametrize(
    ("release", "ratios"), [("0.5.15", (0, 2)), ("0.5.16", (4, 0)), ("0.5.23", (2, 4))]
)
class TestReleases:
    """One short hit on each release's kernels."""

    def test_floats_and_taint_agree(
        self, release: str, ratios: tuple[int, ...], start: Start
    ) -> None:
        process = start(release, layering=Layering(ratios=ratios))
        scenario = with_a_decode(hit(window=3, page_size=4, tail=4, slots=3))
        by_kernel, by_rule = (
            process.play(scenario, timeout=120, backend=backend)
            for backend in ("interpreter", "rules")
        )
        found = compared(by_kernel)
        assert found.keys() == {"A", "B", "C"}
        assert all(fact.noise == 0 for fact in found.values())
        # Nothing is reused by A and B; the first tokens of C see what is left in the ring.
        assert not any(any(errors) for errors in (*found["A"].states, *found["B"].states))
        assert found["C"].states[0][:2] == pytest.approx([1.4, 1.4], abs=0.5)
        monitor = check(by_kernel, stack=Stack(ratios=ratios))
        assert ("EXACT", "oracles-differ") not in monitor.violations
        assert monitor.layers is not None
        assert monitor.layers.compared >= 30
        assert {one.request for one in monitor.layers.departures()} == {"C"}
        # Which states depart is not the kernels' matter; what they are is.
        assert {name: departs(fact) for name, fact in found.items()} == {
            name: departs(fact) for name, fact in compared(by_rule).items()
        }


def test_the_same_scenario_gives_the_same_bytes(start: Start) -> None:
    process = start("0.5.23", layering=Layering(ratios=(2, 4)))
    scenario = hit(window=3, page_size=4, tail=3, slots=2)
    logs = [
        [encode_fact(fact) for fact in process.play(scenario, timeout=60, backend="rules")]
        for _ in range(2)
    ]
    assert logs[0] == logs[1]


# --- The forward by itself -------------------------------------------------------------------


class Locations:
    """Where a request's tokens lie: slot 1 from page 1 on."""

    def __getitem__(self, at: tuple[int, slice]) -> torch.Tensor:
        return torch.arange(2, 40)[at[1]]


def forward(launches: Any = None, seed: int = 0) -> LayeredForward:
    ring = SimpleNamespace(
        get_unified_kv=lambda _layer: torch.zeros(0, 8, dtype=torch.bfloat16),
        unified_swa_window=3,
        unified_swa_ring_size=3,
        unified_swa_pages=9,
    )
    engine = SimpleNamespace(
        kv_pool=ring, geometry=GEOMETRY, requests=SimpleNamespace(req_to_token=Locations())
    )
    return LayeredForward(
        engine=engine,
        launches=launches or LayerRules(verify_order="write, then read"),
        follow=lambda ring: RuleForward(
            window=ring.window, stride=ring.stride, verify_order="write, then read"
        ),
        model=ExactModel.seeded(seed, layers=2, heads=2, dim=16, device="cpu"),
        ratios=RATIOS,
    )


def lane(start: int, end: int, *, occupancy: int = 1, text: int = 0) -> Lane:
    return Lane(
        request="A", slot=1, occupancy=occupancy, start=start, end=end,
        tokens=[text + at for at in range(start, end)],
    )  # fmt: skip


def states(played: LayeredForward, end: int) -> torch.Tensor:
    return played.traces[1].above(2, 0, end)


@pytest.mark.parametrize("cuts", [(9,), (1, 9), (4, 5, 9), (2, 4, 6, 8, 9)])
def test_no_chunking_changes_a_bit(cuts: tuple[int, ...]) -> None:
    whole, cut = forward(), forward()
    whole.prefill([lane(0, 10)])
    start = 0
    for end in cuts:
        cut.prefill([lane(start, end)])
        start = end
    cut.decode([lane(9, 10)])
    assert torch.equal(states(whole, 10), states(cut, 10))
    assert torch.equal(whole.traces[1].rows[2], cut.traces[1].rows[2])


def test_another_token_in_reach_changes_every_state_after_it() -> None:
    one, other = forward(), forward()
    one.prefill([lane(0, 12)])
    changed = lane(0, 12)
    other.prefill([Lane(**{**_fields(changed), "tokens": [*changed.tokens[:4], 99,
                                                          *changed.tokens[5:]]})])  # fmt: skip
    errors = relative_error(states(other, 12), states(one, 12))
    assert errors[:4] == [0.0] * 4
    # The compressed row of positions 4 and 5 hands it on for good.
    assert all(error > 0.5 for error in errors[4:])


def _fields(lane: Lane) -> dict[str, Any]:
    return {name: getattr(lane, name) for name in Lane.__dataclass_fields__}


def test_where_a_launch_stores_is_told() -> None:
    played = forward()
    played.prefill([lane(0, 3)])
    assert played.stored == {"A": Stored(request="A", start=0, locs=(2, 3, 4))}


def test_attention_over_other_rows_than_were_followed_is_an_error() -> None:
    class Astray(LayerRules):
        def after_store(self, ring: Ring, queries: Queries, *, ratio: int) -> Any:
            out, given = super().after_store(ring, queries, ratio=ratio)
            return out, [[row + 1 for row in rows] for rows in given]

    played = forward(Astray(verify_order="write, then read"))
    played.prefill([lane(0, 4)])
    with pytest.raises(LayersDisagreeError, match="other rows than those"):
        played.decode([lane(4, 5)])


@pytest.mark.parametrize("ratio", [1, 2, 4])
def test_a_row_lies_at_its_last_token_and_is_seen_from_there_on(ratio: int) -> None:
    locs = torch.tensor([8, 9, 10, 11, 24, 25, 26, 27, 4, 5])
    places, seen = rows_by_rule(locs, 3, ratio=ratio)
    whole = [int(loc) // ratio for loc in locs[ratio - 1 :: ratio]]
    assert [place for place in places if place >= 0] == whole[3 // ratio :]
    assert [len(rows) for rows in seen] == [(position + 1) // ratio for position in range(3, 10)]
    assert seen[-1] == whole


# --- Its arithmetic ---------------------------------------------------------------------------


def test_mixing_is_one_to_one_and_spreads_a_bit() -> None:
    numbers = torch.arange(-2000, 2000)
    assert len(set(mix(numbers).tolist())) == len(numbers)
    flipped = [mix(numbers) ^ mix(numbers ^ (1 << bit)) for bit in (0, 31, 62)]
    for bits in flipped:
        ones = [f"{value & (2**64 - 1):b}".count("1") for value in bits.tolist()]
        assert 31 < sum(ones) / len(ones) < 33


def test_scores_are_small_integers_and_weights_powers_of_two() -> None:
    model = ExactModel.seeded(3, layers=1, heads=4, dim=32, device="cpu")
    [weights] = model.layers
    embedded = model.embed(range(50))
    keys, queries = weights.keys(embedded).double(), weights.queries(embedded).double()
    scores = torch.einsum("thd,kd->thk", queries, keys)
    assert set(scores.flatten().tolist()) == set(range(-3, 4))


def test_an_error_is_relative_and_never_hides_a_difference() -> None:
    cold = torch.tensor([[3, 4], [1 << 62, 0]])
    found = torch.tensor([[3, 5], [(1 << 62) + 1, 0]])
    assert relative_error(found, cold) == [0.2, 1.11e-16]
    assert relative_error(cold, cold) == [0.0, 0.0]
