"""The story of a violation in plain text: what, when, where, and how it came to that."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence

from msgspec import UNSET

from kvproof.fuzz.forward_story import spell_fact
from kvproof.model.facts import (
    Admitted,
    Advanced,
    Changed,
    Completed,
    Consumed,
    Fact,
    Launched,
    Planned,
    Read,
    Released,
    Skipped,
    Started,
    Step,
    Wrote,
)
from kvproof.model.forward import spelled_out
from kvproof.model.text import spell_operation
from kvproof.model.verdict import IN_WORDS, Departure, StaleRead, Violation

STALE = "<- STALE"
"""Marks a stale row; the console paints such lines."""

LUCKY = "<- not its own; the same token by luck"
"""Marks a row of an earlier occupant that happens to hold what the reader would have written."""

WIDTH = 100

_WIDEST = 60
"""Characters of an operation beyond which the column does not follow: a recorder's prompts."""

LONG_RING = 32
"""Rows of the longest ring that is drawn whole."""


def _span(positions: Sequence[int]) -> str:
    first, last = positions[0], positions[-1]
    return f"position {first}" if first == last else f"positions {first} to {last}"


def happened(facts: Sequence[Fact]) -> list[str]:
    """What the target did in a step, in few words."""
    words = []
    written: list[int] = []
    for fact in facts:
        match fact:
            case Admitted(slot=slot, matched_len=matched, prompt_len=total):
                words.append(f"slot {slot}, reuses {matched} of {total} tokens")
            case Wrote(request=str(name), positions=positions) if positions:
                written = [*positions]
                words.append(f"{name} writes {_span(written)}")
            case Planned() | Changed() | Consumed():
                words.append(spell_fact(fact))
            case Launched(launch=launch):
                words.append(f"launch {launch}")
            case Completed(launch=launch):
                words.append(f"then the result of launch {launch} is taken")
            case Released(request=name) if any(isinstance(each, Completed) for each in facts):
                words.append(f"{name} leaves")
            case Skipped(reason=reason):
                words.append(f"skipped: {reason}")
            case Advanced(request=name, computed_len=length, prefilling=True):
                words.append(f"{name} has computed {length}")
    for fact in facts:
        if isinstance(fact, Read) and fact.request and fact.mode != "prefill":
            words.append(
                f"{fact.request} reads positions {fact.first} to {fact.first + len(fact.rows) - 1}"
            )
    return words


def _operations(log: Iterable[Fact], breaks_at: int) -> list[str]:
    steps: list[tuple[Step, list[Fact]]] = []
    for fact in log:
        if isinstance(fact, Step):
            steps.append((fact, []))
        elif steps:
            steps[-1][1].append(fact)
    spelled = [spell_operation(step.operation) for step, _ in steps]
    width = max((len(text) for text in spelled if len(text) <= _WIDEST), default=0)
    lines = []
    expected = 0
    for (step, facts), text in zip(steps, spelled, strict=True):
        left_out = step.index - expected
        if left_out > 0:
            lines.append(f"  ...  {left_out} step{'s' * (left_out != 1)} left out")
        expected = step.index + 1
        mark = "   <- breaks here" if step.index == breaks_at else ""
        words = "; ".join(happened(facts))
        lines.append(f"  {step.index + 1:>3}  {text:<{width}}  {words}{mark}".rstrip())
    return lines


def draw_ring(evidence: StaleRead) -> list[str]:
    """The slot's ring as the stale read found it, a line a row; of a long one, what tells."""
    lines = ["   row  stands for  holds"]
    ring = evidence.ring
    left_out = 0
    for number, cell in enumerate(ring):
        # Of a long ring: the ends of each stretch that one request wrote, and the stale row.
        around = ring[max(number - 1, 0) : number + 2]
        if (
            len(ring) > LONG_RING
            and 0 < number < len(ring) - 1
            and cell.row != evidence.row
            and len({(c.cause, c.writer.occupancy if c.writer else None) for c in around}) == 1
        ):
            left_out += 1
            continue
        if left_out:
            lines.append(f"   ...  {left_out} rows like those before and after")
            left_out = 0
        stands = "-" if cell.stands_for is None else str(cell.stands_for)
        writer = cell.writer
        holds = (
            "nothing: nobody wrote it"
            if writer is None
            else f"position {writer.position} of {writer.request} "
            f"(occupancy {writer.occupancy}, step {writer.step + 1})"
        )
        pointer = ">" if cell.row == evidence.row else " "
        mark = {None: "", "same-content": f"  {LUCKY}"}.get(cell.cause, f"  {STALE}")
        lines.append(f" {pointer}{cell.row:>4}  {stands:>10}  {holds}{mark}")
    return lines


def chain(violation: Violation, window: int) -> list[str]:
    """How it came to the stale read: which hit, which tail, which recycled slot."""
    evidence = violation.evidence
    if evidence is None:
        return []
    reader = evidence.reader
    lines = []
    if reader.matched_len:
        by = (
            f", computed by {evidence.publisher.request} (occupancy {evidence.publisher.occupancy})"
            if evidence.publisher
            else ""
        )
        lines.append(
            f"{reader.request} hits: {reader.matched_len} of its {reader.prompt_len} tokens are in "
            f"the tree{by}. It does not compute them, so it writes no ring rows for them."
        )
        reach = max(0, reader.matched_len - (evidence.position - window + 1))
        lines.append(
            f"Its tail is {reader.tail} token{'s' * (reader.tail != 1)}. A query at position "
            f"{evidence.position} sees {window} positions, so its window reaches {reach} "
            f"position{'s' * (reach != 1)} into the reused prefix."
        )
    else:
        lines.append(f"{reader.request} reuses nothing: all rows of its window should be its own.")
    if evidence.previous is not None:
        previous = evidence.previous
        lines.append(
            f"{reader.request} was lent slot {reader.slot}, which {previous.request} (occupancy "
            f"{previous.occupancy}) held before. Ring rows belong to the slot, not to the tree: "
            f"what {previous.request} left there is what {reader.request} reads."
        )
    else:
        lines.append(f"{reader.request} is the first that was lent slot {reader.slot}.")
    return lines


def _wrapped(text: str, *, hang: str = "") -> str:
    return textwrap.fill(
        text, WIDTH, initial_indent="  ", subsequent_indent="  " + hang, break_on_hyphens=False
    )


def _sizes(started: Started) -> str:
    geometry = started.geometry
    words = f"Sizes: window {geometry.window}, page_size {geometry.page_size}, "
    if started.family == "translation":
        return (
            f"{words}slots {geometry.slots}, pool_tokens {geometry.pool_tokens}, swa_tokens "
            f"{geometry.swa_pool_tokens}, draft_tokens {geometry.draft_tokens}"
        )
    stride = started.ring_stride if started.ring_stride is not None else "none"
    return (
        f"{words}ring_stride {stride}, slots {geometry.slots}, pool_tokens "
        f"{geometry.pool_tokens}, reprefill_tail {started.reprefill_tail}"
    )


def _spread(departure: Departure) -> Iterator[str]:
    """What is known of a departure when it was found."""
    name = departure.request
    yield (
        f"Layer {departure.layer} is the first whose states depart from those of a run on an empty "
        f"cache, at position {departure.position}; {name} reused {departure.matched_len} tokens."
    )
    by_layer = ", ".join(f"{count} in layer {at}" for at, count in enumerate(departure.states, 1))
    yield f"States that depart so far: {by_layer}; the last at position {departure.last}."
    yield f"Pages of the tree that {name} published with such rows so far: {departure.pages}."
    if departure.heirs:
        yield f"Requests that reuse one of them: {', '.join(departure.heirs)}."


def tell(violation: Violation, log: Sequence[Fact]) -> str:
    """The whole story as text."""
    started = log[0]
    assert isinstance(started, Started)
    geometry = started.geometry
    log = [*spelled_out(log)]
    lines = [
        f"{violation.invariant} is broken on {started.target} (backend {started.backend})",
        "",
        _wrapped(f"In step {violation.step + 1}, {violation.sentence}."),
        "",
        _wrapped(f"{violation.invariant}: {IN_WORDS[violation.invariant]}."),
        "",
        _sizes(started),
        "",
        "Operations",
        *_operations(log, violation.step),
    ]
    evidence = violation.evidence
    if evidence is not None:
        lines += [
            "",
            f"Ring of slot {evidence.reader.slot} when {evidence.reader.request} at position "
            f"{evidence.position} reads it",
            *draw_ring(evidence),
            "",
            "How it came to that",
            *(
                _wrapped(f"{number}. {text}", hang="   ")
                for number, text in enumerate(chain(violation, geometry.window), 1)
            ),
        ]
    departure = violation.departure
    if departure is not UNSET:
        lines += ["", "How far it goes", *(_wrapped(line) for line in _spread(departure))]
    return "\n".join(lines) + "\n"
