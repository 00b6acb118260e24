"""What the reader of the Rust tree keeps is what a new reader would read."""

from __future__ import annotations

import subprocess
import sys

import msgspec
import pytest

from kvproof.kernels.engines.environment import engine_env
from kvproof.kernels.engines.errors import EngineError
from kvproof.kernels.engines.store import EngineStore
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
)  # fmt: skip

COMPARE = """
import sys

from kvproof.fuzz.constructions import PAGED_SWA
from kvproof.fuzz.drivers.wire import Options, Play
from kvproof.fuzz.drivers.worker import load
from kvproof.model.facts import Step
from kvproof.model.scenario import decode_scenario

_, build = load(Options(construction=PAGED_SWA))

from kvproof.fuzz.drivers import rust_tree

if sys.argv[1] == "deaf":  # seeded fault: no call counts as a change
    from sglang.srt.mem_cache.rust_tree_core.extension import bindings

    rust_tree._QUESTIONS = frozenset(dir(bindings.RustUnifiedTreeCoreBinding))

scenario = decode_scenario(sys.stdin.buffer.read())
player = build(Play(scenario=scenario, backend="none"))
engine = player.engine


def new_reader():
    return rust_tree.RustTreeReader(
        engine._core, bigram=engine._bigram_keys(), slides=True, has_swa_pool=True
    )


def differs():
    return engine._reader.tree(engine._computed) != new_reader().tree(engine._computed)


steps = [fact.index for fact in player.play(scenario) if isinstance(fact, Step) and differs()]
print("differs" if steps else "same")

# A walk that is not along the nodes is no tree.
reader = new_reader()
reader.tree(engine._computed)
seen = reader._seen
assert rust_tree._hang(seen)
for told in (
    seen._replace(follows=seen.follows[::-1]),
    seen._replace(follows=[rust_tree._UNKNOWN, *seen.follows[1:]]),
    seen._replace(positions=[position + 1 for position in seen.positions]),
    seen._replace(locs=seen.locs[::-1]),
    seen._replace(locs=seen.locs[:1], positions=seen.positions[:1], follows=seen.follows[:1]),
):
    try:
        rust_tree._hang(told)
        print("taken")
    except rust_tree.TreeReadError:
        print("refused")

# The tree's tensors are shared: what is written into one is no call of the core.
reader = new_reader()
tree = reader.tree(engine._computed)
[root_child, *_] = tree.index_of
tensor = engine._core.get_component_device_value(root_child, rust_tree.ComponentType.FULL)
tensor[0] = 0
try:
    print("seen" if reader.tree(engine._computed).nodes != tree.nodes else "missed")
except (KeyError, rust_tree.TreeReadError):
    print("seen")
"""


def operations() -> tuple[Operation, ...]:
    """Requests that share prefixes, split nodes, are locked, evicted and recovered."""
    found: list[Operation] = []
    for turn in range(24):
        name = f"r{turn}"
        prompt = (Piece(text="shared", until=4 * (turn % 4)), Piece(text="ab"[turn % 2], until=17))
        found += [Submit(request=name, prompt=prompt), Prefill(request=name, tokens=8)]
        found += [Prefill(request=name), Decode(), Decode()]
        if turn % 5 == 4:
            found += [Retract(request=name), Prefill(request=name)]
        if turn % 2:
            found += [Finish(request=name), Finish(request=f"r{turn - 1}")]
        if turn % 3 == 2:
            found.append(Evict(tokens=8, swa_tokens=4))
    return tuple(found)


@pytest.mark.parametrize(("ears", "found"), [("sound", "same"), ("deaf", "differs")])
def test_what_is_kept_is_what_a_new_reader_reads(ears, found):
    try:
        engine = EngineStore().find("0.5.23")
    except EngineError as error:
        pytest.skip(str(error))
    geometry = Geometry(window=6, page_size=4, slots=2, pool_tokens=96, swa_tokens=64)
    scenario = Scenario(geometry=geometry, operations=operations())
    child = subprocess.run(
        [sys.executable, "-c", COMPARE, ears], env=engine_env(engine), check=False,
        input=msgspec.json.encode(scenario), capture_output=True,
    )  # fmt: skip
    assert child.returncode == 0, child.stderr.decode()[-2000:]
    assert child.stdout.decode().split()[-7:] == [found, *["refused"] * 5, "seen"]
