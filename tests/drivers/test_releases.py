"""The drivers on the real releases: known results, and the same bytes every time."""

from __future__ import annotations

import random
import subprocess
import sys

import msgspec
import pytest

from kvproof.fuzz.constructions import REGISTRY, SWA_TREE
from kvproof.fuzz.drivers.process import EngineProcess
from kvproof.fuzz.drivers.wire import Options
from kvproof.fuzz.targets import find_targets
from kvproof.kernels.engines.environment import engine_command, engine_env
from kvproof.kernels.engines.errors import EngineError as SetupError
from kvproof.kernels.engines.store import EngineStore
from kvproof.model.facts import (
    Admitted,
    Ended,
    EngineError,
    Pools,
    Read,
    Started,
    Wrote,
    encode_fact,
)
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
)


def targets():
    """What is installed; without an engine there is nothing to drive."""
    try:
        return find_targets((), EngineStore())
    except SetupError:
        return ()


# The other constructions have a test file of their own.
INSTALLED = [
    (target.engine.version, target.construction)
    for target in targets()
    if target.construction in {REGISTRY, SWA_TREE}
]
PAGE_HOLDS_WINDOW = {
    (target.engine.version, target.construction)
    for target in targets()
    if target.sizes.page_holds_window
}
KNOWN = [
    ("0.5.15", "registry"),
    ("0.5.16", "registry"),
    ("0.5.16", "SWARadixCache"),
    ("0.5.23", "registry"),
]
UNCAPPED = {("0.5.15", "registry"), ("0.5.16", "registry")}
WINDOW = 4


def three_requests(*, page_size, tail, slots):
    """A leaves 16 tokens in the tree, B recycles its slot, C reuses them and adds a tail."""
    return Scenario(
        geometry=Geometry(window=WINDOW, page_size=page_size, slots=slots, pool_tokens=128),
        operations=(
            Submit(request="A", prompt=(Piece("a", 16),)), Prefill(request="A"),
            Finish(request="A"),
            Submit(request="B", prompt=(Piece("b", 16),)), Prefill(request="B"),
            Finish(request="B"),
            Submit(request="C", prompt=(Piece("a", 16), Piece("c", 16 + tail))),
            Prefill(request="C"), Decode(),
        ),
    )  # fmt: skip


def stale_reads(log, mode):
    """Queries of request C that saw a row which C did not write for that position."""
    return sum(
        isinstance(fact, Read)
        and (fact.request, fact.mode) == ("C", mode)
        and any(seen != (3, fact.first + at) for at, seen in enumerate(fact.seen))
        for fact in log
    )


def matched(log):
    return [fact.matched_len for fact in log if isinstance(fact, Admitted)][-1]


@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize("tail", [1, 2, 3, 4])
@pytest.mark.parametrize("target", KNOWN)
def test_three_requests(start, target, page_size, tail):
    """Uncapped, decode is stale exactly when the tail is shorter than W - 1; capped, never."""
    release, construction = target
    # 0.5.23 gives SWA memory back only while slots are free, and lends the last one again.
    slots = 8 if release == "0.5.23" else 1
    log = start(release, construction=construction).play(
        three_requests(page_size=page_size, tail=tail, slots=slots), timeout=60
    )
    assert isinstance(log[-1], Ended)
    assert log[0].ring_stride == WINDOW
    expected = {
        "0.5.15": 16,
        "0.5.16": 16 if construction == "registry" else (12 + tail) // page_size * page_size,
        "0.5.23": {1: (11, 11, 15, 16), 4: (12, 12, 12, 16)}[page_size][tail - 1],
    }[release]
    assert matched(log) == expected
    assert log[0].reprefill_tail == (0 if target in UNCAPPED else WINDOW)
    assert stale_reads(log, "decode") == (target in UNCAPPED and tail < WINDOW - 1)
    assert stale_reads(log, "prefill") == min(WINDOW - 1, 16 + tail - matched(log))


@pytest.mark.parametrize("release", ["0.5.15", "0.5.16", "0.5.23"])
def test_without_the_gate_there_is_no_ring_and_no_cap(start, release):
    log = start(release, rocm_gate=False).play(
        three_requests(page_size=4, tail=2, slots=8), timeout=60
    )
    assert isinstance(log[0], Started)
    assert (log[0].ring_stride, log[0].reprefill_tail, log[0].backend) == (None, 0, "none")
    assert matched(log) == 16
    assert not any(isinstance(fact, Read | Wrote) for fact in log)


def scenario(seed):
    """An arbitrary scenario of some thirty operations."""
    r = random.Random(seed)
    page_size, names, texts = r.choice([1, 2, 4]), "ABCD", "xyz"

    def prompt():
        first = r.randint(1, 14)
        return (Piece(r.choice(texts), first), Piece(r.choice(texts), first + r.randint(0, 8)))

    makers = [
        lambda: Submit(request=r.choice(names), prompt=prompt()),
        lambda: Prefill(request=r.choice(names), tokens=r.choice([None, None, 1, 3, 4, 8])),
        lambda: Decode(pad=r.choice([0, 0, 1])),
        lambda: Finish(request=r.choice(names)),
        lambda: Abort(request=r.choice(names)),
        lambda: Retract(request=r.choice(names)),
        lambda: Evict(tokens=r.randint(1, 10)),
        Flush,
    ]
    return Scenario(
        geometry=Geometry(
            window=r.randint(1, 5), page_size=page_size, slots=r.randint(1, 3),
            pool_tokens=page_size * r.choice([8, 16, 32]),
        ),
        operations=tuple(
            make() for make in r.choices(makers, weights=[6, 8, 6, 4, 1, 1, 1, 1], k=30)
        ),
    )  # fmt: skip


def accepted(log):
    """Whether the release played it: 0.5.20 to 0.5.22 assert a page that holds a window."""
    if isinstance(log[-1], EngineError):
        assert "new_prefix_len" in log[-1].message, log[-1]
        assert log[0].geometry.page_size < log[0].geometry.window
    return isinstance(log[-1], Ended)


def rows_only(log):
    """The log without what only a backend that moves payload knows."""
    return [
        msgspec.structs.replace(fact, seen=None) if isinstance(fact, Read)
        else msgspec.structs.replace(fact, backend="") if isinstance(fact, Started)
        else fact
        for fact in log
    ]  # fmt: skip


@pytest.mark.parametrize("target", INSTALLED, ids=":".join)
def test_the_real_kernels_do_what_the_rules_say(start, target):
    release, construction = target
    engine = start(release, construction=construction)
    for seed in range(20):
        real = engine.play(scenario(seed), timeout=60)
        rules = engine.play(scenario(seed), timeout=60, backend="rules")
        assert accepted(real) == accepted(rules)
        assert rows_only(real) == rows_only(rules), seed


@pytest.mark.parametrize("release", ["0.5.15", "0.5.16"])
def test_the_allocators_kernels_do_what_their_twins_do(start, release):
    kernels, twins = (start(release, allocator_twins=on) for on in (False, True))
    for seed in range(100, 115):
        one, other = (
            engine.play(scenario(seed), timeout=60, backend="none") for engine in (kernels, twins)
        )
        assert one == other, seed


@pytest.mark.parametrize("target", INSTALLED, ids=":".join)
def test_the_same_scenario_gives_the_same_bytes(start, target):
    """Across scenarios in one process, across processes, and across hash seeds."""
    release, construction = target
    options = Options(construction=construction)
    first = start(release, construction=construction)
    logs = [
        b"".join(map(encode_fact, first.play(scenario(seed), timeout=60))) for seed in (7, 8, 7)
    ]
    assert logs[0] == logs[2]
    env = engine_env(EngineStore().find(release), extra={"PYTHONHASHSEED": "4711"})
    command = engine_command("kvproof.fuzz.drivers.worker", msgspec.json.encode(options).decode())
    with EngineProcess(name=release, command=command, env=env) as second:
        again = [
            b"".join(map(encode_fact, second.play(scenario(seed), timeout=60))) for seed in (8, 7)
        ]
    assert again == [logs[1], logs[0]]


@pytest.mark.parametrize("target", INSTALLED, ids=":".join)
def test_snapshots_add_up(start, target):
    """Each page is free, in the tree or held by a request; the engine's counters agree."""
    release, construction = target
    engine = start(release, construction=construction)
    for seed in range(40):
        played = scenario(seed)
        size = played.geometry.page_size
        if target in PAGE_HOLDS_WINDOW and size < played.geometry.window:
            continue
        pages = set(range(1, played.geometry.pool_tokens // size + 1))
        for fact in engine.play(played, timeout=60, backend="none"):
            if isinstance(fact, Pools):
                tree = [loc // size for node in fact.nodes for loc in node.locs[::size]]
                private = [
                    loc // size
                    for held in fact.holdings
                    for loc in held.locs[held.protected_len :: size]
                ]
                assert sorted([*fact.free, *tree, *private]) == sorted(pages)
                assert fact.counters["available"] == len(fact.free) * size
                assert fact.counters["evictable"] + fact.counters["protected"] == len(tree) * size


def test_an_unknown_construction_is_refused(start):
    with pytest.raises(SetupError, match="no construction 'best'"):
        start("0.5.15", construction="best").start()


VERIFY = """
import random, sys
import msgspec, torch
from kvproof.kernels.engines import shims
shims.install(rocm_gate=True)
from kvproof.fuzz.drivers.forward import KernelForward
from kvproof.kernels.launch import Ring, RingKernels
from kvproof.model.facts import Read
from kvproof.model.forward import RuleForward
from kvproof.model.player import Lane

family = shims.engine_family()
kernels = RingKernels.of_family(family)
r = random.Random(3)
compared = 0
for window in (1, 4, 6):
    for draft in (2, 3):
        stride = window + draft - 1
        rows = torch.zeros(3 * stride, 16, dtype=torch.bfloat16)
        real = KernelForward(
            kernels=kernels, ring=Ring(rows=rows, window=window, stride=stride, pages=3 * stride)
        )
        rules = RuleForward(window=window, stride=stride, verify_order=family.verify_order)
        ends = {1: 0, 2: 0}
        for _ in range(12):
            kind = r.choice(["prefill", "decode", "verify", "verify"])
            lanes = [
                Lane(request="AB"[slot - 1], slot=slot, occupancy=slot, start=end,
                     end=end + {"prefill": r.randint(1, 7), "decode": 1, "verify": draft}[kind])
                for slot, end in ends.items()
            ]
            facts = [
                msgspec.structs.replace(fact, seen=None) if isinstance(fact, Read) else fact
                for fact in getattr(real, kind)(lanes)
            ]
            assert facts == getattr(rules, kind)(lanes), (window, draft, kind, lanes)
            compared += len(facts)
            for lane in lanes:
                accepted = r.randint(1, draft) if kind == "verify" else lane.end - lane.start
                ends[lane.slot] = lane.start + accepted
print(compared)
"""


@pytest.mark.parametrize("release", ["0.5.15", "0.5.16", "0.5.23"])
def test_verify_on_the_real_kernels_takes_the_release_s_order(release):
    try:
        engine = EngineStore().find(release)
    except SetupError as error:
        pytest.skip(str(error))
    found = subprocess.run(
        [sys.executable, "-P", "-c", VERIFY],
        env=engine_env(engine), check=True, capture_output=True, text=True,
    )  # fmt: skip
    assert int(found.stdout) > 100
