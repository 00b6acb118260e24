"""What one step in flight finds and where it writes, by the rules of `kvproof.spec.streams`.

For one arbitrary location and one arbitrary step: the transitions that the proofs of F1 go through.
"""

from __future__ import annotations

from kvproof.spec.streams import sees
from kvproof.spec.terms import select


def key_after_write(seen: int, launch: int, *, by: int, key: int) -> int:
    """Key that step ``launch`` sees in a location after step ``by`` wrote ``key`` there."""
    return select(sees(launch, by), key, seen)


def read_after_rewrite(seen: int, offered: int, *, looks_late: bool) -> int:
    """Key that a step finds if the host moves its table entry to where it sees ``offered``.

    A step may have looked before the host wrote, or look afterwards.
    """
    return select(looks_late, offered, seen)


def target_after_rewrite(own: int, offered: int, *, by_table: bool, looks_late: bool) -> int:
    """Location that a step writes if the host moves its table entry to ``offered``."""
    return select(by_table, select(looks_late, offered, own), own)
