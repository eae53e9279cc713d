"""From exceptions to one message on stderr and an exit code."""

from __future__ import annotations

import contextlib
import sys
import traceback
from collections.abc import Iterator

import typer

from precisionlab.cli.codes import ExitCode
from precisionlab.errors import PrecisionLabError


@contextlib.contextmanager
def guarded(debug: bool) -> Iterator[None]:
    """Ends the command with the right exit code when its body raises. Tracebacks only with ``debug``."""
    try:
        yield
    except PrecisionLabError as error:
        say(f"error: {error.message}")
        if error.hint:
            say(f"  try: {error.hint}")
        _trace(error, debug)
        raise typer.Exit(error.exit_code) from None
    except KeyboardInterrupt as error:
        say("interrupted")
        _trace(error, debug)
        raise typer.Exit(ExitCode.INTERRUPTED) from None
    except MemoryError as error:
        say("error: out of memory")
        say("  try: a smaller batch, --preset quick, or --set max_shadow_bytes=2e9")
        _trace(error, debug)
        raise typer.Exit(ExitCode.WRONG_USE) from None
    except Exception as error:
        say(internal_error(error))
        _trace(error, debug)
        raise typer.Exit(ExitCode.WRONG_USE) from None


def internal_error(error: BaseException) -> str:
    """The one line for an exception that is a fault of ours."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    return f"internal error: {type(error).__name__}: {error}{where}; please report it, with the output of the same command under --debug"


def say(text: str) -> None:
    """One line on stderr: stdout carries the report and nothing else."""
    print(text, file=sys.stderr, flush=True)


def _trace(error: BaseException, debug: bool) -> None:
    if debug:
        traceback.print_exception(error, file=sys.stderr)
