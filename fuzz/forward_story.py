"""Facts of forwards as text: what `fuzz.story` says of them."""

from __future__ import annotations

from collections.abc import Sequence

from kvproof.model.facts import Changed, Consumed, Planned


def _some(numbers: Sequence[int], most: int = 12) -> str:
    shown = ", ".join(map(str, numbers[:most]))
    return f"[{shown}{', ...' if len(numbers) > most else ''}]"


def spell_fact(fact: Planned | Changed | Consumed) -> str:
    """What happened, in few words."""
    match fact:
        case Planned(shares=shares) | Changed(how="rebound", shares=shares):
            return "; ".join(
                f"{share.request} from position {share.start} on at {_some(share.locs)}"
                for share in shares
            )
        case Changed(how=how):
            return how
        case Consumed(use=use, indices=indices, cached=cached):
            what = "nothing" if indices is None else _some(indices)
            source = {None: "", True: " (planned)", False: " (translated at the store)"}[cached]
            return f"{use}s {what}{source}"
