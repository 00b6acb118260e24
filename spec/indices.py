"""Typed indices: a mix-up of two address spaces fails the type check.

All are plain integers at run time and may be Z3 terms.
"""

from __future__ import annotations

from typing import NewType

Position = NewType("Position", int)
"""Position of a token in its request, from 0."""

Slot = NewType("Slot", int)
"""Request slot (``req_pool_idx``)."""

RingRow = NewType("RingRow", int)
"""Row of the unified buffer's ring part."""

Page = NewType("Page", int)
"""Page number of the full pool; page 0 is the padding page."""

FullLoc = NewType("FullLoc", int)
"""Token location in the full pool."""

SwaLoc = NewType("SwaLoc", int)
"""Token location in the sliding-window pool."""

Occupancy = NewType("Occupancy", int)
"""One lease of a slot by one request, counted from 1; 0 stands for padding."""

PADDING_SLOT = Slot(0)
"""SLOT-1. Slot 0 takes padded rows and is never lent (``ReqToTokenPool``, all releases)."""
