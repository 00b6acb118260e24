"""Two engines that should do the same: where their logs of one scenario part.

Which page of several free ones an engine lends, and how it numbers its nodes, is its own affair.
What is compared is what a user could notice sooner or later: who is admitted with how much reuse,
what is refused, what the tree holds and which parts of it are locked or tombstones, and how much
memory is left.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from kvproof.model.facts import EngineError, Fact, Pools, Started, Step


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """Where two logs part.

    Attributes:
        step: of the scenario, counted from 0; -1 before the first.
        one: what the first of them says there.
        other: what the other says.
    """

    step: int
    one: str
    other: str

    @property
    def sentence(self) -> str:
        """Both sides in words."""
        where = f"step {self.step + 1}" if self.step >= 0 else "the start"
        return f"{where}: one says {self.one}; the other says {self.other}"


def difference(one: Sequence[Fact], other: Sequence[Fact]) -> Difference | None:
    """The first difference between two logs; None where there is none."""
    ours, theirs = list(_said(one)), list(_said(other))
    for (step, said), (_, heard) in zip(ours, theirs, strict=False):
        if said != heard:
            return Difference(step=step, one=said, other=heard)
    if len(ours) == len(theirs):
        return None
    step, said = max(ours, theirs, key=len)[min(len(ours), len(theirs))]
    if len(ours) > len(theirs):
        return Difference(step=step, one=said, other="nothing more")
    return Difference(step=step, one="nothing more", other=said)


def _said(log: Sequence[Fact]) -> Iterator[tuple[int, str]]:
    """What is compared of a log, line by line, each with its step."""
    step = -1
    for fact in log:
        match fact:
            case Started():
                continue
            case Step(index=index):
                step = index
            case Pools():
                yield from ((step, line) for line in _pools(fact))
            case EngineError(cause=cause, message=message):
                # Where in its code an engine raises is its own affair too.
                yield step, f"the engine {cause}: {message.partition(' at ')[0]}"
            case _:
                words = {
                    name: value
                    for name, value in msgspec.structs.asdict(fact).items()
                    if name not in {"locs", "rows", "seen"}
                }
                yield step, f"{type(fact).__name__.lower()} {words}"


def _pools(pools: Pools) -> Iterator[str]:
    yield f"{len(pools.free)} free pages, free slots {list(pools.free_slots)}, {pools.counters}"
    if pools.swa is not None:
        yield f"{len(pools.swa.free)} free SWA pages, {pools.swa.counters}"
    for holding in pools.holdings:
        yield (
            f"request {holding.request} holds slot {holding.slot}, {len(holding.locs)} tokens, "
            f"{holding.protected_len} of them the tree's, SWA given back up to "
            f"{holding.swa_evicted_len}"
        )
    paths: list[tuple[int, ...]] = []
    lines: list[tuple[tuple[int, ...], str]] = []
    for node in pools.nodes:
        path = (*(paths[node.parent] if node.parent >= 0 else ()), *node.tokens)
        paths.append(path)
        # How often, not every core says; nor whether a tombstone's window is locked.
        state = "tombstone" if node.tombstone else "window locked" if node.swa_lock else "window"
        lock = "locked" if node.full_lock else "unlocked"
        lines.append((path, f"a node of {len(node.tokens)} tokens, {lock}, {state}"))
    for path, words in sorted(lines):
        yield f"{words}, ends at {len(path)} with token {path[-1]}"
