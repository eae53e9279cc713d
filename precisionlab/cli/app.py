"""The command line as a whole. Imports no torch: ``--help``, ``--version`` and ``explain`` answer at once."""

from __future__ import annotations

import platform
import sys
import traceback
from typing import Annotated

import typer

from precisionlab import __version__
from precisionlab.cli import audit, explain, growth, plan, probe, run, scenarios
from precisionlab.cli.codes import ExitCode
from precisionlab.cli.guard import internal_error, say

app = typer.Typer(
    name="precisionlab",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # rich's help boxes triple the time of --help
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Example: precisionlab audit model.py --dtype fp16",
)
app.command(epilog=audit.EPILOG, short_help="Say what breaks in fp16 or bf16, where, why, and what to change.")(audit.audit)
app.command(epilog=run.EPILOG, short_help="Run a training script as it is and say what breaks in it.", context_settings=run.CONTEXT)(
    run.run
)
app.command(epilog=plan.EPILOG, short_help="Find the fewest changes that make a model safe, and verify them.")(plan.plan)
app.command(epilog=growth.EPILOG, short_help="Run several sizes, fit how errors grow, forecast where they break.")(growth.growth)
app.command(epilog=probe.EPILOG, short_help="Measure what the kernels of this machine accumulate in.")(probe.probe)
app.command(epilog=explain.EPILOG, short_help="Say what a finding code means and how to repair it.")(explain.explain)
app.add_typer(scenarios.app, name="scenarios", short_help="Known failures: see each happen, see it named, see it repaired.")


def version_text() -> str:
    """Versions of the tool, of torch (without importing it) and of Python."""
    from importlib import metadata

    try:
        torch = metadata.version("torch")
    except metadata.PackageNotFoundError:
        torch = "not installed"
    return f"precisionlab {__version__} (torch {torch}, Python {platform.python_version()})"


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(version_text())
        raise typer.Exit


@app.callback()
def precisionlab(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="versions of precisionlab, torch and Python")
    ] = False,
) -> None:
    """Is this PyTorch program numerically safe in fp16 or bf16, what breaks first, and what repairs it?"""


def main() -> None:
    """The entry point. Typer turns crashes into exit code 1, which means findings here: they become 2."""
    try:
        app()
    except KeyboardInterrupt:
        say("interrupted")
        sys.exit(ExitCode.INTERRUPTED)
    except Exception as error:
        say(internal_error(error))
        if "--debug" in sys.argv:
            traceback.print_exception(error, file=sys.stderr)
        sys.exit(ExitCode.WRONG_USE)
