"""Everything that is said of a release's kernels: proved, compiled, compared, mutated."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

import msgspec

from kvproof.kernels.backends import KernelBackend
from kvproof.kernels.capture import (
    Compiled,
    Edit,
    KernelProcess,
    Launch,
    Mutated,
    Order,
    Report,
)
from kvproof.kernels.catalogue import FAMILIES, family_of
from kvproof.kernels.engines.errors import EngineError
from kvproof.kernels.evaluate import Comparison, compare, difference, predict
from kvproof.kernels.inventory import TritonFunction, inventory
from kvproof.kernels.symbolic import Bits, Run, execute
from kvproof.kernels.ttir import UnknownCodeError, parse
from kvproof.kernels.width import Breaking, breaking, of_true_size
from kvproof.proofs.kernels import Code, theorems
from kvproof.proofs.prove import TheoremResult, prove
from kvproof.proofs.solver import Prover
from kvproof.proofs.theorem import Enumeration, Obligation

Tell = Callable[[str], None]


class KernelNote(msgspec.Struct, frozen=True, kw_only=True):
    """One specialisation of a kernel, as the release launches it.

    Attributes:
        abstained: what of its code is not modelled; empty if it was proved from.
        compiled: by target.
    """

    name: str
    source: str
    signature: dict[str, str]
    constants: dict[str, int | float | bool | str | None]
    abstained: str = ""
    compiled: tuple[Compiled, ...] = ()


class MutantResult(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a mutant.

    Attributes:
        killed_by: ``theorem: obligation`` of the first that turned out otherwise; empty if none.
        seconds: of the proofs up to that.
        launches: random launches up to the first that stores something else than the original
            did, by the mutant's model; None if none of ``tried`` does.
        launch_seconds: that these launches took in the interpreter.
    """

    edit: Edit
    killed_by: str = ""
    why: str = ""
    seconds: float = 0.0
    launches: int | None = None
    launch_seconds: float | None = None
    tried: int = 0


class KernelReport(msgspec.Struct, frozen=True, kw_only=True):
    """A release's kernels.

    Attributes:
        changes: Triton functions that are not as recorded for the family; see `inventory`.
        backend: where the launches ran that the models were compared with.
    """

    release: str
    family: str
    backend: KernelBackend = "interpreter"
    changes: tuple[TritonFunction, ...]
    kernels: tuple[KernelNote, ...]
    theorems: tuple[TheoremResult, ...]
    widths: tuple[Breaking, ...]
    comparisons: tuple[Comparison, ...]
    mutants: tuple[MutantResult, ...]
    seconds: float

    @property
    def good(self) -> bool:
        """All as expected: proved, understood, compiled, like the real kernels, mutants killed."""
        return (
            all(theorem.verdict == "as expected" for theorem in self.theorems)
            and not any(note.abstained for note in self.kernels)
            and not any(one.error for note in self.kernels for one in note.compiled)
            and not any(comparison.difference for comparison in self.comparisons)
            and all(mutant.killed_by for mutant in self.mutants)
        )


def examine(
    process: KernelProcess,
    *,
    prover: Prover,
    targets: Sequence[str] = (),
    launches: int = 0,
    backend: KernelBackend = "interpreter",
    edits: Sequence[Edit] = (),
    tell: Tell = lambda _: None,
) -> KernelReport:
    """Prove what a release's kernels do.

    Args:
        process: of the engine.
        prover: decides the claims.
        targets: GPUs to compile for.
        launches: random launches of each recipe to compare the models with.
        backend: where these run. On a GPU those are left out that are given addresses of memory.
        edits: mutants that must be noticed.
        tell: called with what is being done.

    Raises:
        EngineError: the engine gives no kernels.
    """
    started = time.perf_counter()
    engine = process.engine
    tell(f"{engine.name}: compiling its kernels")
    report = process.ask(Order(work="capture", targets=tuple(targets), edits=tuple(edits)))
    code = code_of(process, report)
    results = []
    for theorem in theorems(code):
        tell(f"{engine.name}: {theorem.identifier} {theorem.title}")
        try:
            results.append(prove(theorem, prover))
        except UnknownCodeError as error:
            results.append(
                TheoremResult(
                    identifier=theorem.identifier, title=theorem.title,
                    statement=theorem.statement, scope=theorem.scope, source=theorem.source,
                    status=f"abstained: {error}", verdict="unknown", seconds=0.0, obligations=(),
                )
            )  # fmt: skip
    tell(f"{engine.name}: widths")
    widths = tuple(
        each
        for name, run in code.shipped.items()
        if of_true_size(name)
        for each in breaking(name, run, code.bits[name])
    )
    comparisons: tuple[Comparison, ...] = ()
    seen: tuple[Launch, ...] = ()
    if launches:
        tell(f"{engine.name}: {launches} launches of each on {backend}")
        order = Order(work="run", seeds=tuple(range(launches)), backend=backend)
        seen = process.ask(order).launches
        comparisons = tuple(
            compare(name, run, launched)
            for name, run in code.runs.items()
            if (launched := list(_of(name, seen)))
        )
    mutants = []
    for edit in edits:
        found = [one for one in report.mutated if one.edit == edit]
        if found:  # the release has the kernel
            tell(f"{engine.name}: mutant {edit.text} -> {edit.by}")
            mutants.append(judge(code, edit, found, prover, seen))
    return KernelReport(
        release=engine.name,
        family=report.family,
        backend=backend,
        changes=tuple(
            each for each in inventory(engine.root, family_of(engine.root)) if each.change
        ),
        kernels=tuple(
            KernelNote(name=name, source="", signature={}, constants={}, abstained=why)
            for name, why in code.unknown.items()
            if name not in {one.name for one in report.captured}
        )
        + tuple(
            KernelNote(
                name=one.name, source=one.source, signature=one.signature,
                constants=one.constants, abstained=code.unknown.get(one.name, ""),
                compiled=one.compiled,
            )
            for one in report.captured
        ),
        theorems=tuple(results),
        widths=widths,
        comparisons=comparisons,
        mutants=tuple(mutants),
        seconds=time.perf_counter() - started,
    )  # fmt: skip


def code_of(process: KernelProcess, report: Report) -> Code:
    """A release's kernels as symbolic runs, and what was not understood."""
    runs: dict[str, Run] = {}
    shipped: dict[str, Run] = {}
    bits: dict[str, Run] = {}
    unknown: dict[str, str] = {}
    for one in report.captured:
        try:
            bits[one.name] = execute(parse(one.ttir), Bits())
            shipped[one.name] = execute(parse(one.ttir))
            runs[one.name] = execute(parse(one.parametric))
        except UnknownCodeError as error:
            shipped.pop(one.name, None)
            unknown[one.name] = str(error)

    [family] = [one for one in FAMILIES if one.name == report.family]
    for recipe, why in report.failed.items():
        step = recipe if recipe in family.kernels else recipe.partition(",")[0]
        for place in family.kernels[step].jit:
            unknown[f"{place.partition(':')[2]} [{recipe}]"] = f"its wrapper failed: {why}"

    def play(wrapper: str, numbers: dict[str, list[int]]) -> list[int] | str:
        try:
            order = Order(work="play", wrapper=wrapper, numbers=numbers)
            return process.ask(order).numbers
        except EngineError as error:
            return error.cause

    return Code(
        release=process.engine.name, family=report.family, runs=runs, shipped=shipped, bits=bits,
        unknown=unknown, play=play,
    )  # fmt: skip


def _of(name: str, launches: Sequence[Launch]) -> Iterator[Launch]:
    return (one for one in launches if name == f"{one.kernel} [{one.recipe}]")


def judge(
    code: Code, edit: Edit, found: Sequence[Mutated], prover: Prover, seen: Sequence[Launch]
) -> MutantResult:
    """Whether a theorem notices a mutant, and whether random launches do.

    An unknown and an abstention are no kills.
    """
    started = time.perf_counter()
    runs: dict[str, Run] = {}
    why, killed = [], ""
    for one in found:
        name = f"{edit.kernel} [{one.recipe}]"
        try:
            if one.error:
                raise UnknownCodeError(one.error)
            runs[name] = execute(parse(one.parametric))
            mutated = code.with_kernel(name, runs[name], execute(parse(one.ttir)))
            killed = killed or _killer(code, mutated, name, prover)
        except UnknownCodeError as error:
            why.append(f"{name}: {error}")
    seconds = time.perf_counter() - started
    fuzzed = [_fuzzed(run, list(_of(name, seen))) for name, run in runs.items()]
    launches, fuzz_seconds = min(
        (each for each in fuzzed if each is not None), default=(None, None)
    )
    return MutantResult(
        edit=edit,
        killed_by=killed,
        why="; ".join(why),
        seconds=seconds,
        launches=launches,
        launch_seconds=fuzz_seconds,
        tried=sum(one.kernel == edit.kernel for one in seen),
    )


def _fuzzed(run: Run, launches: Sequence[Launch]) -> tuple[int, float] | None:
    """Launches, and what they take in the interpreter, up to the first that differs."""
    seconds = 0.0
    for number, launch in enumerate(launches, start=1):
        seconds += launch.seconds
        if difference(predict(run, launch), launch):
            return number, seconds
    return None


def _killer(code: Code, mutated: Code, name: str, prover: Prover) -> str:
    """The first obligation about a kernel that turns out otherwise."""
    kernel = name.partition(" ")[0]
    for before, after in zip(theorems(code), theorems(mutated), strict=True):
        of_all = before.source.startswith("all kernels")
        if not of_all and kernel not in before.source:
            continue
        for one, other in zip(before.obligations, after.obligations, strict=True):
            if isinstance(one, Enumeration) or isinstance(other, Enumeration):
                continue
            if of_all and one.name != name:
                continue
            status = _flipped(one, other, prover)
            if status:
                return f"{before.identifier}: {one.name} is {status}"
    return ""


def _flipped(one: Obligation, other: Obligation, prover: Prover) -> str:
    original, claim = one.claim(), other.claim()
    facts = [*original.given, original.then], [*claim.given, claim.then]
    if len(facts[0]) == len(facts[1]) and all(
        a.eq(b) if hasattr(a, "eq") and hasattr(b, "eq") else a is b
        for a, b in zip(*facts, strict=True)
    ):
        return ""
    status = prover.decide(claim).status
    return status if status not in (other.expected, "unknown") else ""
