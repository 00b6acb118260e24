"""The command line: one module a group of commands, put together here.

To add commands, write ``cli/<group>.py`` with functions like those of `kvproof.cli.engine` and
register them at the end of this file: ``app.add_typer(group)`` for ``kvproof <group> <command>``,
``app.command("name")(function)`` for ``kvproof name``. A command prints its result with
`output.show`, raises `EngineError` for what the user can put right (another exception of that kind
gets an ``except`` of its own in `_Commands`), and ends with
``raise typer.Exit(ExitCode.VIOLATION)`` where it found one.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from kvproof.cli import (
    campaign,
    check,
    corpus,
    defects,
    determinism,
    drift,
    engine,
    explain,
    files,
    fuzz,
    gate,
    kernels,
    layers,
    marks,
    mutants,
    policy,
    prove,
    record,
    replay,
    runs,
    triage,
    vectors,
)
from kvproof.cli.output import ExitCode, fail
from kvproof.kernels.engines.errors import EngineError
from kvproof.model.scenario import BadFileError

INTERRUPTED = 130
"""Exit code of a command that was interrupted, by the custom of shells."""


class _Commands(TyperGroup):
    """Turns exceptions of any command into one line of cause and one of fix."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command; exit code 1 is left to violations."""
        try:
            return super().invoke(ctx)
        except EngineError as error:
            self._stop(ctx, error, error.cause, error.fix)
        except BadFileError as error:
            self._stop(ctx, error, str(error), "give a file that kvproof wrote, or mend this one")
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None
        except Exception as error:
            if type(error).__module__.startswith(("click", "typer")):
                raise
            self._stop(
                ctx, error, f"kvproof itself failed: {type(error).__name__}: {error}",
                "run it again with `kvproof --debug ...` and report the traceback",
            )  # fmt: skip

    def _stop(self, ctx: Any, error: Exception, cause: str, fix: str) -> None:
        if ctx.params.get("debug"):
            raise error
        fail(cause, fix)
        raise typer.Exit(ExitCode.SETUP) from error


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Reference model, proofs and differential fuzzer for the KV caches of LLM engines.",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"kvproof {version('kvproof')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    pass


app.add_typer(corpus.commands)
app.add_typer(engine.commands)
app.add_typer(kernels.commands)
app.command()(fuzz.fuzz)
app.command()(campaign.campaign)
app.command()(replay.replay)
app.command()(check.check)
app.command()(explain.explain)
app.command()(explain.export)
app.command()(files.convert)
app.command()(files.redact)
app.command()(files.schema)
app.command()(record.record)
app.command()(triage.minimise)
app.command()(triage.bisect)
app.command()(prove.prove)
app.command()(layers.layers)
app.command()(policy.policy)
app.command()(determinism.determinism)
app.command()(runs.runs)
app.command()(defects.defects)
app.command()(vectors.vectors)
app.command()(drift.drift)
app.command()(mutants.mutants)
app.command("gate")(gate.gate_)
app.command("marks")(marks.marks_)
