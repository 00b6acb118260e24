"""What the monitor and the chronicle keep does not grow with the log."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from types import FunctionType, ModuleType
from typing import Any

from kvproof.fuzz.chronicle import RECENT, Chronicle, facts_of
from kvproof.fuzz.story import STALE, tell
from kvproof.model.facts import LogReader, encode_fact
from kvproof.model.monitor import Monitor
from kvproof.model.scenario import Geometry
from kvproof.model.traffic import Traffic

GEOMETRY = Geometry(window=16, page_size=8, slots=8, pool_tokens=4096)


def retained(*roots: Any) -> int:
    """Bytes of everything that is reachable from the roots, code aside."""
    seen: set[int] = set()
    waiting: list[Any] = [*roots]
    size = 0
    while waiting:
        thing = waiting.pop()
        if id(thing) in seen or isinstance(thing, type | ModuleType | FunctionType):
            continue
        seen.add(id(thing))
        size += sys.getsizeof(thing)
        waiting += gc.get_referents(thing)
        if hasattr(thing, "__struct_fields__"):  # structs that the collector does not track
            waiting += [getattr(thing, name) for name in thing.__struct_fields__]
    return size


def test_a_hundred_thousand_requests_keep_no_more_than_ten_thousand() -> None:
    traffic = Traffic(geometry=GEOMETRY, requests=100_000, answer=2, reprefill_tail=0)
    monitor = Monitor()
    chronicle = Chronicle(monitor)
    sizes: list[int] = []
    admitted = 0
    for fact in traffic.log():
        chronicle.note(fact)
        monitor.feed(fact)
        if type(fact).__name__ == "Admitted":
            admitted += 1
            if admitted % 10_000 == 0:
                # At the same point of the cycle in which what is not needed is dropped.
                live = {lease.occupancy for lease in monitor.leases.values()}
                monitor.ghost.forget(live)
                sizes.append(retained(monitor))
    assert admitted == 100_000
    assert max(sizes) < 1.2 * sizes[0], sizes
    assert retained(chronicle, monitor) < 10_000_000
    assert monitor.ended
    assert monitor.counts["FRESH-DECODE", "other-request"] > 100_000


def blocks(log: bytes, size: int) -> Iterator[bytes]:
    for at in range(0, len(log), size):
        yield log[at : at + size]


def test_the_story_of_a_long_log_names_who_the_evidence_names() -> None:
    traffic = Traffic(geometry=GEOMETRY, requests=400, answer=40, reprefill_tail=0)
    log = b"".join(map(encode_fact, traffic.log()))
    monitor = Monitor()
    chronicle = Chronicle(monitor)
    stories = {}
    for fact in LogReader(blocks(log, 1000)):
        chronicle.note(fact)
        monitor.feed(fact)
        for key, violation in monitor.violations.items():
            if key not in stories:
                stories[key] = chronicle.steps_of(violation)
    worst = monitor.worst()
    assert worst is not None
    assert worst.evidence is not None
    assert worst.evidence.writer is not None
    assert worst.step > RECENT
    story = tell(worst, facts_of(stories[worst.invariant, worst.cause], worst))
    assert len(story.splitlines()) < 60
    for request in (worst.evidence.reader.request, worst.evidence.writer.request):
        assert f"submit {request}: " in story
        assert f"prefill {request} " in story
    assert "steps left out" in story
    assert "<- breaks here" in story
    assert STALE in story
