"""Coverage marks: what a campaign counts for each numbered rule of the specification.

A rule is tied to the witnesses that say it was at work in a scenario, or to the reason why a
campaign cannot count it. The other witnesses mark branches of the engines that no single rule
stands for. `tests/fuzz/test_marks.py` fails where a rule has no mark, a mark names no rule, or
neither has a test.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from importlib import resources
from typing import Literal, get_args

import msgspec

from kvproof.model.witness import Witness

RULE = re.compile(r"([A-Z]+-\d+)\. (.*?[.:])(?:\s|$)", re.DOTALL)
"""How a docstring of a rule begins."""


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """A numbered rule: where it is, and its first sentence."""

    number: str
    where: str
    words: str


def rules() -> tuple[Rule, ...]:
    """The rules of `kvproof.spec`, in the order of its modules."""
    found: list[Rule] = []
    for source in sorted(resources.files("kvproof.spec").iterdir(), key=lambda each: each.name):
        if not source.name.endswith(".py"):
            continue
        for node in ast.parse(source.read_text(encoding="utf-8")).body:
            text = _documents(node)
            if text is not None and (match := RULE.match(text)):
                number, words = match.groups()
                found.append(
                    Rule(
                        number=number,
                        where=f"spec/{source.name}:{node.lineno}",
                        words=" ".join(words.split()),
                    )
                )
    return tuple(found)


def _documents(node: ast.stmt) -> str | None:
    """The docstring of a function, or a string that stands alone behind what it documents."""
    if isinstance(node, ast.FunctionDef):
        return ast.get_docstring(node)
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return node.value.value if isinstance(node.value.value, str) else None
    return None


MARKS: Mapping[str, tuple[Witness, ...]] = {
    "RING-1": ("ring wrapped", "wrap inside a verify"),
    "RING-2": ("ring read by decode", "ring read by prefill"),
    "RING-3": ("ring wrapped", "rejected row rewritten"),
    "RING-4": ("padded row",),
    "RING-5": ("foreign row in window",),
    "WINDOW-1": ("ring read by decode", "ring read by prefill"),
    "WINDOW-2": ("ring read by decode",),
    "WINDOW-3": ("ring read by prefill",),
    "WINDOW-4": ("chunk boundary in window",),
    "WINDOW-5": ("ring read by prefill",),
    "WINDOW-6": ("ring read by decode",),
    "WINDOW-7": ("verify",),
    "PAGE-1": ("prefix hit",),
    "PAGE-2": ("SWA page given back",),
    "PAGE-3": ("page evicted",),
    "PAGE-4": ("SWA page given back",),
    "PAGE-5": ("over-allocation released",),
    "RADIX-1": ("prefix hit",),
    "RADIX-2": ("prefix hit",),
    "RADIX-3": ("tombstone made",),
    "RADIX-4": ("prefix hit",),
    "RADIX-5": ("page evicted",),
    "RADIX-6": ("node split under a lock", "window lock given up"),
    "RADIX-7": ("tombstone recovered",),
    "RADIX-8": ("tombstone made",),
    "RADIX-9": ("verify",),
    "RADIX-10": ("tombstone recovered",),
    "RADIX-11": ("tombstone recovered",),
    "RADIX-12": ("verify",),
    "CAP-1": ("prefix hit",),
    "CAP-2": ("cap would bind", "cap bound"),
    "CAP-3": ("cap bound",),
    "CAP-4": ("foreign row in window",),
    "CAP-5": ("foreign row in window",),
    "CAP-6": ("cap bound",),
    "CAP-7": ("verify", "cap bound"),
    "CURSOR-1": ("SWA page given back",),
    "CURSOR-2": ("SWA page given back",),
    "CURSOR-3": ("window lock given up",),
    "TRANSLATE-1": ("padded row translated",),
    "TRANSLATE-2": ("small SWA pool",),
    "TRANSLATE-3": ("plan taken",),
    "TRANSLATE-4": (
        "translated at use: idle", "translated at use: no plan", "translated at use: other length",
    ),
    "TRANSLATE-7": ("replay after a larger batch",),
    "STREAM-1": ("step in flight", "lent again in flight"),
    "STREAM-2": ("table rewritten in flight",),
    "STREAM-3": ("freed in flight",),
    "CHUNK-1": ("chunk boundary in window",),
    "VERIFY-1": ("draft rejected", "rejected row rewritten"),
    "PUBLISH-1": ("prefix hit",),
    "SLOT-1": ("padded row",),
    "SLOT-2": ("foreign row in window",),
    "SLOT-3": ("foreign row in window",),
    "SLOT-4": ("foreign row in window",),
}  # fmt: skip
"""Witnesses that count a rule at work, one of them at least in every full campaign."""

_LAYERS = "what layers compute is `kvproof layers`' subject: a campaign's scenarios run none"

UNCOUNTED: Mapping[str, str] = {
    "RING-6": "no release rewinds a ring: theorem R10 alone speaks of it",
    "WINDOW-8": "no release leaves ring rows out: theorem X2 alone speaks of it",
    "CAP-8": "no release rebuilds a window: `kvproof policy` plays such policies on the model",
    "EXACT-1": _LAYERS,
    "EXACT-2": _LAYERS,
    "EXACT-3": _LAYERS,
    "EXACT-4": _LAYERS,
    "EXACT-5": _LAYERS,
    "TRANSLATE-5": "what a wrong integer type reads: theorem T6; a campaign sees the type itself",
    "TRANSLATE-6": "what a wrong integer type reads: theorem T6; a campaign sees the type itself",
    "STREAM-4": "a length that no release may use: the fault 'window by scheduled length' does",
}
"""Rules that no campaign counts, and why."""

BRANCHES: Mapping[Witness, str] = {
    "decoded after its end": "with overlap, a request's last step is launched before its end is "
    "known",
    "verify in flight": "a verify is launched by lengths that the host does not know yet",
    "verified after its end": "the same of a request whose end the host does not know yet",
    "rebound to as many": "a caller gives a planned forward other locations (dsv4-any alone)",
    "remapped after the plan": "a caller maps a planned forward's locations anew (dsv4-any alone)",
    "replay after a larger batch": "a CUDA graph runs for fewer requests than the time before",
    "multi-step draft": "the steps of a draft are planned together",
    "loaded back": "a match goes on in a host pool (the `hicache` constructions alone)",
    "page freed behind a window": "a translation target gives pages back under way",
}
"""Branches of the drivers and engines that no single rule stands for."""


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """A rule or a branch, and what counts it.

    Attributes:
        kind: a numbered rule, or a branch of an engine.
        counts: of each witness in a run, all targets together; empty without a run.
        uncounted: why no campaign counts it.
    """

    kind: Literal["rule", "branch"]
    name: str
    where: str
    words: str
    witnesses: tuple[Witness, ...]
    counts: dict[str, int] = {}
    uncounted: str = ""

    @property
    def reached(self) -> bool:
        """Whether the run has counted it, if a run can."""
        return bool(self.uncounted) or any(self.counts.values())


def marks(counts: Mapping[str, int] | None = None) -> tuple[Mark, ...]:
    """All marks, with a run's counts of witnesses where there is one."""
    found = [
        Mark(
            kind="rule", name=rule.number, where=rule.where, words=rule.words,
            witnesses=MARKS.get(rule.number, ()), uncounted=UNCOUNTED.get(rule.number, ""),
        )
        for rule in rules()
    ]  # fmt: skip
    found += [
        Mark(kind="branch", name=witness, where="", words=words, witnesses=(witness,))
        for witness, words in BRANCHES.items()
    ]
    if counts is None:
        return tuple(found)
    return tuple(
        msgspec.structs.replace(
            mark, counts={witness: counts.get(witness, 0) for witness in mark.witnesses}
        )
        for mark in found
    )


def unmarked() -> tuple[Witness, ...]:
    """Witnesses that no rule and no branch is tied to."""
    tied = {witness for witnesses in MARKS.values() for witness in witnesses} | set(BRANCHES)
    every = [name for kind in get_args(Witness) for name in (get_args(kind) or (kind,))]
    return tuple(name for name in every if name not in tied)
