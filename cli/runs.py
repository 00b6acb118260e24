"""``kvproof runs``: what lies in the run folders."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Group
from rich.text import Text

from kvproof.cli.fuzz import Report
from kvproof.cli.output import JsonOption, plain_table, renewing, show
from kvproof.fuzz.manifest import FILE, Manifest, load_manifest
from kvproof.fuzz.matrix import VARIANTS_BEGIN, VARIANTS_END, variants
from kvproof.fuzz.run_folder import DEFAULT_ROOT
from kvproof.model.files import read_file, renew
from kvproof.model.scenario import BadFileError, decode_part


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One run: what it was asked for, and what came out so far; None while nothing has."""

    folder: str
    manifest: Manifest
    report: Report | None


def decode_report(data: bytes) -> Report:
    """Result of a run from JSON; raises BadFileError."""
    return decode_part(data, Report, part="result of a run")


def load_run(folder: Path) -> Run:
    """One run; raises BadFileError with the path in its message."""
    manifest = load_manifest(folder)
    result = folder / "result.json"
    report = None
    if result.exists():
        data = read_file(result)
        try:
            report = decode_report(data)
        except BadFileError as error:
            raise BadFileError(f"{result}: {error}") from error
    return Run(folder=str(folder), manifest=manifest, report=report)


def _renew(document: Path, reports: list[Report]) -> None:
    made = sorted({f"{report.profile} with seed {report.seed}" for report in reports})
    table = variants(
        (result for report in reports for result in report.targets),
        note=f"Made with the profiles {', '.join(made)}.",
    )
    with renewing():
        renew(document, begin=VARIANTS_BEGIN, end=VARIANTS_END, table=table)


def runs(
    out: Annotated[
        list[Path] | None,
        typer.Option(help=f"Where run folders lie; repeatable. Default: {DEFAULT_ROOT}."),
    ] = None,
    document: Annotated[
        Path | None,
        typer.Option(
            "--table",
            metavar="FILE",
            help="Renew a document's table of constructions that are played by name.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List the runs of `kvproof fuzz`."""
    folders = [
        folder
        for root in out or [DEFAULT_ROOT]
        for folder in sorted(root.glob("*"))
        if folder.name.isdecimal() and (folder / FILE).exists()
    ]
    found = [load_run(folder) for folder in folders]
    if document is not None:
        _renew(document, [run.report for run in found if run.report is not None])
    table = plain_table("run", "seed", "sequences", "targets", "state")
    for run in found:
        done = len(run.report.targets) if run.report else 0
        if run.report is None or done < len(run.manifest.targets):
            state = f"{done} of {len(run.manifest.targets)} targets done"
        else:
            state = "as expected" if run.report.as_expected else "not as expected"
        table.add_row(
            run.folder,
            str(run.manifest.seed),
            str(run.manifest.profile.sequences),
            "\n".join(run.manifest.targets),
            state,
        )
    notes = [
        Text(f"{run.folder} is of another kvproof, which wrote more: {', '.join(unknown)}")
        for run in found
        if (unknown := run.manifest.unknown) is not msgspec.UNSET
    ]
    show(Group(table, *notes), found, as_json=as_json)
