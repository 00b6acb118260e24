"""What changed between two releases, as far as it matters to their KV caches.

Sources are parsed, never imported; what has to run runs in the engines' own processes. Each change
comes with what a maintainer should look at. Nothing here is a verdict.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass
from typing import Literal, TypeAlias

import msgspec

from kvproof.fuzz.campaign import Campaign, TargetResult
from kvproof.fuzz.constructions import CONSTRUCTIONS
from kvproof.fuzz.expected import load_expected
from kvproof.fuzz.profiles import Profile
from kvproof.fuzz.targets import Target, targets_of
from kvproof.kernels.capture import KernelProcess, Order
from kvproof.kernels.catalogue import family_of
from kvproof.kernels.engines.store import Engine
from kvproof.kernels.family import Family
from kvproof.kernels.formulas import Formula, formulas_of, judge
from kvproof.kernels.inventory import TritonFunction, inventory
from kvproof.kernels.signatures import parameters, signature_of
from kvproof.kernels.ttir import strip_locations
from kvproof.model.facts import Started
from kvproof.model.scenario import Geometry, Scenario
from kvproof.model.verdict import Verdict

Kind: TypeAlias = Literal["kernel", "signature", "construction", "docstring", "verdict"]
What: TypeAlias = Literal["new", "gone", "moved", "changed"]

PLAY_TIMEOUT_S = 60.0
"""Seconds for a construction to say what it is made of; the engine's import is not part of it."""

SIZES = Geometry(window=4, page_size=8, slots=2, pool_tokens=64)
"""What constructions are asked at: a page holds a window, as the backends of all releases allow."""

Tell: TypeAlias = Callable[[str], None]


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is not as it was.

    Attributes:
        name: of the thing: a kernel, a role of the catalogue, a construction.
        before: of the earlier release; empty for what is new.
        after: of the later one; empty for what is gone.
        look: what a maintainer should look at.
    """

    kind: Kind
    what: What
    name: str
    before: str = ""
    after: str = ""
    look: str = ""


class Drift(msgspec.Struct, frozen=True, kw_only=True):
    """Two releases side by side.

    Attributes:
        before: engine.
        after: engine.
        changes: all that differs, in the order of `Kind`.
        same: how many things of each kind were compared and are the same.
        doubts: formulas of docstrings that a kernel of the later release does not compute.
        verdicts: where verdicts come from: the table of expected results, or a campaign.
        left_out: what was not compared, and why.
    """

    before: str
    after: str
    changes: tuple[Change, ...]
    same: dict[Kind, int]
    doubts: tuple[Formula, ...]
    verdicts: str
    left_out: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Side:
    """One of the two releases."""

    engine: Engine
    family: Family

    @classmethod
    def of(cls, engine: Engine) -> Side:
        """Raises EngineError for a layout that is not known."""
        return cls(engine=engine, family=family_of(engine.root))


class _Found:
    """Changes and counts as they come."""

    def __init__(self) -> None:
        self.changes: list[Change] = []
        self.same: dict[Kind, int] = {}
        self.left_out: list[str] = []

    def take(self, kind: Kind, changes: Iterator[Change | None]) -> None:
        """None stands for what is the same."""
        self.same.setdefault(kind, 0)
        for change in changes:
            if change is None:
                self.same[kind] += 1
            else:
                self.changes.append(change)


def drift(
    before: Engine, after: Engine, *, sources_only: bool = False, sequences: int = 0, seed: int = 0,
    tell: Tell = lambda _: None,
) -> Drift:  # fmt: skip
    """Compare two engines.

    Args:
        before: the earlier one.
        after: the later one.
        sources_only: start no engine: no constructions, no code of kernels, no docstring is judged.
        sequences: scenarios of a campaign on each construction of both; 0 for recorded verdicts.
        seed: of the campaigns.
        tell: told what begins.

    Raises:
        EngineError: an engine cannot be used.
    """
    sides = Side.of(before), Side.of(after)
    found = _Found()
    tell("comparing sources")
    kernels = list(_kernels(*sides))
    formulas = [formulas_of(side.engine.root, side.family) for side in sides]
    if sources_only:
        found.left_out += ["constructions, the code of kernels and docstrings: no engine started"]
    else:
        kernels = _with_code(kernels, sides, tell=tell, left_out=found.left_out)
        formulas = [
            _judged(side, each, tell=tell) for side, each in zip(sides, formulas, strict=True)
        ]
    found.take("kernel", iter(kernels))
    found.take("signature", _signatures(*sides, found.left_out))
    if not sources_only:
        found.take("construction", _constructions(*sides, tell=tell, left_out=found.left_out))
    found.take("docstring", _docstrings(*formulas))
    if sequences:
        judged = [_played(side, sequences, seed, tell=tell) for side in sides]
        unlisted = "not asked"
        source = f"a campaign of {sequences} sequences on each construction, seed {seed}"
    else:
        judged = [_recorded(side) for side in sides]
        unlisted = "no violation recorded"
        source = "the table of expected results (fuzz/expected.toml), nothing was played"
    names = [{target.construction for target in targets_of(side.engine)} for side in sides]
    shared = names[0] & names[1]
    found.take("verdict", compare_verdicts(*judged, shared=shared, unlisted=unlisted))
    return Drift(
        before=before.name,
        after=after.name,
        changes=tuple(found.changes),
        same=found.same,
        doubts=tuple(f for f in formulas[1] if f.judgement not in {"agrees", "not judged"}),
        verdicts=source,
        left_out=tuple(found.left_out),
    )


# Kernels


def _kernels(before: Side, after: Side) -> Iterator[Change | None]:
    """Triton functions of the catalogued modules, by name."""
    old, new = (_by_name(side) for side in (before, after))
    for name in sorted({*old, *new}):
        one, other = old.get(name), new.get(name)
        if one is None or other is None:
            yield _came_or_went(one, other, name)
        elif one.fingerprint != other.fingerprint:
            yield Change(
                kind="kernel", what="changed", name=name,
                before=one.signature, after=other.signature,
                look=_joined(_arguments(one.signature, other.signature),
                             _steps(other) or "kvproof has no theorem about it"),
            )  # fmt: skip
        elif one.place != other.place:
            yield Change(
                kind="kernel", what="moved", name=name, before=one.place, after=other.place
            )
        else:
            yield None


def _came_or_went(one: TritonFunction | None, other: TritonFunction | None, name: str) -> Change:
    if other is not None:
        return Change(
            kind="kernel", what="new", name=name, after=other.place,
            look=_steps(other) or "nothing here looks at it: if it names rows or locations, "
            "give it a rule in kernels/catalogue.py",
        )  # fmt: skip
    assert one is not None
    return Change(
        kind="kernel", what="gone", name=name, before=one.place,
        look="find what does its work now" if one.steps else "",
    )  # fmt: skip


def _by_name(side: Side) -> Mapping[str, TritonFunction]:
    found = inventory(side.engine.root, side.family)
    return {each.place.partition(":")[2]: each for each in found if each.fingerprint}


def _steps(function: TritonFunction) -> str:
    steps = ", ".join(function.steps)
    return f"it does `{steps}`: prove it anew with kvproof kernels prove" if steps else ""


def _with_code(
    changes: list[Change | None], sides: tuple[Side, Side], *, tell: Tell, left_out: list[str]
) -> list[Change | None]:
    """Changed kernels, of which those are told apart that compile to the same code as before."""
    names = {change.name for change in changes if change is not None and change.what == "changed"}
    if not names:
        return changes
    old, new = (_code(side, tell=tell, left_out=left_out) for side in sides)
    told: list[Change | None] = []
    for change in changes:
        if change is not None and change.what == "changed":
            one, other = (
                {recipe: ttir for (name, recipe), ttir in code.items() if name == change.name}
                for code in (old, new)
            )
            shared = one.keys() & other.keys()
            if shared and all(one[recipe] == other[recipe] for recipe in shared):
                where = ", ".join(sorted(shared))
                note = f"its source changed, and it compiles to the same code in {where}"
                change = msgspec.structs.replace(change, look=note)  # noqa: PLW2901
        told.append(change)
    return told


def _code(side: Side, *, tell: Tell, left_out: list[str]) -> Mapping[tuple[str, str], str]:
    """TTIR without source locations, by kernel and launch."""
    tell(f"{side.engine.name}: compiling its kernels")
    with KernelProcess(side.engine) as process:
        report = process.ask(Order(work="capture"))
    left_out += [
        f"the code of {recipe} on {side.engine.name}: {reason}"
        for recipe, reason in report.failed.items()
    ]
    return {(each.kernel, each.recipe): strip_locations(each.ttir) for each in report.captured}


# Signatures


def _signatures(before: Side, after: Side, left_out: list[str]) -> Iterator[Change | None]:
    """What the catalogue's parts and launchers are called with, by role."""
    old, new = _places(before), _places(after)
    for role in sorted({*old, *new}):
        if role not in old or role not in new:
            yield Change(
                kind="signature", what="new" if role in new else "gone", name=role,
                before=old.get(role, ""), after=new.get(role, ""),
                look="see what does its work there" if role in old else "",
            )  # fmt: skip
            continue
        one = signature_of(before.engine.root, old[role])
        other = signature_of(after.engine.root, new[role])
        if one is None or other is None:
            missing = [p for p, s in ((old[role], one), (new[role], other)) if s is None]
            left_out.append(f"the signature of {role}: {missing[0]} is not defined in its module")
        elif one != other:
            yield Change(
                kind="signature", what="changed", name=role, before=one, after=other,
                look=_arguments(one, other),
            )  # fmt: skip
        elif old[role] != new[role]:
            yield Change(
                kind="signature", what="moved", name=role, before=old[role], after=new[role]
            )
        else:
            yield None


def _places(side: Side) -> Mapping[str, str]:
    launchers = {f"launch: {step}": kernel.launch for step, kernel in side.family.kernels.items()}
    return {**side.family.parts, **launchers}


def _arguments(before: str, after: str) -> str:
    """What one signature takes and the other does not, in words; empty for the same."""
    if before == after:
        return ""
    one, other = _parameters(before), _parameters(after)
    lost = [name for name in one if name not in other]
    added = [name for name in other if name not in one]
    said = [f"it no longer takes {', '.join(lost)}"] * bool(lost)
    said += [f"it takes {', '.join(added)}"] * bool(added)
    return _joined(*said) or "types, defaults or the order of its arguments changed"


def _parameters(signature: str) -> tuple[str, ...]:
    [function] = ast.parse(f"def f({signature}): pass").body
    assert isinstance(function, ast.FunctionDef)
    return parameters(function)


def _joined(*words: str) -> str:
    return "; ".join(word for word in words if word)


# Constructions


def _constructions(
    before: Side, after: Side, *, tell: Tell, left_out: list[str]
) -> Iterator[Change | None]:
    old, new = ({t.construction: t for t in _caches(side)} for side in (before, after))
    for name in [*old, *(name for name in new if name not in old)]:
        if name not in old or name not in new:
            yield Change(
                kind="construction", what="new" if name in new else "gone", name=name,
                look="fuzz it: kvproof fuzz --engine "
                f"{after.engine.name}:{name}" if name in new else "",
            )  # fmt: skip
            continue
        made = []
        for target in (old[name], new[name]):
            tell(f"{target.name}: building it")
            started = _started(target)
            if isinstance(started, str):
                left_out.append(f"{target.name}: {started}")
            else:
                made.append(_made_of(started))
        if len(made) == 2:
            yield from _pieces(name, *made)


def _caches(side: Side) -> list[Target]:
    """Constructions with a cache that are not variants of another."""
    return [
        target
        for target in targets_of(side.engine)
        if target.family == "cache" and not CONSTRUCTIONS[target.construction].by_name
    ]


def _started(target: Target) -> Started | str:
    """What a construction says of itself, or why it says nothing."""
    with target.process() as process:
        facts = process.play(
            Scenario(geometry=SIZES, operations=()), timeout=PLAY_TIMEOUT_S, backend="rules"
        )
    if isinstance(facts[0], Started):
        return facts[0]
    return str(getattr(facts[0], "message", "it said nothing"))


_LOOK = {
    "tree": "another class decides what is reused: a cap or a lock that lives in one class is not "
    "in the other (theorem C5, PR #30339, #32759)",
    "tree core": "nodes, locks and tombstones are kept elsewhere: run kvproof fuzz",
    "tokens held back": "whether a decode of a hit is fresh hangs on it (theorems C3, C5)",
    "rows of a slot": "theorems R5 to R7 say how many rows a slot needs",
    "order of a verify": "writing before reading needs a row more (theorems R6, R7)",
    "tombstones end a match": "what is cached behind one can be lost to USEFUL (theorem P1)",
}


def _made_of(started: Started) -> Mapping[str, str]:
    return {
        **started.classes,
        "tokens held back": str(started.reprefill_tail),
        "rows of a slot": str(started.ring_stride or "no ring"),
        "order of a verify": started.verify_order,
        "tombstones end a match": "yes" if started.tombstones_gate else "no",
    }


def _pieces(name: str, one: Mapping[str, str], other: Mapping[str, str]) -> Iterator[Change | None]:
    for role in dict.fromkeys([*one, *other]):
        if one.get(role) == other.get(role):
            yield None
            continue
        # A class that only moved to another module does what it did, as far as its name tells.
        moved = one.get(role, "").rpartition(".")[2] == other.get(role, "").rpartition(".")[2]
        what: What = "new" if role not in one else "gone" if role not in other else "changed"
        yield Change(
            kind="construction",
            what="moved" if moved else what,
            name=f"{name}: {role}",
            before=one.get(role, ""),
            after=other.get(role, ""),
            look="" if moved else _LOOK.get(role, ""),
        )


# Docstrings


def _judged(side: Side, formulas: tuple[Formula, ...], *, tell: Tell) -> tuple[Formula, ...]:
    if not formulas:
        return formulas
    tell(f"{side.engine.name}: holding docstrings against kernels")
    with KernelProcess(side.engine) as process:
        return judge(formulas, process)


def _docstrings(before: tuple[Formula, ...], after: tuple[Formula, ...]) -> Iterator[Change | None]:
    """Formulas about rows and windows that are new, gone, or judged otherwise."""
    old, new = (
        {(f.place.rpartition(":")[2].rpartition(".")[2], f.text): f for f in each if f.subject}
        for each in (before, after)
    )
    for key in [*old, *(key for key in new if key not in old)]:
        one, other = old.get(key), new.get(key)
        if one is not None and other is not None and one.judgement == other.judgement:
            yield None
            continue
        what: What = "new" if one is None else "gone" if other is None else "changed"
        yield Change(
            kind="docstring", what=what, name=" ".join(key),
            before="" if one is None else one.judgement,
            after="" if other is None else other.judgement,
            look="" if other is None else other.says,
        )  # fmt: skip


# Verdicts

Verdicts: TypeAlias = Mapping[tuple[str, str], str]
"""By construction and invariant: what is known of it."""


def _recorded(side: Side) -> Verdicts:
    """Violations that the table expects of the constructions that a release has."""
    names = {target.name: target.construction for target in targets_of(side.engine)}
    return {
        (names[entry.target], entry.invariant): f"violated ({entry.cause})"
        for entry in load_expected()
        if entry.target in names
    }


def _played(side: Side, sequences: int, seed: int, *, tell: Tell) -> Verdicts:
    found: dict[tuple[str, str], str] = {}
    for target in _caches(side):
        tell(f"{target.name}: playing {sequences} sequences")
        with target.process() as process:
            profile = Profile(sequences=sequences)
            result = Campaign(target=target, process=process, profile=profile, seed=seed).run()
        found.update(_of_result(target, result))
    return found


def _of_result(target: Target, result: TargetResult) -> Verdicts:
    return {
        (target.construction, verdict.invariant): _in_words(verdict) for verdict in result.verdicts
    }


def _in_words(verdict: Verdict) -> str:
    why = verdict.violation.cause if verdict.violation else verdict.reason
    return f"{verdict.status} ({why})" if why else verdict.status


def compare_verdicts(
    before: Verdicts, after: Verdicts, *, shared: Set[str], unlisted: str
) -> Iterator[Change | None]:
    """What is known of the constructions that both have.

    Args:
        before: of the earlier release.
        after: of the later one.
        shared: constructions that both have; that one is gone is said elsewhere.
        unlisted: what it means that one side says nothing.
    """
    for key in dict.fromkeys([*before, *after]):
        if key[0] not in shared:
            continue
        one, other = before.get(key, unlisted), after.get(key, unlisted)
        if one == other:
            yield None
            continue
        broke = other.startswith("violated") and not one.startswith("violated")
        mended = one.startswith("violated") and not other.startswith(("violated", "unknown"))
        yield Change(
            kind="verdict", what="changed", name=": ".join(key), before=one, after=other,
            look="it breaks in the later one: kvproof bisect names the release" if broke
            else "it breaks in the earlier one alone: keep the case in the corpus" if mended
            else "not a change yet: play more sequences" if "unknown" in one + other
            else "",
        )  # fmt: skip
