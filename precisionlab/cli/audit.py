"""``precisionlab audit TARGET``: training steps of a model in low precision, with every op run in fp64 beside it."""

from __future__ import annotations

import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from precisionlab.cli.codes import ExitCode
from precisionlab.cli.config import nearest_table
from precisionlab.cli.guard import guarded, say
from precisionlab.cli.options import AuditOptions, FailOn, OutputFormat, Preset, Resync, merged, parse_assignments
from precisionlab.errors import SettingsError
from precisionlab.records import Verdict
from precisionlab.report.model import Report
from precisionlab.subjects.inputs import InputSpec, parse_size
from precisionlab.subjects.target import check_source, parse_target
from precisionlab.subjects.words import Kernels, Mode, parse_dtype

if TYPE_CHECKING:
    from precisionlab.subjects.run import Outcome

EPILOG = (
    "Examples: precisionlab audit model.py --dtype bf16 | precisionlab audit model.py:GPT --dtype fp16 --mode pure --input-size 8,128 "
    "--input-dtype int64 --input-high 50257 | precisionlab audit pkg.model:subject --format json -o report.json"
)

_FAILING: dict[FailOn, tuple[Verdict, ...]] = {
    FailOn.BROKEN: (Verdict.BROKEN,),
    FailOn.RISKY: (Verdict.BROKEN, Verdict.RISKY),
    FailOn.NEVER: (),
}


def audit(
    target: Annotated[str, typer.Argument(metavar="TARGET", help="model.py, model.py:name or package.module:name", show_default=False)],
    dtype: Annotated[str | None, typer.Option(help="fp16, bf16 or fp32 (the control)", show_default="fp16")] = None,
    mode: Annotated[
        Mode | None,
        typer.Option(
            help="amp: fp32 weights under autocast; pure: everything lowered; master: with fp32 master weights", show_default="amp"
        ),
    ] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="training steps to run", show_default="2")] = None,
    format: Annotated[OutputFormat | None, typer.Option(help="by default from the suffix of -o, else table", show_default=False)] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="write the report there", show_default=False)
    ] = None,
    force: Annotated[bool, typer.Option("-f", "--force", help="let -o replace a file")] = False,
    fail_on: Annotated[FailOn | None, typer.Option(help="the mildest verdict that gives exit code 1", show_default="broken")] = None,
    kernels: Annotated[
        Kernels | None, typer.Option(help="native: this machine's; fast: half dot products in fp32, rounded once", show_default="auto")
    ] = None,
    preset: Annotated[Preset | None, typer.Option(help="how much is measured", show_default="standard")] = None,
    resync: Annotated[Resync | None, typer.Option(help="when weight twins restart from the real values", show_default="step")] = None,
    profile: Annotated[
        str | None,
        typer.Option("--target", metavar="PROFILE", help="show the accumulation formats of that machine", show_default="this machine"),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="seed of all random numbers", show_default="0")] = None,
    all: Annotated[bool, typer.Option("--all", help="every finding, op and unshadowed op")] = False,
    min_coverage: Annotated[
        float | None, typer.Option(min=0.0, max=1.0, help="share of ops to shadow, below it exit code 3", show_default="0.8")
    ] = None,
    input_size: Annotated[
        str | None, typer.Option(metavar="8,128", help="for a bare module: shape of its input", show_default=False)
    ] = None,
    input_dtype: Annotated[str | None, typer.Option(help="for a bare module: dtype of its input", show_default="float32")] = None,
    input_high: Annotated[int | None, typer.Option(min=1, help="for integer inputs: one above the largest", show_default=False)] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="a threshold; repeatable", show_default=False)
    ] = None,
    debug: Annotated[bool, typer.Option("--debug", help="tracebacks")] = False,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="no progress")] = False,
) -> None:
    """Run a model's training steps in low precision and say what breaks, where, why, and what to change.

    Exit codes: 0 nothing found, 1 findings, 2 wrong use or the subject raised, 3 the answer cannot be trusted.
    """
    given = dict(
        dtype=dtype,
        mode=mode,
        steps=steps,
        format=format,
        fail_on=fail_on,
        kernels=kernels,
        preset=preset,
        resync=resync,
        seed=seed,
        all=all or None,
        min_coverage=min_coverage,
        input_size=input_size,
        input_dtype=input_dtype,
        input_high=input_high,
        target=profile,
    )
    with guarded(debug):
        options = _resolve(target, given, set_ or [])
        _check_output(output, force)
        if options.target is not None:
            from precisionlab.backends.store import load_profile

            load_profile(options.target)
        outcome = _run(target, options, quiet)
        _write(outcome.report, options, output)
        code = _judge(outcome, options, debug)
    raise typer.Exit(code)


def _resolve(target: str, given: dict[str, Any], assignments: list[str]) -> AuditOptions:
    if given["dtype"] is not None:
        parse_dtype(given["dtype"])
    path = parse_target(target).path
    table, origin = nearest_table((path.parent if path else Path()).resolve())
    options = merged(AuditOptions(), table, origin)
    return merged(merged(options, given, "the command line"), parse_assignments(assignments), "--set")


def _check_output(output: Path | None, force: bool) -> None:
    """Before anything runs: an audit may take minutes."""
    if output is None:
        return
    if output.exists() and not force:
        raise SettingsError(f"{output} exists", hint="-f to replace it, or another name")
    if not output.resolve().parent.is_dir():
        raise SettingsError(f"there is no folder {output.parent}", hint=f"mkdir -p {output.parent}")


def _run(target: str, options: AuditOptions, quiet: bool) -> Outcome:
    path = parse_target(target).path
    inputs = _inputs(options)
    if path is not None:
        check_source(path)
    if not quiet:
        say(f"auditing {target} in {options.dtype}, mode {options.mode}, steps {options.steps}, seed {options.seed}")

    from precisionlab.subjects.loader import load_subject
    from precisionlab.subjects.run import run_subject

    subject = load_subject(target, inputs=inputs, seed=options.seed)
    outcome = run_subject(
        subject,
        options.dtype,
        options.mode,
        options.steps,
        options.seed,
        options.kernels,
        None if quiet else _progress,
        **options.engine_settings(),
    )
    outcome.report.record.settings["command"] = options.command(target)
    return outcome


def _inputs(options: AuditOptions) -> InputSpec | None:
    if options.input_size is None:
        if options.input_dtype is not None or options.input_high is not None:
            raise SettingsError("--input-dtype and --input-high need --input-size", hint="--input-size 8,128")
        return None
    return InputSpec(parse_size(options.input_size), options.input_dtype or "float32", options.input_high)


def _progress(step: int, steps: int) -> None:
    say(f"step {step} of {steps}")


def _write(report: Report, options: AuditOptions, output: Path | None) -> None:
    wanted = options.format or (OutputFormat.JSON if output is not None and output.suffix == ".json" else OutputFormat.TABLE)
    if output is None:
        sys.stdout.write(_render(report, wanted, options.all, to_terminal=True))
        sys.stdout.flush()
        return
    try:
        output.write_text(_render(report, wanted, options.all, to_terminal=False), encoding="utf-8")
    except OSError as error:
        raise SettingsError(f"{output} cannot be written: {error.strerror}", hint="another path") from None
    say(f"{str(report.verdict).upper()}: the report is in {output}")


def _render(report: Report, wanted: OutputFormat, all_ops: bool, *, to_terminal: bool) -> str:
    if wanted is OutputFormat.JSON:
        from precisionlab.report.to_json import report_to_json

        return report_to_json(report)
    from precisionlab.report.table import render_table

    if not to_terminal:
        return render_table(report, all_ops) + "\n"
    from rich.console import Console

    console = Console()
    color = console.is_terminal and not console.no_color
    width = min(max(console.width, MIN_WIDTH), MAX_WIDTH) if console.is_terminal else DEFAULT_WIDTH
    return render_table(report, all_ops, color, width) + "\n"


MIN_WIDTH, DEFAULT_WIDTH, MAX_WIDTH = 60, 80, 120


def _judge(outcome: Outcome, options: AuditOptions, debug: bool) -> ExitCode:
    """The exit code, with a line on stderr wherever it is neither 0 nor 1."""
    report, coverage = outcome.report, outcome.report.record.coverage
    if outcome.error is not None:
        interrupted = isinstance(outcome.error, KeyboardInterrupt)
        say("interrupted: the report covers what ran" if interrupted else f"error: the subject raised in {report.record.error}")
        if debug:
            traceback.print_exception(outcome.error, file=sys.stderr)
        elif not interrupted:
            say("  try: --debug for the traceback; the report covers what ran before")
        return ExitCode.INTERRUPTED if interrupted else ExitCode.WRONG_USE
    if coverage.shadowed == 0:
        say("not trustworthy: no op was shadowed")
        say(
            "  try: a model that computes in floating point"
            if coverage.ops == 0
            else "  try: --all lists what could not be shadowed, and why"
        )
        return ExitCode.UNTRUSTWORTHY
    if coverage.share < options.min_coverage:
        say(f"not trustworthy: {coverage.share:.1%} of the ops were shadowed, less than --min-coverage {options.min_coverage:g}")
        say("  try: --all lists what could not be shadowed, and why")
        return ExitCode.UNTRUSTWORTHY
    if report.verdict is Verdict.UNKNOWN:
        say("not trustworthy: the audit cannot answer; the notes of the report say why")
        return ExitCode.UNTRUSTWORTHY
    return ExitCode.FINDINGS if report.verdict in _FAILING[options.fail_on] else ExitCode.NOTHING_FOUND
