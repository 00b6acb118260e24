"""Plots of docs/exactness.md: what each cache policy costs. Writes SVG files into docs/.

Every number comes from the rules (`kvproof.model.policies`) or from runs of the model; needs
matplotlib, which comes with the extra `dev`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib as mpl
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from kvproof.determinism.in_process import SMALL, run_cell
from kvproof.model.layers import Stack
from kvproof.model.policies import NO_CAP, POLICIES, RELEASE_CAP, CachePolicy, Sizes
from kvproof.model.reference import reference_player
from kvproof.spec.exact import exact_logits_tail

WINDOW, PAGE_SIZE, QUESTION = 128, 256, 64
STYLES = dict(zip((policy.name for policy in POLICIES), ("-", "--", ":", "-.", "-"), strict=True))


def kept(file: Path) -> None:
    """Share of the match that each policy keeps, by cached tokens."""
    lengths = [2**power for power in range(10, 18)]
    figure, axes = plt.subplots(figsize=(7, 3.6))
    sizes = Sizes(window=WINDOW, page_size=PAGE_SIZE, layers=61)
    for policy in POLICIES:
        if policy.name == "floored reads":
            continue  # the same as the cap of W
        hits = [policy.hit(sizes, prompt_len=n + QUESTION, cached_len=n) for n in lengths]
        label = policy.name + (" (with and without floored reads)" if policy == RELEASE_CAP else "")
        axes.plot(lengths, [100 * hit.kept for hit in hits], STYLES[policy.name], label=label)
    axes.set_xscale("log", base=2)
    axes.set_xlabel(f"cached tokens of a prompt ({QUESTION} more are new)")
    axes.set_ylabel("match kept, %")
    axes.set_title("W = 128, pages of 256, 61 layers")
    axes.legend(fontsize=8)
    _save(figure, file)


def recomputed(file: Path) -> None:
    """Most tokens that a hit computes, by layers."""
    layers = list(range(1, 62, 4))
    figure, axes = plt.subplots(figsize=(7, 3.6))
    for policy in POLICIES:
        most = [
            policy.range(Sizes(window=WINDOW, page_size=PAGE_SIZE, layers=depth))[1]
            for depth in layers
        ]
        axes.plot(layers, most, STYLES[policy.name], label=policy.name)
    axes.set_xlabel("sliding-window layers")
    axes.set_ylabel("most tokens a hit computes")
    axes.set_title("W = 128, pages of 256, the prompt cached to its end")
    axes.legend(fontsize=8)
    _save(figure, file)


def diverging(file: Path) -> None:
    """How many of 16 identical requests diverge, by tail, without a cap and with the release's."""
    tails = tuple(range(1, 17))
    figure, (left, right) = plt.subplots(1, 2, figsize=(7, 3.2), sharey=True)
    for axes, policy in ((left, NO_CAP), (right, RELEASE_CAP)):
        for layers, style in ((1, "-o"), (2, "--s"), (4, ":^")):
            axes.plot(
                tails,
                [_off(policy, layers, t) for t in tails],
                style,
                ms=3,
                label=f"{layers} layers, bound {exact_logits_tail(layers, SMALL.window)}",
            )
        axes.set_title(policy.name)
        axes.set_xlabel("tail")
    left.set_ylabel("off the majority, of 16")
    right.legend(fontsize=7)
    _save(figure, file)


def _off(policy: CachePolicy, layers: int, tail: int) -> int:
    page = 16
    kept = policy.reference(Sizes(window=SMALL.window, page_size=page, layers=layers))
    return run_cell(
        lambda scenario: reference_player(scenario.geometry, kept).play(scenario),
        SMALL, Stack.of(layers=layers), round_number=1, tail=tail, page_size=page,
    ).off_majority  # fmt: skip


def _save(figure: Figure, file: Path) -> None:
    figure.tight_layout()
    # No date: the same numbers give the same bytes.
    figure.savefig(file, metadata={"Date": None})
    plt.close(figure)


def main() -> None:
    """Write the plots."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs"))
    out = parser.parse_args().out
    mpl.rcParams["svg.hashsalt"] = "kvproof"
    kept(out / "policy-kept.svg")
    recomputed(out / "policy-recomputed.svg")
    diverging(out / "policy-diverging.svg")


if __name__ == "__main__":
    main()
