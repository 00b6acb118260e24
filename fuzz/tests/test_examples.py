"""The real kernels and the specification's rules agree on what breaks, whatever is played.

`kvproof export FILE --as patch` adds a failure here as an example, which is then always played.
"""

from __future__ import annotations

from hypothesis import HealthCheck, example, given, settings

from kvproof.fuzz.drivers.process import EngineProcess
from kvproof.fuzz.strategies import likely_scenarios
from kvproof.model.facts import Ended
from kvproof.model.monitor import check
from kvproof.model.scenario import (
    Abort,
    Decode,
    Evict,
    Finish,
    Flush,
    Geometry,
    Piece,
    Prefill,
    Retract,
    Scenario,
    Submit,
    Verify,
)

OPERATIONS = (Abort, Decode, Evict, Finish, Flush, Prefill, Retract, Submit, Verify)
"""What an example may be made of."""


@settings(
    max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(scenario=likely_scenarios())
@example(
    # FRESH-DECODE (other-request) on sglang-0.5.15:registry
    scenario=Scenario(
        geometry=Geometry(window=5, page_size=4, slots=1, pool_tokens=64),
        operations=(
            Submit(request="A", prompt=(Piece("A", 7),)),
            Prefill(request="A"),
            Finish(request="A"),
            Submit(request="B", prompt=(Piece("A", 4), Piece("B", 5))),
            Prefill(request="B"),
            Decode(),
        ),
    )
)
def test_an_example_breaks_the_same_with_kernels_and_with_rules(
    process: EngineProcess, scenario: Scenario
) -> None:
    assert {type(operation) for operation in scenario.operations} <= set(OPERATIONS)
    played, ruled = (
        process.play(scenario, timeout=60, backend=backend)
        for backend in (process.backend, "rules")
    )
    assert isinstance(played[-1], Ended)
    assert check(played).violations.keys() == check(ruled).violations.keys()
