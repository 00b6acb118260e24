"""Symptoms: what is wrong in a log, in words that two plays can be compared by.

A symptom is ``<invariant>/<cause>``, as in ``FRESH-DECODE/other-request``, or ``engine error/...``
with how the engine failed: the exception's type and the engine's function that raised it, without
the line and the message, which a smaller scenario or another release changes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TypeAlias

from kvproof.kernels.engines.errors import EngineError as SetupError
from kvproof.model.facts import EngineError
from kvproof.model.monitor import Monitor
from kvproof.model.verdict import INVARIANTS, Violation

Symptom: TypeAlias = str

ENGINE_ERROR = "engine error"
TIMED_OUT: Symptom = f"{ENGINE_ERROR}/timed out"

_RAISED = re.compile(
    r"(?P<type>[\w.]+)(?:: .*?)?(?: at (?P<file>\S+):\d+ in (?P<function>\S+))?", re.DOTALL
)


def of_violation(violation: Violation) -> Symptom:
    """The symptom that a violation is."""
    return f"{violation.invariant}/{violation.cause}"


def of_error(error: EngineError) -> Symptom:
    """The symptom that an engine's failure is."""
    if error.cause == "timed out":
        return TIMED_OUT
    raised = _RAISED.fullmatch(error.message) if error.cause == "raised" else None
    if raised is None:
        # "killed by SIGSEGV: the last lines of what it printed"
        return f"{ENGINE_ERROR}/{error.cause}: {error.message.partition(':')[0]}"
    place = f" in {raised['function']} of {raised['file']}" if raised["file"] else ""
    return f"{ENGINE_ERROR}/{raised['type']}{place}"


def symptoms_of(monitor: Monitor) -> tuple[Symptom, ...]:
    """All symptoms of a log: an engine's failure first, then violations by severity."""
    errors = [of_error(monitor.engine_error)] if monitor.engine_error is not None else []
    return (*errors, *map(of_violation, monitor.by_severity()))


def shows(found: Iterable[Symptom], symptom: Symptom) -> bool:
    """Whether a symptom is among those found.

    A recorder leaves out where an engine raised, so its logs show an exception's type alone: that
    stands for the same type at any place.
    """
    anywhere = f"{symptom} in " if invariant_of(symptom) == ENGINE_ERROR else None
    return any(each == symptom or (anywhere and each.startswith(anywhere)) for each in found)


def invariant_of(symptom: Symptom) -> str:
    """The invariant that is broken, or ``engine error``."""
    return symptom.partition("/")[0]


def violations_of(monitor: Monitor) -> dict[Symptom, Violation]:
    """The violations of a log by symptom."""
    return {of_violation(violation): violation for violation in monitor.by_severity()}


def choose(found: Sequence[Symptom], wanted: str | None) -> Symptom | None:
    """The first symptom, or the first that ``wanted`` names whole or by its invariant."""
    return next((s for s in found if wanted in (None, s, invariant_of(s))), None)


def refuse_unknown(wanted: str | None) -> None:
    """Raise SetupError unless ``wanted`` is nothing, or names an invariant or a symptom."""
    known = [*INVARIANTS, ENGINE_ERROR]
    if wanted is not None and invariant_of(wanted) not in known:
        raise SetupError(f"no invariant {wanted!r}", fix=f"choose one of {', '.join(known)}")
