"""The speed table of PR #30339: cached tokens of its workload, on the releases' real caches.

Tokens alone, no forward: 64 groups of 16 prompts behind system prompts of 2048 tokens, pages of
256, window 128, EAGLE's bigram keys. Each workload is played twice; the second, warm run is what
the PR measured. Beside the releases stand the five policies, by the rules
(`kvproof.model.policies`), and the release's own cap made to hold back what the policy of L(W-1)+1
does.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time

from kvproof.fuzz.targets import find_targets
from kvproof.fuzz.workload import SharedPrefix, cached_tokens
from kvproof.kernels.engines.store import EngineStore
from kvproof.model.policies import LAYERED_CAP, POLICIES, Sizes
from kvproof.model.scenario import prompt_len

PUBLISHED = {
    "question 64": {"before": "~2.09M", "after": "~1.85M"},
    "question 128": {"before": "2.09M", "after": "2.09M"},
}
"""As the PR rounds them."""

PAGE_SIZE, WINDOW, LAYERS = 256, 128, 61


def workloads(groups: int) -> dict[str, SharedPrefix]:
    """Workloads by name; each differs from the first in one parameter."""
    prompts = groups * 16
    return {
        "question 64": SharedPrefix(groups=groups),
        "question 64, one in 16 re-encoded to 2177": SharedPrefix(
            groups=groups, longer=prompts // 16
        ),
        "question 128, nothing added": SharedPrefix(groups=groups, question_len=128, added=0),
        "question 128": SharedPrefix(groups=groups, question_len=128),
    }


def by_rules(workload: SharedPrefix) -> dict[str, dict[str, float]]:
    """What each policy reuses and computes of a warm run, and the share of the match it keeps."""
    sizes = Sizes(window=WINDOW, page_size=PAGE_SIZE, layers=LAYERS, bigram=True)
    rows = {}
    for policy in POLICIES:
        hits = [
            policy.hit(sizes, prompt_len=length, cached_len=length)
            for length in map(prompt_len, workload.requests())
        ]
        cached = sum(hit.matched for hit in hits)
        rows[policy.name] = {
            "cached": cached,
            "computed": sum(hit.recomputed for hit in hits),
            "kept": round(cached / sum(hit.uncapped for hit in hits), 4),
        }
    return rows


def main() -> None:
    """Print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--groups", type=int, default=64)
    parser.add_argument("--target", nargs="*", default=["0.5.15", "0.5.16", "0.5.23"])
    arguments = parser.parse_args()
    chosen = workloads(arguments.groups)
    store = EngineStore()
    caches: dict[str, dict[str, object]] = {}
    for target in find_targets(arguments.target, store):
        rows = caches.setdefault(target.name, {})
        with target.process() as process:
            process.start()
            for name, workload in chosen.items():
                began = time.perf_counter()
                cold, warm = cached_tokens(process, workload)
                rows[name] = {
                    "cold": cold, "warm": warm, "seconds": round(time.perf_counter() - began, 1)
                }  # fmt: skip
                sys.stderr.write(f"{target.name}, {name}: {warm} cached\n")
    held_back = LAYERED_CAP.held_back(LAYERS, WINDOW)
    for target in find_targets(arguments.target, store):
        # 0.5.15 has no cap that could hold anything back.
        if "0.5.15" not in target.name:
            with target.process(held_back=held_back) as process:
                _, warm = cached_tokens(process, SharedPrefix(groups=1))
                caches[target.name][f"1 group, {held_back} held back"] = {"warm": warm}
    machine = {
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
    }
    policies = {name: by_rules(workload) for name, workload in chosen.items()}
    result = {
        "machine": machine, "groups": arguments.groups, "published": PUBLISHED,
        "releases": caches, "policies, 61 layers": policies,
    }  # fmt: skip
    sys.stdout.write(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
