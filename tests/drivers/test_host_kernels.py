"""Where the kernels under test are compiled, the scheduler of a draft still runs on the CPU."""

import subprocess
import sys

import pytest

from kvproof.fuzz.constructions import REGISTRY
from kvproof.kernels.engines.environment import engine_env
from kvproof.kernels.engines.store import EngineStore
from kvproof.model.facts import Wrote, encode_fact
from kvproof.model.scenario import (
    Finish,
    Geometry,
    Piece,
    Prefill,
    Scenario,
    Submit,
    Verify,
    encode_scenario,
)

DRAFT = Scenario(
    geometry=Geometry(window=3, page_size=4, slots=2, pool_tokens=64, draft_tokens=3),
    operations=(
        Submit(request="A", prompt=(Piece("A", 6),)),
        Prefill(request="A"),
        Submit(request="B", prompt=(Piece("A", 6), Piece("B", 9))),
        Prefill(request="B"),
        Verify(accepted=2),
        Verify(accepted=3),
        Finish(request="A"),
        Verify(accepted=1),
        Finish(request="B"),
    ),
)

COMPILING = """
import sys
from kvproof.fuzz.drivers import wire, worker
from kvproof.kernels import backends
from kvproof.model.facts import encode_fact
from kvproof.model.scenario import decode_scenario

backends.missing = lambda backend: None  # as on a machine with a GPU; the rules name the rows
backends.label = lambda backend: backend
options = wire.Options(construction="registry", rocm_gate=True, kernels="cuda")
_, build = worker.load(options)
scenario = decode_scenario(sys.stdin.buffer.read())
for fact in build(wire.Play(scenario=scenario, backend="rules")).play(scenario):
    sys.stdout.buffer.write(b"fact " + encode_fact(fact))
"""


@pytest.mark.parametrize("release", ["0.5.15", "0.5.23"])
def test_a_draft_is_scheduled_alike_whether_kernels_are_compiled_or_not(start, release) -> None:
    process = start(release, construction=REGISTRY, rocm_gate=True)
    interpreted = process.play(DRAFT, backend="rules", timeout=60)
    child = subprocess.run(
        [sys.executable, "-c", COMPILING],
        input=encode_scenario(DRAFT),
        env=engine_env(EngineStore().find(release), interpret=False),
        capture_output=True,
        check=True,
    )
    compiling = [line[5:] for line in child.stdout.splitlines(True) if line.startswith(b"fact ")]
    assert compiling == [encode_fact(fact) for fact in interpreted]
    assert sum(isinstance(fact, Wrote) and fact.mode == "verify" for fact in interpreted) == 5
