"""Symptoms say what two plays have in common, and leave out what they need not."""

from __future__ import annotations

import pytest

from kvproof.kernels.engines.errors import EngineError as SetupError
from kvproof.model.facts import EngineError
from kvproof.model.monitor import check
from kvproof.triage.symptoms import choose, of_error, refuse_unknown, shows, symptoms_of

from .conftest import STALE, STALE_DECODE, played

PLACE = "engine error/KeyError in evict of sglang/srt/tree.py"


@pytest.mark.parametrize(
    ("cause", "message", "symptom"),
    [
        ("raised", "KeyError: 7 at sglang/srt/tree.py:12 in evict", PLACE),
        ("raised", "KeyError: 9: no at all at sglang/srt/tree.py:99 in evict", PLACE),
        ("raised", "KeyError:  at sglang/srt/tree.py:1 in evict", PLACE),
        ("raised", "torch.OutOfMemoryError: no", "engine error/torch.OutOfMemoryError"),
        ("raised", "KeyError", "engine error/KeyError"),
        ("died", "killed by SIGSEGV: line | line", "engine error/died: killed by SIGSEGV"),
        ("died", "exit code 1", "engine error/died: exit code 1"),
        ("timed out", "no end within 60 s", "engine error/timed out"),
    ],
)
def test_an_engine_s_failure(cause: str, message: str, symptom: str) -> None:
    error = EngineError(cause=cause, message=message)  # type: ignore[arg-type]
    assert of_error(error) == symptom


def test_a_log_s_symptoms_the_worst_first() -> None:
    found = symptoms_of(check(played(STALE)))
    assert found[0] == STALE_DECODE
    assert len(found) == len({*found}) > 1
    failed = [*played(STALE), EngineError(cause="raised", message="KeyError: 1")]
    assert symptoms_of(check(failed)) == ("engine error/KeyError", *found)


def test_one_is_chosen_whole_or_by_its_invariant() -> None:
    found = ("PARTITION/leak", "PARTITION/shared", "REFINES/row")
    assert choose(found, None) == "PARTITION/leak"
    assert choose(found, "PARTITION/shared") == "PARTITION/shared"
    assert choose(found, "REFINES") == "REFINES/row"
    assert choose(found, "USEFUL") is None
    assert choose((), None) is None


def test_a_failure_without_a_place_stands_for_any() -> None:
    assert shows([PLACE], PLACE)
    assert shows([PLACE], "engine error/KeyError")
    assert not shows([PLACE], "engine error/Key")
    assert not shows(["engine error/KeyError"], PLACE)
    assert shows([STALE_DECODE], STALE_DECODE)
    assert not shows([STALE_DECODE], "FRESH-DECODE")


def test_what_is_no_invariant_is_refused() -> None:
    for known in (None, "USEFUL", STALE_DECODE, "engine error", PLACE):
        refuse_unknown(known)
    with pytest.raises(SetupError, match="no invariant 'EXACTLY'"):
        refuse_unknown("EXACTLY")
