"""``precisionlab scenarios``: known failures, seen happening, named and repaired. ``list`` and ``show`` import no torch."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from precisionlab.cli.codes import ExitCode
from precisionlab.cli.guard import guarded, say
from precisionlab.errors import SettingsError

if TYPE_CHECKING:
    from precisionlab.scenarios.checking import Checked
    from precisionlab.scenarios.model import Scenario

EPILOG = "Start with: precisionlab scenarios run gradient-below-the-floor"
app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None, epilog=EPILOG)

Name = Annotated[str, typer.Argument(metavar="NAME", help="as `list` prints it, or a finding code", show_default=False)]
Debug = Annotated[bool, typer.Option("--debug", help="tracebacks")]


@app.command("list", short_help="The scenarios, by topic.")
def list_(
    topic: Annotated[str | None, typer.Option(help="words of a topic or a fundamental", show_default=False)] = None,
    level: Annotated[str | None, typer.Option(help="first, practitioner or expert", show_default=False)] = None,
    code: Annotated[str | None, typer.Option(help="a finding code, or its first digits", show_default=False)] = None,
    dtype: Annotated[str | None, typer.Option(help="fp16, bf16 or fp32", show_default=False)] = None,
    silent: Annotated[bool, typer.Option("--silent", help="only those where a plain run shows nothing")] = False,
    format: Annotated[str, typer.Option(help="table, json or markdown (by fundamental)")] = "table",
    debug: Debug = False,
) -> None:
    """List the scenarios. An `s` says that a plain run shows nothing: every value finite, no warning."""
    with guarded(debug):
        from precisionlab.scenarios.listing import as_json, as_markdown, as_table, choose

        chosen = choose(topic=topic, level=level, code=code, dtype=dtype, silent=silent)
        writers = {"table": as_table, "json": as_json, "markdown": as_markdown}
        if format not in writers:
            raise SettingsError(f"there is no format {format!r} for the list", hint=" or ".join(writers))
        typer.echo(writers[format](chosen))


@app.command(short_help="The lesson of one scenario.")
def show(
    name: Name,
    source: Annotated[bool, typer.Option("--source", help="also the programs")] = False,
    debug: Debug = False,
) -> None:
    """Print what happens, why, how to recognise it, how to repair it, and when it is no problem. Its numbers were measured."""
    with guarded(debug):
        from precisionlab.scenarios.catalogue import get, recorded_numbers
        from precisionlab.scenarios.text import lesson

        scenario = get(name)
        typer.echo(lesson(scenario, recorded_numbers(scenario)))
        if source:
            typer.echo(f"\nThe program\n\n{scenario.program_text()}")
        else:
            typer.echo(f"\nsee it happen: precisionlab scenarios run {scenario.name}      the program: --source")


@app.command(short_help="See it happen, see it named, see it repaired.")
def run(
    name: Name,
    dtype: Annotated[str | None, typer.Option(help="how another format behaves: fp16, bf16 or fp32", show_default=False)] = None,
    step: Annotated[bool, typer.Option("--step", help="one part at a time")] = False,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="the run and the lesson as a page (plots extra)", show_default=False)
    ] = None,
    svg: Annotated[Path | None, typer.Option(metavar="FILE", help="the picture (plots extra)", show_default=False)] = None,
    debug: Debug = False,
) -> None:
    """Run the broken and the repaired program, plain and audited, beside fp64."""
    with guarded(debug):
        from precisionlab.scenarios.catalogue import get

        scenario = get(name)
        from precisionlab.scenarios.runner import run as execute
        from precisionlab.scenarios.text import run_text, steps

        outcome = execute(scenario, dtype)
        if html is not None or svg is not None:
            from precisionlab.scenarios import page

            for path, make in ((html, page.page), (svg, page.svg)):
                if path is not None:
                    _write(path, make(outcome))
        elif step:
            _walk(list(steps(outcome)))
        else:
            typer.echo(run_text(outcome))


@app.command(short_help="Verify that every scenario is what it says.")
def check(
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", help="all by default", show_default=False)] = None,
    record: Annotated[Path | None, typer.Option(metavar="FILE", help="write the numbers measured there", show_default=False)] = None,
    debug: Debug = False,
) -> None:
    """Run the scenarios: faults named where they are, repairs quiet, numbers of the lessons as measured. Exit code 1 if one fails."""
    with guarded(debug):
        from precisionlab.scenarios.catalogue import all_scenarios, get

        chosen = [get(name) for name in names] if names else list(all_scenarios())
        done = [_checked(scenario, against_record=record is None) for scenario in chosen]
        failed = [one for one in done if not one.passed]
        seconds = sum(one.seconds for one in done)
        typer.echo(f"{len(done) - len(failed)} of {len(done)} scenarios are what they say ({seconds:.0f} s)")
        if record is not None:
            _record(record, done)
    if failed:
        raise typer.Exit(ExitCode.FINDINGS)


@app.command("try", short_help="A Python prompt with the broken program under audit.")
def try_(
    name: Name,
    dtype: Annotated[str | None, typer.Option(help="another format", show_default=False)] = None,
    debug: Debug = False,
) -> None:
    """Run the broken program under audit and stay in a Python prompt with its results, the audit and the report."""
    with guarded(debug):
        from precisionlab.scenarios.catalogue import get

        scenario = get(name)
        from precisionlab.scenarios.prompt import start

        start(scenario, dtype)


@app.command(short_help="Predict, then run: questions answered by the run.")
def quiz(name: Name, debug: Debug = False) -> None:
    """Ask what will happen, run it, and tell."""
    with guarded(debug):
        from precisionlab.scenarios.catalogue import get
        from precisionlab.scenarios.columns import paragraphs

        scenario = get(name)
        from precisionlab.scenarios.quiz import ask, verdicts

        typer.echo(f"{paragraphs(scenario.title)}\n")
        try:
            chosen = ask(scenario, input, typer.echo)
        except EOFError:
            raise SettingsError("the quiz needs answers", hint="type a letter for each question, or pipe them in, one a line") from None
        from precisionlab.scenarios.runner import run as execute

        text, right = verdicts(scenario, chosen, execute(scenario).numbers)
        typer.echo(f"{text}\n\n{right} of {len(chosen)} right. The whole story: precisionlab scenarios run {scenario.name}")


def _checked(scenario: Scenario, against_record: bool) -> Checked:
    from precisionlab.scenarios.checking import check as verify

    done = verify(scenario, against_record=against_record)
    typer.echo(f"{'ok  ' if done.passed else 'FAIL'} {scenario.name} ({done.seconds:.1f} s)")
    for problem in done.problems:
        typer.echo(f"     {problem}")
    sys.stdout.flush()
    return done


def _record(path: Path, done: list[Checked]) -> None:
    import torch

    before: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))["scenarios"] if path.exists() else {}
    entries = {**before, **{one.scenario.name: one.record() for one in done}}
    measured = f"torch {torch.__version__}, CPU, one thread"
    _write(path, json.dumps({"measured": measured, "scenarios": dict(sorted(entries.items()))}, indent=1) + "\n")


def _walk(parts: list[tuple[str, str]]) -> None:
    """One part after another; Enter goes on, where somebody is there to press it."""
    from precisionlab.scenarios.columns import rule

    for position, (title, text) in enumerate(parts):
        typer.echo(f"{rule(title)}\n{text}\n" if title else f"{text}\n")
        if position + 1 < len(parts) and sys.stdin.isatty():
            input("(Enter) ")


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise SettingsError(f"{path} cannot be written: {error.strerror}", hint="another path") from None
    say(f"written: {path}")
