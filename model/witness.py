"""Witnesses: interesting states that a run must have reached to mean anything."""

from __future__ import annotations

from typing import Literal, TypeAlias

Witness: TypeAlias = Literal[
    "prefix hit", "cap would bind", "cap bound", "ring read by decode", "ring read by prefill",
    "ring wrapped", "foreign row in window", "chunk boundary in window", "page evicted",
    "padded row",
]  # fmt: skip

WITNESSES: dict[Witness, str] = {
    "prefix hit": "a request reused a cached prefix",
    "cap would bind": "a cached prefix reached into the request's last window",
    "ring read by decode": "a decode query read ring rows",
    "ring read by prefill": "a prefill query read ring rows",
    "ring wrapped": "a position at or past the stride was written",
    "foreign row in window": "a recycled slot held another occupant's row in the reader's window",
    "chunk boundary in window": "a chunk's query looked back over a chunk boundary",
    "page evicted": "the tree gave back a page",
    "padded row": "a padded row of a batch wrote and read",
}
"""Required of every run, on every target that has a ring."""

WITHOUT_RING: frozenset[Witness] = frozenset({"prefix hit", "cap would bind", "page evicted"})
"""Those of them that a release without any ring can reach."""

CAP_WITNESS: Witness = "cap bound"
"""Required where the target says that its cap is on: a match was shortened by it."""
