"""``precisionlab growth TARGET --along AXIS=SIZES``: does it hold at 32k tokens and 96 layers? Measured, fitted, forecast, confirmed."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from precisionlab.cli.audit import _check_output
from precisionlab.cli.codes import ExitCode
from precisionlab.cli.guard import guarded, say
from precisionlab.cli.options import AuditOptions, FailOn, merged, parse_assignments
from precisionlab.errors import SettingsError
from precisionlab.subjects.target import check_source, parse_target
from precisionlab.subjects.words import Kernels, Mode, parse_dtype

if TYPE_CHECKING:
    from precisionlab.growth.analysis import AxisGrowth
    from precisionlab.growth.confirm import Confirmation
    from precisionlab.growth.sweep import Sweeper

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
        options = merged(AuditOptions(), parse_assignments(set_ or []), "--set")
        code = _growth(
            target,
            along or [],
            wanted or [],
            output,
            force,
            confirm,
            fail_on,
            quiet,
            dict(
                dtype=parse_dtype(dtype),
                mode=mode,
                seeds=seeds,
                steps=steps,
                kernels=kernels,
                budget_s=budget,
                progress=None if quiet else say,
                **options.settings,
            ),
        )
    raise typer.Exit(code)


def _growth(
    target: str,
    along: list[str],
    wanted: list[str],
    output: Path | None,
    force: bool,
    confirm: bool,
    fail_on: FailOn,
    quiet: bool,
    settings: dict[str, Any],
) -> ExitCode:
    from precisionlab.growth.axes import parse_axes, parse_targets

    axes = parse_axes(along)
    if not axes:
        raise SettingsError("--along is missing: nothing grows", hint="--along seq_len=128:4096:x2")
    parse_targets(wanted, axes)
    _check_output(output, force)
    path = parse_target(target).path
    if path is not None:
        check_source(path)

    from precisionlab.growth.analysis import analysed
    from precisionlab.growth.resize import check_axes
    from precisionlab.growth.sweep import Sweeper
    from precisionlab.subjects.loader import load_subject

    subject = load_subject(target)
    check_axes(subject, axes)
    sweeper = Sweeper(subject, **settings)
    found: list[AxisGrowth] = []
    confirmed: list[Confirmation] = []
    for axis in axes:
        found.append(analysed(sweeper.along(axis)))
        if sweeper.interrupted:
            break
        if confirm:
            confirmed += _confirmed(sweeper, found[-1])
    sys.stdout.write(_text(found, confirmed))
    sys.stdout.flush()
    return ExitCode.INTERRUPTED if sweeper.interrupted else ExitCode.NOTHING_FOUND


def _confirmed(sweeper: Sweeper, growth: AxisGrowth) -> list[Confirmation]:
    from precisionlab.growth.confirm import confirmation_size, confirmations

    size, reason = confirmation_size(growth, lambda n: sweeper.obstacle(growth.sweep, n))
    if reason:
        growth.sweep.notes.append(reason)
    if not size:
        return []
    return confirmations(growth.trends, sweeper.measure(growth.sweep.axis, size))


def _text(found: list[AxisGrowth], confirmed: list[Confirmation]) -> str:
    from precisionlab.growth.words import text

    return "\n\n".join(text(growth, [c for c in confirmed if c.axis == growth.sweep.axis]) for growth in found) + "\n"
