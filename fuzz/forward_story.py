"""Operations and facts of forwards as text: what `fuzz.story` says of them."""

from __future__ import annotations

from collections.abc import Sequence

from kvproof.model.facts import Changed, Consumed, Planned
from kvproof.model.forwards import (
    ForwardOperation,
    Idle,
    Layer,
    Pad,
    Plan,
    Rebind,
    Release,
    Remap,
    Replay,
    Slide,
)


def _rows(count: int) -> str:
    return f"{count} row{'s' * (count != 1)}"


def _mode(mode: str) -> str:
    return mode.replace("_", " ")


def spell_forward(operation: ForwardOperation) -> str:
    """An operation as one line."""
    match operation:
        case Plan(mode=mode, requests=requests, tokens=tokens, in_graph=in_graph):
            text = f"plan {_mode(mode)} of {', '.join(requests)}"
            text += f", {tokens} tokens each" if mode == "extend" else ""
            return text + ("" if in_graph else ", outside the graph alone")
        case Pad(rows=rows):
            return f"pad with {_rows(rows)}"
        case Rebind():
            return "rebind to other locations, as many"
        case Remap():
            return "map the locations anew"
        case Layer():
            return "run a layer"
        case Replay(mode=mode, requests=requests):
            return f"replay {_mode(mode)} of {', '.join(requests)}"
        case Idle(rows=rows):
            return f"idle forward of {_rows(rows)}"
        case Slide(request=request):
            return f"free {request}'s pages behind the window"
        case Release(request=request):
            return f"release {request}"


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
