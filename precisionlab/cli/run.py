"""``precisionlab run SCRIPT ARGS``: an unmodified program under the audit. Its stdout, exit code and traceback stay its own."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from precisionlab.cli.audit import _FAILING, DEFAULT_WIDTH, MAX_WIDTH, MIN_WIDTH, _check_output
from precisionlab.cli.codes import ExitCode
from precisionlab.cli.config import nearest_table
from precisionlab.cli.guard import guarded, internal_error, say
from precisionlab.cli.options import AuditOptions, FailOn, OutputFormat, Preset, Resync, merged, parse_assignments
from precisionlab.cli.ranks import Rank, this_rank
from precisionlab.cli.termination import ReportOnTermination, termination_ignored
from precisionlab.errors import SettingsError
from precisionlab.records import Verdict
from precisionlab.report.model import Report
from precisionlab.schedule import Schedule, parse_steps
from precisionlab.subjects.script import Ending, Script, execute, find_script, prepare, show

if TYPE_CHECKING:
    from precisionlab.session import audit as Audit

EPILOG = (
    "Options before the script are precisionlab's, all after it are the script's. Examples: precisionlab run train.py --lr 1 | "
    "precisionlab run --every 50 -o report.json train.py | precisionlab run --steps 100:110 -m package.train --lr 1"
)
CONTEXT = {"allow_interspersed_args": False}


def run(
    script: Annotated[str, typer.Argument(metavar="SCRIPT", help="train.py, a folder or zip with __main__.py", show_default=False)],
    arguments: Annotated[list[str] | None, typer.Argument(metavar="[ARGS]...", help="the script's own", show_default=False)] = None,
    module: Annotated[bool, typer.Option("-m", "--module", help="SCRIPT is a module name")] = False,
    steps: Annotated[
        str | None, typer.Option(metavar="N|A:B", help="steps to observe: the first N, or A to B-1", show_default="all")
    ] = None,
    every: Annotated[int | None, typer.Option(min=1, metavar="K", help="observe every K-th step", show_default="1")] = None,
    format: Annotated[OutputFormat | None, typer.Option(help="by default from the suffix of -o, else table", show_default=False)] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="write the report there", show_default="stderr")
    ] = None,
    force: Annotated[bool, typer.Option("-f", "--force", help="let -o replace a file")] = False,
    fail_on: Annotated[FailOn | None, typer.Option(help="the mildest verdict that gives exit code 1", show_default="broken")] = None,
    preset: Annotated[Preset | None, typer.Option(help="how much is measured", show_default="standard")] = None,
    resync: Annotated[Resync | None, typer.Option(help="when weight twins restart from the real values", show_default="step")] = None,
    profile: Annotated[
        str | None,
        typer.Option("--target", metavar="PROFILE", help="show the accumulation formats of that machine", show_default="this machine"),
    ] = None,
    all: Annotated[bool, typer.Option("--all", help="every finding, op and unshadowed op")] = False,
    min_coverage: Annotated[
        float | None, typer.Option(min=0.0, max=1.0, help="share of ops to shadow, below it exit code 3", show_default="0.8")
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="a threshold; repeatable", show_default=False)
    ] = None,
    debug: Annotated[bool, typer.Option("--debug", help="tracebacks of precisionlab's own errors")] = False,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="no line at the start")] = False,
) -> None:
    """Run a training script as it is and say what breaks in it, where, why, and what to change.

    The report comes at the end, on Ctrl-C, SIGTERM and after a crash too, on stderr or in FILE; stdout is the script's alone. Under
    torchrun every rank writes one (report.rank0.json for -o report.json, else precisionlab-train.rank0.json), and only rank 0 prints.

    Exit codes: the script's own when it is not 0; else 0 nothing found, 1 findings, 2 wrong use, 3 the answer cannot be trusted.
    """
    given = dict(format=format, fail_on=fail_on, preset=preset, resync=resync, all=all or None, min_coverage=min_coverage, target=profile)
    with guarded(debug):
        schedule = parse_steps(steps, every)
        options = _resolve(script, module, given, set_ or [])
        rank = this_rank()
        job = _Job(options, schedule, _target(output, options, force, _stem(script, module), rank), quiet, rank, output is None)
        code = _run(job, script, tuple(arguments or ()), module)
    raise typer.Exit(code)


def _run(job: _Job, script: str, arguments: tuple[str, ...], module: bool) -> int:
    try:
        found = find_script(script, arguments, module=module)
    except SyntaxError as error:
        show(error.with_traceback(None))
        say(f"precisionlab: {script} does not compile; nothing ran")
        return 1
    return job.run(found)


def _resolve(script: str, module: bool, given: dict[str, Any], assignments: list[str]) -> AuditOptions:
    table, origin = nearest_table((Path() if module else Path(script).parent).resolve())
    options = merged(AuditOptions(), table, origin)
    options = merged(merged(options, given, "the command line"), parse_assignments(assignments), "--set")
    return options if given["format"] is not None else replace(options, format=None)


def _stem(script: str, module: bool) -> str:
    """What a script is called in the name of a report: ``train`` for ``train.py`` and for ``-m package.train``."""
    return script.rpartition(".")[2] if module else Path(script).resolve().stem


def _target(output: Path | None, options: AuditOptions, force: bool, stem: str, rank: Rank | None) -> Path | None:
    """Before the script runs: it may take hours, and change the working directory."""
    if rank is not None:
        # the name that nobody chose is replaced without asking, as a log is
        target = rank.own(output if output is not None else Path(f"precisionlab-{stem}.json"))
        _check_output(target, force or output is None)
        return target.resolve()
    _check_output(output, force)
    if output is None and options.format is OutputFormat.JSON:
        raise SettingsError("--format json needs a file: stdout and stderr are the script's", hint="-o report.json")
    return output.resolve() if output is not None else None


class _Job:
    """One audited run in the process that started it; forked children of the script are not concerned."""

    def __init__(
        self, options: AuditOptions, schedule: Schedule, output: Path | None, quiet: bool, rank: Rank | None = None, prints: bool = True
    ) -> None:
        self.options = options
        self.schedule = schedule
        self.output = output
        self.quiet = quiet
        self.rank = rank
        self.prints = prints and (rank is None or rank.number == 0)
        """Whether the table goes to stderr."""
        self.speaks = rank is None or rank.number == 0
        self._pid = os.getpid()
        self._done = False

    def run(self, script: Script) -> int:
        """Run the script to its end, write the report, and return the exit code."""
        words = self.schedule.words()
        if not self.quiet and self.speaks:
            how = "every op of every step" if words == "all" else f"every op of the observed steps ({words})"
            say(
                f"precisionlab: running {script.name} with {how} done a second time in fp64 (several times slower); "
                f"the report will be {' and '.join(self._where())}"
            )
        from precisionlab.session import audit

        watcher = audit(steps=None if words == "all" else self.schedule, **self.options.engine_settings())
        main = prepare(script)
        real_exit = os._exit
        os._exit = self._on_exit(real_exit, watcher, script)  # type: ignore[assignment]
        try:
            with ReportOnTermination(lambda: self._terminated(watcher, script)):
                watcher.start()
                ending = execute(script, main)
        finally:
            os._exit = real_exit
        if os.getpid() != self._pid:  # a forked child that came out of the script: nothing of this is its business
            return ending.code
        with termination_ignored():
            return int(self.finish(watcher, script, ending))

    def _where(self) -> list[str]:
        file = [f"in {self.output}"] if self.output else []
        return [*file, *(["on stderr at the end"] if self.prints else [])]

    def _terminated(self, watcher: Audit, script: Script) -> None:
        if self._done:
            return
        try:
            self._say(f"precisionlab: {script.name} is ended by SIGTERM; the report covers what ran")
            self.finish(watcher, script, Ending(128 + signal.SIGTERM, signal="SIGTERM"))
        except Exception as error:
            say(internal_error(error))

    def _say(self, text: str) -> None:
        """One line on stderr, from the first rank alone."""
        if self.speaks:
            say(text)

    def _on_exit(self, real: Callable[[int], Any], watcher: Audit, script: Script) -> Callable[[int], Any]:
        def leave(status: int) -> NoReturn:
            """``os._exit``, with the report written before."""
            try:
                if os.getpid() == self._pid and not self._done:
                    self._say(f"precisionlab: {script.name} called os._exit({status})")
                    self.finish(watcher, script, Ending(status & 0xFF))
            finally:
                real(status)
            raise AssertionError

        return leave

    def finish(self, watcher: Audit, script: Script, ending: Ending) -> ExitCode | int:
        """Write the report; the exit code of the whole."""
        self._done = True
        report = _close(watcher, ending)
        report.record.settings["command"] = self.command(script)
        if self.rank is not None:
            report.record.settings["rank"] = f"{self.rank.number} of {self.rank.count}"
        _flush(sys.stdout)
        self._write(report)
        if ending.interrupted:
            self._say("precisionlab: interrupted; the report covers what ran")
            return ExitCode.INTERRUPTED
        judged = self._judge(report, watcher)
        return ending.code or judged

    def _write(self, report: Report) -> None:
        if self.prints:
            sys.stderr.write(_table(report, self.options.all))
            sys.stderr.flush()
        if self.output is None:
            return
        wanted = self.options.format or (OutputFormat.JSON if self.output.suffix == ".json" else OutputFormat.TABLE)
        if wanted is OutputFormat.JSON:
            from precisionlab.report.to_json import report_to_json

            text = report_to_json(report)
        else:
            from precisionlab.report.table import render_table

            text = render_table(report, self.options.all) + "\n"
        try:
            self.output.write_text(text, encoding="utf-8")
        except OSError as error:
            if not self.prints:
                sys.stderr.write(_table(report, self.options.all))
            raise SettingsError(f"{self.output} cannot be written: {error.strerror}; the report is above", hint="another path") from None
        beside = f", those of the other {self.rank.count - 1} ranks beside it" if self.rank is not None else ""
        self._say(f"precisionlab: {str(report.verdict).upper()}: the report is in {self.output}{beside}")

    def _judge(self, report: Report, watcher: Audit) -> ExitCode:
        record, coverage = report.record, report.record.coverage
        if coverage.shadowed == 0:
            self._say(f"precisionlab: not trustworthy: {self._nothing_seen(report, watcher)}")
            return ExitCode.UNTRUSTWORTHY
        if coverage.share < self.options.min_coverage:
            self._say(
                f"precisionlab: not trustworthy: {coverage.share:.1%} of the ops were shadowed, less than --min-coverage"
                f" {self.options.min_coverage:g}; --all lists the others, and why"
            )
            return ExitCode.UNTRUSTWORTHY
        if report.verdict is Verdict.UNKNOWN and record.error is None:
            self._say("precisionlab: not trustworthy: the audit cannot answer; the notes of the report say why")
            return ExitCode.UNTRUSTWORTHY
        return ExitCode.FINDINGS if report.verdict in _FAILING[self.options.fail_on] else ExitCode.NOTHING_FOUND

    def _nothing_seen(self, report: Report, watcher: Audit) -> str:
        record = report.record
        if record.optimizer_steps and watcher.unobserved_steps:
            return f"the script took {record.optimizer_steps} optimizer steps, and none of those to observe ({self.schedule.words()})"
        if record.coverage.ops:
            return "no op could be shadowed; --all lists them, and why"
        return "the script ran no floating-point op in its main thread and process"

    def command(self, script: Script) -> str:
        """The command line that repeats this run."""
        words = ["precisionlab", "run"]
        if self.schedule.stop is not None or self.schedule.start:
            words += ["--steps", f"{self.schedule.start}:{'' if self.schedule.stop is None else self.schedule.stop}"]
        if self.schedule.every != 1:
            words += ["--every", str(self.schedule.every)]
        for name in ("preset", "resync", "target"):
            if getattr(self.options, name) is not None:
                words += [f"--{name}", str(getattr(self.options, name))]
        for name, value in sorted(self.options.settings.items()):
            words += ["--set", f"{name}={value:g}"]
        return shlex.join([*words, *(["-m"] if script.module else []), script.name, *script.arguments])


def _close(watcher: Audit, ending: Ending) -> Report:
    """End the audit; in another thread than its own (``os._exit`` there) the report is what was seen so far."""
    if watcher.active and watcher.in_own_thread:
        error = ending.error
        watcher.__exit__(type(error) if error is not None else None, error, None)
    report = watcher.report
    record = report.record
    if ending.signal:
        report.notes.append(f"{ending.signal} ended the script after {record.optimizer_steps} optimizer steps")
    if ending.error is None and record.coverage.shadowed and not record.optimizer_steps and not record.skipped_steps:
        report.notes.append("no optimizer stepped in the script's main thread: no weight update was judged")
    return report


def _table(report: Report, all_ops: bool) -> str:
    from rich.console import Console

    from precisionlab.report.table import render_table

    console = Console(stderr=True)
    color = console.is_terminal and not console.no_color
    width = min(max(console.width, MIN_WIDTH), MAX_WIDTH) if console.is_terminal else DEFAULT_WIDTH
    return render_table(report, all_ops, color, width) + "\n"


def _flush(stream: Any) -> None:
    """What the script printed comes before the report; a closed or broken stdout is the script's business."""
    try:
        stream.flush()
    except (OSError, ValueError, AttributeError):
        return
