"""A busy server, recorded: next to nothing is wrong, and what is wrong is found."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from kvproof.fuzz.busy import GEOMETRY, SHORT_TAIL, busy_scenario
from kvproof.fuzz.drivers.recorded import record_play
from kvproof.kernels.engines.errors import EngineError
from kvproof.kernels.engines.store import EngineStore
from kvproof.model.facts import Admitted, Ended, Ran, Released, read_log
from kvproof.model.monitor import check
from kvproof.model.scenario import (
    Submit,
    decode_scenario,
    encode_scenario,
)

REQUESTS = 60


def test_the_same_seed_gives_the_same_scenario():
    one = busy_scenario(requests=REQUESTS)
    assert one == busy_scenario(requests=REQUESTS)
    assert one != busy_scenario(requests=REQUESTS, seed=1)
    assert decode_scenario(encode_scenario(one)) == one
    assert sum(isinstance(operation, Submit) for operation in one.operations) == REQUESTS


def decodes_alone(facts):
    """The log without what prefill reads of the ring: stale on every hit, on every release (X1)."""
    for fact in facts:
        if not isinstance(fact, Ran) or fact.mode == "decode":
            yield fact
        else:  # its last window is all that later reads find in the ring
            yield replace(fact, start=max(fact.start, fact.end - GEOMETRY.window))


@pytest.mark.parametrize("hidden", [True, False])
def test_one_short_tail_is_found(tmp_path, hidden):
    try:
        engine = EngineStore().find("0.5.15")
    except EngineError as error:
        pytest.skip(str(error))
    scenario = busy_scenario(requests=REQUESTS, hidden=hidden)
    with record_play(engine, scenario, tmp_path).open("rb") as lines:
        facts = list(read_log(lines))
    assert isinstance(facts[-1], Ended)
    admitted = [fact for fact in facts if isinstance(fact, Admitted)]
    assert len(admitted) >= REQUESTS
    assert len(admitted) == sum(isinstance(fact, Released) for fact in facts)
    tails = [fact.prompt_len - fact.matched_len for fact in admitted]
    short = [tail for tail in tails if tail < GEOMETRY.window - 1]
    assert short == ([SHORT_TAIL] if hidden else [])
    violation = check(decodes_alone(facts)).worst_of("FRESH-DECODE")
    if not hidden:
        assert violation is None
        return
    assert violation is not None
    assert violation.cause == "other-request"
    assert violation.evidence is not None
    assert violation.evidence.reader.tail == SHORT_TAIL
