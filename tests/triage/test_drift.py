"""Drift: what is said of two releases, without starting them."""

from __future__ import annotations

import pytest

from kvproof.kernels.engines.errors import EngineError
from kvproof.kernels.engines.store import EngineStore
from kvproof.model.facts import Started
from kvproof.triage import drift as drift_module
from kvproof.triage.drift import SIZES, Change, Drift, compare_verdicts, drift


@pytest.fixture(scope="module")
def found() -> Drift:
    store = EngineStore()
    try:
        return drift(store.find("0.5.16"), store.find("0.5.23"), sources_only=True)
    except EngineError as error:
        pytest.skip(error.cause)


def of(found: Drift, kind: str) -> dict[str, Change]:
    return {change.name: change for change in found.changes if change.kind == kind}


def test_kernels_are_compared_by_name_and_code(found: Drift) -> None:
    kernels = of(found, "kernel")
    assert kernels["_scatter_loc_kernel"].what == "new"
    assert kernels["_swa_scatter_kernel"].what == "moved"
    assert kernels["get_target_cache_loc"].what == "gone"
    changed = kernels["create_flashinfer_kv_indices_triton"]
    assert changed.what == "changed"
    assert "it takes ENTRY_PAGE_SIZE" in changed.look
    assert "prove it anew" in changed.look
    assert "_fill_compress_tail_kernel" not in kernels
    assert found.same["kernel"] > 0


def test_signatures_are_told_in_words(found: Drift) -> None:
    signatures = of(found, "signature")
    assert "it takes req_to_token_pool" in signatures["allocator"].look
    assert signatures["SWA tree"].what == "gone"
    assert "no longer takes is_insert" in signatures["release"].look


def test_recorded_verdicts_say_that_they_are(found: Drift) -> None:
    assert "nothing was played" in found.verdicts
    verdicts = of(found, "verdict")
    mended = verdicts["registry: FRESH-DECODE"]
    assert (mended.before, mended.after) == ("violated (other-request)", "no violation recorded")
    assert "bisect" in verdicts["registry: USEFUL"].look
    # Its construction is gone, which says nothing of the invariant.
    assert not any(name.startswith("SWARadixCache") for name in verdicts)


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        ("violated (other-request)", "holds", "in the earlier one alone"),
        ("holds", "violated (leak)", "breaks in the later one"),
        ("violated (leak)", "unknown (vacuous: never reached: cap taken)", "more sequences"),
        ("unknown (vacuous: never reached: cap taken)", "holds", "more sequences"),
    ],
)
def test_what_was_not_reached_is_not_said_to_be_mended(before: str, after: str, says: str) -> None:
    key = ("registry", "FRESH-DECODE")
    [change] = compare_verdicts(
        {key: before}, {key: after}, shared={"registry"}, unlisted="not asked"
    )
    assert change is not None
    assert says in change.look


def test_what_was_not_looked_at_is_said(found: Drift) -> None:
    assert any("no engine started" in one for one in found.left_out)
    assert not of(found, "construction")
    assert all(formula.judgement == "not judged" for formula in found.doubts)


def test_the_same_release_has_not_drifted() -> None:
    try:
        engine = EngineStore().find("0.5.16")
    except EngineError as error:
        pytest.skip(error.cause)
    found = drift(engine, engine, sources_only=True)
    assert found.changes == ()
    assert all(found.same[kind] for kind in ("kernel", "signature", "docstring", "verdict"))


def test_what_a_construction_is_made_of() -> None:
    def started(tree: str, tail: int, **classes: str) -> dict[str, str]:
        fact = Started(
            target="t", backend="rules", geometry=SIZES, ring_stride=4, reprefill_tail=tail,
            classes={"tree": tree, **classes},
        )  # fmt: skip
        return dict(drift_module._made_of(fact))

    def changes(one: dict[str, str], other: dict[str, str]) -> dict[str, str]:
        pieces = drift_module._pieces("registry", one, other)
        return {change.name: change.what for change in pieces if change is not None}

    old = started("m.SWARadixCache", 4)
    assert changes(old, old) == {}
    assert changes(old, started("n.SWARadixCache", 4)) == {"registry: tree": "moved"}
    assert changes(old, started("m.UnifiedRadixCache", 0, core="c.Core")) == {
        "registry: tree": "changed", "registry: core": "new",
        "registry: tokens held back": "changed",
    }  # fmt: skip
