"""The parent keeps every fact that was out, whatever its engine's process does next."""

import sys
import threading

import pytest

from kvproof.fuzz.drivers import process
from kvproof.fuzz.drivers.process import EngineProcess
from kvproof.kernels.engines.errors import EngineError as SetupError
from kvproof.model.facts import Ended, EngineError, Started, Step
from kvproof.model.scenario import Decode, Geometry, Scenario

SCENARIO = Scenario(
    geometry=Geometry(window=4, page_size=1, slots=1, pool_tokens=8), operations=(Decode(),)
)

READY = '{"type":"ready","family":"0.5.15","version":"1","shims":[],"stubs":[]}'
GEOMETRY = '{"window":4,"page_size":1,"slots":1,"pool_tokens":8}'
FACTS = [
    f'{{"fact":"started","target":"t","backend":"none","geometry":{GEOMETRY},'
    '"ring_stride":null,"reprefill_tail":0}',
    '{"fact":"step","index":0,"operation":{"op":"decode"}}',
]
ENDED = '{"fact":"ended","steps":1}'


def worker(tmp_path, body, *, greeting=READY):
    """A process that greets, then runs ``body`` for each line of its input."""
    script = tmp_path / "worker.py"
    script.write_text(
        "import os, signal, sys, time\n"
        "def say(*lines):\n"
        "    for line in lines:\n"
        "        print(line, flush=True)\n"
        f"say({greeting!r})\n"
        f"FACTS, ENDED = {FACTS!r}, {ENDED!r}\n"
        f"for line in sys.stdin:\n    {body}\n"
    )
    return EngineProcess(name="fake", command=[sys.executable, str(script)], env={})


def test_a_scenario_is_played_to_its_end_and_the_process_is_kept(tmp_path):
    with worker(tmp_path, "say(*FACTS, ENDED); print(os.getpid(), file=sys.stderr)") as engine:
        first, second = (engine.play(SCENARIO, timeout=20) for _ in range(2))
    assert [type(fact) for fact in first] == [Started, Step, Ended]
    assert first == second


@pytest.mark.parametrize(
    ("body", "cause", "message"),
    [
        ("say(*FACTS); time.sleep(60)", "timed out", "no end within 0.5 s"),
        ("say(*FACTS); os.kill(os.getpid(), signal.SIGSEGV)", "died", "killed by SIGSEGV"),
        ("say(*FACTS); sys.exit('no more memory')", "died", "exit code 1: no more memory"),
        ("say(*FACTS, 'hello')", "died", "wrote what is no fact"),
        (
            "say(*FACTS); print('{\"fact\":\"en', end='', flush=True); sys.exit(3)",
            "died",
            "exit code 3",
        ),
    ],
)
def test_what_was_said_before_the_end_is_kept(tmp_path, body, cause, message):
    with worker(tmp_path, body) as engine:
        for _ in range(2):  # the second time in a new process
            *before, last = engine.play(SCENARIO, timeout=0.5 if cause == "timed out" else 20)
            assert [type(fact) for fact in before] == [Started, Step]
            assert isinstance(last, EngineError)
            assert last.cause == cause
            assert message in last.message


def test_messages_carry_no_folders(tmp_path):
    with worker(tmp_path, "sys.exit('cannot open /some/where/else/file.py today')") as engine:
        [last] = engine.play(SCENARIO, timeout=20)
    assert last.message == "exit code 1: cannot open file.py today"


def test_a_raised_error_ends_the_log_and_not_the_process(tmp_path):
    raised = '{"fact":"engineerror","cause":"raised","message":"ValueError: x"}'
    with worker(tmp_path, f"say(*FACTS, {raised!r})") as engine:
        for _ in range(2):
            *_, last = engine.play(SCENARIO, timeout=20)
            assert last == EngineError(cause="raised", message="ValueError: x")


def test_an_engine_that_cannot_be_used_says_why(tmp_path):
    greeting = '{"type":"unusable","cause":"no torch","fix":"install it"}'
    with worker(tmp_path, "pass", greeting=greeting) as engine:
        with pytest.raises(SetupError, match="no torch") as error:
            engine.play(SCENARIO, timeout=20)
        assert error.value.fix == "install it"


def test_an_engine_that_dies_at_once_says_why(tmp_path):
    script = tmp_path / "worker.py"
    script.write_text("import sys\nsys.exit('half installed')\n")
    with EngineProcess(name="fake", command=[sys.executable, str(script)], env={}) as engine, \
            pytest.raises(SetupError, match="exit code 1: half installed"):  # fmt: skip
        engine.start()


def test_an_engine_that_never_greets_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(process, "START_TIMEOUT_S", 0.3)
    script = tmp_path / "worker.py"
    script.write_text("import time\ntime.sleep(60)\n")
    with EngineProcess(name="fake", command=[sys.executable, str(script)], env={}) as engine, \
            pytest.raises(SetupError, match=r"no end within 0\.3 s"):  # fmt: skip
        engine.start()


def test_facts_come_out_one_by_one_and_a_play_that_is_left_ends_the_process(tmp_path):
    with worker(tmp_path, "say(*FACTS); time.sleep(60)") as engine:
        facts = engine.stream(SCENARIO, timeout=20, backend="none")
        assert isinstance(next(facts), Started)
        assert isinstance(next(facts), Step)
        facts.close()
        # What is left of that scenario is not read as the next one's.
        assert [type(f) for f in engine.play(SCENARIO, timeout=0.5)] == [Started, Step, EngineError]


def test_another_thread_can_interrupt_a_play(tmp_path):
    with worker(tmp_path, "say(*FACTS); time.sleep(60)") as engine:
        engine.interrupt()  # nothing runs yet
        facts = engine.stream(SCENARIO, timeout=60, backend="none")
        next(facts)
        threading.Timer(0.2, engine.interrupt).start()
        *_, last = facts
        assert last == EngineError(cause="died", message="killed by SIGKILL")
