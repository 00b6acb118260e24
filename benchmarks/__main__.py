"""All benchmarks in one command: ``python -m benchmarks``, or ``make bench``.

Each runs in a process of its own, one after the other, and what it prints is in the results' file
as soon as it has ended. ``--docs`` renews docs/benchmarks.md of such a file. Exit code 1 if a
benchmark failed; the others are run all the same.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from kvproof.fuzz.manifest import PACKAGES, processor
from kvproof.kernels.engines.store import EngineStore
from kvproof.model.files import renew

HERE = Path(__file__).parent
OUT = Path(".kvproof/benchmarks.json")
BEGIN, END = "<!-- made by: python -m benchmarks --docs -->", "<!-- end of the benchmarks -->"
KVPROOF = ("-c", "from kvproof.cli import main; main()")
DETAILS = frozenset({"machine", "runs", "obligations", "refutations"})
"""Parts of a result that the document leaves to the file."""


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """One benchmark.

    Attributes:
        title: what is measured, in words.
        command: arguments of the interpreter.
        quick: more of them for a run that only shows that it works.
    """

    title: str
    command: tuple[str, ...]
    quick: tuple[str, ...] = ()


def _script(name: str, *arguments: str) -> tuple[str, ...]:
    return (str(HERE / f"{name}.py"), *arguments)


BENCHMARKS = {
    "throughput": Benchmark(
        title="Operations a second: model, real caches, interpreter kernels",
        command=_script("throughput"),
        quick=("--scenarios", "10", "--histories", "1", "--operations", "200",
               "--engine", "0.5.23"),
    ),
    "batch": Benchmark(
        title="Checked decodes a second of the ring kernels: interpreted, and on a GPU",
        command=_script("batch"),
        quick=("--engine", "0.5.23", "--seconds", "1", "--repeat", "1"),
    ),
    "growth": Benchmark(
        title="Operations a second by length of history and number of slots",
        command=_script("growth"),
        quick=("--lengths", "100", "--slots", "1", "2", "--histories", "1"),
    ),
    "check": Benchmark(
        title="Facts a second and memory of the monitor",
        command=_script("check"),
        quick=("--requests", "50"),
    ),
    "plain_stateful": Benchmark(
        title="First stale decode on 0.5.15, beside plain stateful testing",
        command=_script("plain_stateful"),
        quick=("--seeds", "1", "--seconds", "5"),
    ),
    "first_failure": Benchmark(
        title="From nothing to the smallest stale decode on 0.5.15: find, shrink, final length",
        command=_script("first_failure", "--seeds", "20"),
        quick=("--seeds", "1", "--profile", "smoke"),
    ),
    "minimise": Benchmark(
        title="From a busy server's log to the smallest scenario",
        command=_script("minimise"),
        quick=("--requests", "100"),
    ),
    "prove": Benchmark(
        title="Proof time by theorem",
        command=(*KVPROOF, "prove", "--json"),
        quick=("--only", "R1"),
    ),
    "scaling": Benchmark(
        title="Sequences a second of a campaign on 1 core, 2 cores and a Ray cluster of 2 nodes",
        command=_script("scaling"),
        quick=("--engine", "model-miscount", "--seconds", "8", "--unit", "1", "--repeat", "1"),
    ),
    "kills": Benchmark(
        title="A campaign that is killed and resumed",
        command=_script("kills"),
        quick=("--kills", "1"),
    ),
    "record": Benchmark(
        title="What the recorder costs",
        command=_script("record"),
        quick=("--requests", "20", "--rounds", "1", "--engine", "0.5.23"),
    ),
    "story": Benchmark(title="From a recording to a failing test", command=_script("story"),
                       quick=("--requests", "100")),
    "speed_table": Benchmark(
        title="Cached tokens of the published workload",
        command=_script("speed_table", "--groups", "4"),
        quick=("--groups", "1", "--target", "0.5.23"),
    ),
}  # fmt: skip


def run(benchmark: Benchmark, *, quick: bool) -> dict[str, Any]:
    """What a benchmark prints, with its command and the time that it took."""
    command = [*benchmark.command, *(benchmark.quick if quick else ())]
    began, load = time.monotonic(), os.getloadavg()[0]
    child = subprocess.run(
        [sys.executable, *command], stdout=subprocess.PIPE, text=True, check=False
    )
    entry: dict[str, Any] = {
        "title": benchmark.title,
        "command": [word.replace(str(HERE), "benchmarks") for word in command],
        "seconds": round(time.monotonic() - began, 1),
        "exit_code": child.returncode,
        "load": [round(load, 1), round(os.getloadavg()[0], 1)],
    }
    try:
        entry["result"] = json.loads(child.stdout)
    except json.JSONDecodeError:
        entry["exit_code"] = child.returncode or 1
    return entry


def machine() -> dict[str, Any]:
    """What the figures depend on."""
    import torch

    gpus = [torch.cuda.get_device_name(at) for at in range(torch.cuda.device_count())]
    return {
        "processor": processor(),
        "cores": os.cpu_count(),
        "gpus": gpus,
        "python": platform.python_version(),
        "kvproof": version("kvproof"),
        "packages": {name: version(name) for name in PACKAGES},
        "engines": {e.name: e.sha256 or e.version for e in EngineStore().list()},
    }


def rows(value: object, name: str = "") -> list[tuple[str, str]]:
    """Leaves of a result, each with the names that lead to it."""
    if isinstance(value, dict):
        return [
            row
            for key, part in value.items()
            if key not in DETAILS
            for row in rows(part, f"{name}, {key}" if name else str(key))
        ]
    if isinstance(value, list) and any(isinstance(part, dict | list) for part in value):
        return [
            row
            for at, part in enumerate(value)
            for row in rows(part, f"{name}, {_label(part, at)}" if name else _label(part, at))
        ]
    return [(name, ", ".join(map(str, value)) if isinstance(value, list) else str(value))]


def _label(part: object, at: int) -> str:
    return str(part.get("identifier", at + 1)) if isinstance(part, dict) else str(at + 1)


LEFT_OUT = ("statement", "title", "scope", "source", "identifier")
"""Words of a theorem: they are in docs/theorems.md."""


def document(report: dict[str, Any]) -> str:
    """The results of one machine as Markdown."""
    facts = report["machine"]
    gpus = ", ".join(facts["gpus"]) or "none"
    lines = [
        f"Machine: {facts['cores']} cores, {facts['processor']}, GPU: {gpus}. "
        f"Python {facts['python']}, "
        + ", ".join(f"{name} {number}" for name, number in facts["packages"].items())
        + "."
    ]
    for name, entry in report["results"].items():
        lines += ["", f"## {entry['title']}", ""]
        command = " ".join(["python", *entry["command"]]) if name != "prove" else "kvproof prove"
        before, after = entry["load"]
        lines += [f"`{command}`, {entry['seconds']} s, load {before} before and {after} after.", ""]
        if before > facts["cores"] / 2:
            lines += ["**The machine was busy: times and their ratios say little.**", ""]
        if "result" not in entry:
            lines += [f"It failed with exit code {entry['exit_code']}."]
            continue
        lines += ["| what | value |", "|---|---|"]
        lines += [
            f"| {what} | {value} |"
            for what, value in rows(entry["result"])
            if not what.endswith(LEFT_OUT)
        ]
    return "\n".join(lines)


def main() -> None:
    """Run, or write the document; what a file has of other benchmarks on this machine is kept."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--only", nargs="*", choices=BENCHMARKS, default=[*BENCHMARKS])
    parser.add_argument("--out", type=Path, default=OUT, help="file of the results")
    parser.add_argument("--quick", action="store_true", help="small; the figures mean nothing")
    parser.add_argument("--docs", type=Path, metavar="FILE", help="renew a document of --out")
    parser.add_argument(
        "--beside", type=Path, nargs="*", default=[], metavar="FILE",
        help="files of other machines, for --docs",
    )  # fmt: skip
    arguments = parser.parse_args()
    if arguments.docs is not None:
        reports = [json.loads(file.read_text()) for file in (arguments.out, *arguments.beside)]
        renew(arguments.docs, begin=BEGIN, end=END, table="\n\n".join(map(document, reports)))
        return
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    report: dict[str, Any] = {"machine": machine(), "quick": arguments.quick, "results": {}}
    if arguments.out.exists():
        past = json.loads(arguments.out.read_text())
        if all(past[part] == report[part] for part in ("machine", "quick")):
            report = past
    for name in arguments.only:
        sys.stderr.write(f"{name}: {BENCHMARKS[name].title}\n")
        report["results"][name] = run(BENCHMARKS[name], quick=arguments.quick)
        arguments.out.write_text(json.dumps(report, indent=1) + "\n")
    failed = [name for name in arguments.only if report["results"][name]["exit_code"]]
    sys.stderr.write(f"results: {arguments.out}\n")
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
