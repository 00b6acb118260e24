"""The worker turns whatever an engine raises into a fact and goes on."""

import io

import msgspec
import pytest

from kvproof.fuzz.drivers import worker
from kvproof.fuzz.drivers.wire import Play
from kvproof.kernels.guarantees import Breach
from kvproof.model.facts import (
    Breached,
    Ended,
    EngineError,
    Started,
    Step,
    decode_fact,
    read_log,
)
from kvproof.model.player import Player
from kvproof.model.reference import Policy, ReferenceEngine
from kvproof.model.scenario import Flush, Geometry, Piece, Prefill, Scenario, Submit

SCENARIO = Scenario(
    geometry=Geometry(window=4, page_size=1, slots=1, pool_tokens=32),
    operations=(Submit(request="A", prompt=(Piece("A", 4),)), Prefill(request="A"), Flush()),
)
ORDER = Play(scenario=SCENARIO, backend="none")


class Broken(ReferenceEngine):
    def admit(self, *_arguments):
        raise RuntimeError("a   page\nthat is not there")


def player(engine):
    return lambda order: Player(
        engine=engine(geometry=order.scenario.geometry, policy=Policy()), forward=None
    )


def played(engine):
    wire = io.BytesIO()
    worker.play(ORDER, wire, player(engine))
    return list(read_log(wire.getvalue().splitlines()))


def test_a_scenario_becomes_a_log():
    log = played(ReferenceEngine)
    assert isinstance(log[0], Started)
    assert log[-1] == Ended(steps=3)


def test_an_exception_is_the_last_fact():
    log = played(Broken)
    assert log[-1] == EngineError(cause="raised", message="RuntimeError: a page that is not there")


class Careless(ReferenceEngine):
    """An engine whose launches are not what the proofs assume."""

    def admit(self, *arguments):
        breach = Breach(assumption="H6", kernel="_swa_scatter_kernel", message="a slot twice")
        worker._broken.append(breach)
        return super().admit(*arguments)


def test_a_breach_is_a_fact_before_that_of_its_step():
    log = played(Careless)
    [at] = [at for at, fact in enumerate(log) if isinstance(fact, Breached)]
    assert log[at] == Breached(
        assumption="H6", kernel="_swa_scatter_kernel", message="a slot twice"
    )
    # It stands between its step and what came of it, and in no other scenario's log.
    assert isinstance(log[at - 1], Step)
    assert isinstance(log[at - 1].operation, Prefill)
    assert isinstance(log[-1], Ended)
    assert not any(isinstance(fact, Breached) for fact in played(ReferenceEngine))


def test_each_line_is_a_scenario_of_its_own():
    wire = io.BytesIO()
    worker.serve([msgspec.json.encode(ORDER)] * 2, wire, player(ReferenceEngine))
    one = played(ReferenceEngine)
    assert [decode_fact(line) for line in wire.getvalue().splitlines()] == [*one, *one]


def test_a_description_names_the_engine_line_without_folders(tmp_path):
    path = tmp_path / "sglang" / "srt" / "pool.py"
    names = {}
    exec(compile("def free():\n    raise KeyError('gone')\n", str(path), "exec"), names)
    with pytest.raises(KeyError) as raised:
        names["free"]()
    assert worker.describe(raised.value) == "KeyError: 'gone' at sglang/srt/pool.py:2 in free"
