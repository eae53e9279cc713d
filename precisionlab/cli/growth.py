"""``precisionlab growth TARGET --along AXIS=SIZES``: does it hold at 32k tokens and 96 layers? Measured, fitted, forecast, confirmed."""

from __future__ import annotations

import contextlib
import math
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from precisionlab.cli.audit import _FAILING, _check_output
from precisionlab.cli.codes import ExitCode
from precisionlab.cli.guard import guarded, say
from precisionlab.cli.options import AuditOptions, FailOn, merged, parse_assignments
from precisionlab.errors import SettingsError, SubjectError
from precisionlab.subjects.target import check_source, parse_target
from precisionlab.subjects.words import Kernels, Mode, parse_dtype

if TYPE_CHECKING:
    from precisionlab.growth.analysis import AxisGrowth, Trend
    from precisionlab.growth.axes import Axis
    from precisionlab.growth.confirm import Confirmation
    from precisionlab.growth.sweep import Sweeper
    from precisionlab.report.model import Report

EPILOG = (
    "Examples: precisionlab growth model.py --along seq_len=128:4096:x2 | precisionlab growth model.py --dtype bf16 --along depth=2:32:x2 "
    "--target depth=96 --confirm | precisionlab growth model.py --along seq_len=64:1024:x2 -o growth.svg"
)


def growth(
    target: Annotated[str, typer.Argument(metavar="TARGET", help="model.py, model.py:name or package.module:name", show_default=False)],
    along: Annotated[
        list[str] | None,
        typer.Option("--along", metavar="AXIS=SIZES", help="128:4096:x2, 4:16:+4 or 8,12,16; repeatable", show_default=False),
    ] = None,
    dtype: Annotated[str, typer.Option(help="fp16 or bf16")] = "fp16",
    mode: Annotated[Mode, typer.Option(help="amp, pure or master, as in audit")] = Mode.AMP,
    confirm: Annotated[bool, typer.Option("--confirm", help="run the forecast size too, and compare")] = False,
    wanted: Annotated[
        list[str] | None, typer.Option("--target", metavar="AXIS=SIZE", help="a size that must hold; repeatable", show_default=False)
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="runs of each size")] = 3,
    steps: Annotated[int, typer.Option(min=1, help="training steps of each run")] = 1,
    kernels: Annotated[Kernels, typer.Option(help="native: this machine's; fast: half dot products in fp32, rounded once")] = Kernels.AUTO,
    budget: Annotated[float, typer.Option(min=0, metavar="SECONDS", help="leave out sizes that would take longer")] = math.inf,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help=".json, .svg, .png or .html", show_default=False)
    ] = None,
    force: Annotated[bool, typer.Option("-f", "--force", help="let -o replace a file")] = False,
    fail_on: Annotated[FailOn, typer.Option(help="the mildest verdict that gives exit code 1")] = FailOn.BROKEN,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="a threshold; repeatable", show_default=False)
    ] = None,
    debug: Annotated[bool, typer.Option("--debug", help="tracebacks")] = False,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="no progress")] = False,
) -> None:
    """Run a model at several sizes, fit how its errors grow, and forecast where a limit is reached.

    Costs the sum of its audits; Ctrl-C ends with what there is. Exit codes: 0 nothing found, 1 findings, 2 wrong use, 3 no law could be
    fitted, 130 interrupted.
    """
    with guarded(debug):
        request = _request(target, along or [], wanted or [], output, force, confirm)
        options = merged(AuditOptions(), parse_assignments(set_ or []), "--set")
        settings = dict(
            dtype=parse_dtype(dtype),
            mode=mode,
            seeds=seeds,
            steps=steps,
            kernels=kernels,
            budget_s=budget,
            progress=None if quiet else _Progress(),
            **options.settings,
        )
        code = _run(request, settings, fail_on)
    raise typer.Exit(code)


@dataclass(frozen=True)
class _Request:
    """What was asked for, checked before anything runs."""

    target: str
    axes: tuple[Axis, ...]
    targets: dict[str, float]
    output: Path | None
    confirm: bool

    @property
    def command(self) -> str:
        """The command line without options that change no number."""
        words = [f"--along {axis.name}={','.join(f'{size:g}' for size in axis.sizes)}" for axis in self.axes]
        return " ".join(["precisionlab growth", self.target, *words, *(f"--target {n}={s:g}" for n, s in self.targets.items())])


def _request(target: str, along: list[str], wanted: list[str], output: Path | None, force: bool, confirm: bool) -> _Request:
    from precisionlab.growth.axes import parse_axes, parse_targets

    axes = parse_axes(along)
    if not axes:
        raise SettingsError("--along is missing: nothing grows", hint="--along seq_len=128:4096:x2")
    targets = parse_targets(wanted, axes)
    _check_output(output, force)
    if output is not None and output.suffix != ".json":
        if output.suffix not in PICTURES:
            raise SettingsError(f"-o {output}: no such kind of file", hint="growth.json, .svg, .png or .html")
        from precisionlab.growth.picture import check_matplotlib

        check_matplotlib()
    path = parse_target(target).path
    if path is not None:
        check_source(path)
    return _Request(target, axes, targets, output, confirm)


def _run(request: _Request, settings: dict[str, Any], fail_on: FailOn) -> ExitCode:
    from precisionlab.growth.analysis import analysed
    from precisionlab.growth.document import growth_document
    from precisionlab.growth.findings import add_findings
    from precisionlab.growth.fits import Fit, Onset
    from precisionlab.growth.profile import profiles
    from precisionlab.growth.resize import check_axes
    from precisionlab.growth.sweep import Sweeper
    from precisionlab.subjects.loader import load_subject
    from precisionlab.thresholds import Thresholds

    subject = load_subject(request.target)
    check_axes(subject, request.axes)
    sweeper = Sweeper(subject, **settings)
    thresholds = Thresholds.from_settings({name: settings[name] for name, _, _ in Thresholds.describe() if name in settings})
    found: list[AxisGrowth] = []
    confirmed: list[Confirmation] = []
    for axis in request.axes:
        found.append(analysed(sweeper.along(axis), thresholds))
        if sweeper.interrupted:
            break
        if request.confirm:
            confirmed += _confirmed(sweeper, found[-1])
    last = found[-1].sweep
    inside = profiles(last.at(last.sizes[-1]), last.dtype, thresholds) if last.sizes else ()
    report = sweeper.report
    if report is None:
        say("interrupted before the first size was done")
        return ExitCode.INTERRUPTED
    report.record.growth = growth_document(found, inside, confirmed)
    report.record.settings.update(command=request.command, seeds=sweeper.seeds)
    add_findings(report, found, request.targets)
    _write(request, report, found, inside, confirmed)
    if sweeper.interrupted:
        return ExitCode.INTERRUPTED
    if not any(isinstance(trend.law, (Fit, Onset)) for growth in found for trend in growth.trends):
        say("not trustworthy: no law could be fitted")
        say("  try: more sizes, further apart, or more --seeds")
        return ExitCode.UNTRUSTWORTHY
    return ExitCode.FINDINGS if report.verdict in _FAILING[fail_on] else ExitCode.NOTHING_FOUND


def _confirmed(sweeper: Sweeper, growth: AxisGrowth) -> list[Confirmation]:
    """At the size of the first forecast, or the largest that the memory, the time and the subject allow."""
    from precisionlab.growth.confirm import confirmation_size, confirmations

    spent = sum(m.seconds for m in growth.sweep.measurements)
    refused: dict[float, str] = {}

    def obstacle(size: float) -> str:
        return refused.get(size) or sweeper.obstacle(growth.sweep, size, max(CONFIRMATION_COST * spent, 60.0))

    while True:
        size, reason = confirmation_size(growth, obstacle)
        try:
            found = confirmations(growth.trends, sweeper.measure(growth.sweep.axis, size)) if size else []
        except SubjectError as error:
            refused[size] = error.message
            continue
        except KeyboardInterrupt:
            sweeper.interrupted = True
            found, reason = [], "the confirmation was interrupted"
        growth.sweep.notes.extend([reason] if reason else [])
        return found


def _write(request: _Request, report: Report, found: list[AxisGrowth], inside: tuple[Trend, ...], confirmed: list[Confirmation]) -> None:
    """A file where one is asked for; the words and a plot of text to stdout in any case but that of a JSON file."""
    from precisionlab.growth.words import findings_text, inside_text, text

    output = request.output
    if output is not None and output.suffix == ".json":
        from precisionlab.report.to_json import report_to_json

        with _writing(output):
            output.write_text(report_to_json(report), encoding="utf-8")
        say(f"{str(report.verdict).upper()}: growth is in {output}")
        return
    if output is not None:
        from precisionlab.growth.picture import write_picture

        with _writing(output):
            write_picture(output, found)
        say(f"the picture is in {output}")
    parts = [text(growth, [c for c in confirmed if c.axis == growth.sweep.axis]) for growth in found]
    parts += [inside_text(inside), findings_text(report)]
    sys.stdout.write(_wrapped("\n\n".join(part for part in parts if part)) + "\n")
    sys.stdout.flush()


@contextlib.contextmanager
def _writing(output: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SettingsError(f"{output} cannot be written: {error.strerror}", hint="another path") from None


def _wrapped(text: str) -> str:
    """Lines no wider than the terminal, or 100 columns; continued four columns in."""
    from rich.console import Console

    console = Console()
    width = min(max(console.width, MIN_WIDTH), MAX_WIDTH) if console.is_terminal else WIDTH
    lines: list[str] = []
    for line in text.split("\n"):
        indent = " " * (len(line) - len(line.lstrip()) + 4)
        fits = len(line) <= width
        lines += [line] if fits else textwrap.wrap(line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return "\n".join(lines)


class _Progress:
    """One line a size on stderr, with its seeds; every run on a terminal."""

    def __init__(self) -> None:
        self._size = ""

    def __call__(self, text: str) -> None:
        size = text.partition(", seed")[0]
        if size != self._size or sys.stderr.isatty():
            say(text if sys.stderr.isatty() else size)
        self._size = size


WIDTH, MIN_WIDTH, MAX_WIDTH = 100, 80, 120
CONFIRMATION_COST = 4.0
"""Without a budget a confirmation may take this many times what its sweep took, or a minute."""
PICTURES = (".svg", ".png", ".html")
