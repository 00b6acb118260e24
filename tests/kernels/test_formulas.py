"""Formulas of docstrings, and what the decode index kernel says of them."""

from __future__ import annotations

import pytest

from kvproof.kernels.capture import KernelProcess
from kvproof.kernels.catalogue import family_of
from kvproof.kernels.engines.errors import EngineError
from kvproof.kernels.engines.store import EngineStore
from kvproof.kernels.formulas import WITH_DRAFTS, evaluate, formulas_of, judge
from kvproof.kernels.signatures import parameters_of, signature_of

NUMBERS = WITH_DRAFTS[0]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("state_slot * ring_stride + pos % ring_stride", 13),
        ("state_slot * win + pos % win", 11),
        ("min(positions[t]+1, win)", 4),
        ("max(pos // 2, 1) - 1", 2),
        ("swa_pages + page_index", None),
        ("__import__('os').getcwd()", None),
        ("pos % (win - win)", None),
        ("pos ** pos", None),
        ("not a formula %", None),
    ],
)
def test_a_formula_is_made_of_a_launch_s_numbers(text: str, value: int | None) -> None:
    assert evaluate(text, NUMBERS) == value


def test_docstrings_are_held_against_the_kernel() -> None:
    """0.5.23 still writes a slot's rows with the window where the kernel has the stride."""
    try:
        engine = EngineStore().find("0.5.23")
    except EngineError:
        pytest.skip("0.5.23 is not installed")
    with KernelProcess(engine) as process:
        judged = judge(formulas_of(engine.root, family_of(engine.root)), process)
    by_text = {formula.text: formula for formula in judged if formula.subject}
    old = by_text["state_slot * win + pos % win"]
    assert old.judgement == "agrees without drafts"
    assert "it gives 11, the kernel 13" in old.says
    assert by_text["state_slot * ring_stride + pos % ring_stride"].judgement == "agrees"
    assert by_text["min(positions[t]+1, win)"].judgement == "agrees"


def test_signatures_are_read_from_source() -> None:
    try:
        root = EngineStore().find("0.5.16").root
    except EngineError:
        pytest.skip("0.5.16 is not installed")
    pool = "sglang.srt.mem_cache.memory_pool:ReqToTokenPool"
    assert parameters_of(root, pool) == (
        "size", "max_context_len", "device", "enable_memory_saver",
    )  # fmt: skip
    assert (signature_of(root, f"{pool}.free") or "").startswith("self")
    assert parameters_of(root, "sglang.srt.mem_cache.memory_pool:Nothing") is None
    assert signature_of(root, "sglang.no.such:thing") is None
