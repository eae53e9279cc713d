"""``precisionlab plan TARGET``: the fewest changes that make a model safe in low precision, each verified by an audit."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from precisionlab.cli.audit import _check_output, _resolve
from precisionlab.cli.codes import ExitCode
from precisionlab.cli.guard import guarded, say
from precisionlab.cli.options import OutputFormat
from precisionlab.errors import SettingsError
from precisionlab.subjects.target import check_source, parse_target
from precisionlab.subjects.words import Kernels, Mode

EPILOG = (
    "Examples: precisionlab plan model.py --dtype fp16 | precisionlab plan model.py:GPT --dtype bf16 --mode pure -o plan.json | "
    "precisionlab plan model.py --from fp32"
)


def plan(
    target: Annotated[str, typer.Argument(metavar="TARGET", help="model.py, model.py:name or package.module:name", show_default=False)],
    dtype: Annotated[str | None, typer.Option(help="fp16 or bf16", show_default="fp16")] = None,
    mode: Annotated[Mode | None, typer.Option(help="amp, pure or master", show_default="amp")] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="training steps of each audit", show_default="2")] = None,
    budget: Annotated[
        float, typer.Option(min=0.0, max=1.0, metavar="SHARE", help="largest share of the forward FLOPs that may leave low precision")
    ] = 1.0,
    max_audits: Annotated[int, typer.Option(min=1, help="audits that the search may run")] = 12,
    lower: Annotated[
        str | None,
        typer.Option("--from", metavar="fp32", help="say how much may run in tf32, bf16, fp16 and fp8, starting there", show_default=False),
    ] = None,
    format: Annotated[OutputFormat | None, typer.Option(help="by default from the suffix of -o, else table", show_default=False)] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="write it there; JSON is a plan file", show_default=False)
    ] = None,
    force: Annotated[bool, typer.Option("-f", "--force", help="let -o replace a file")] = False,
    kernels: Annotated[Kernels | None, typer.Option(help="native or fast, as for audit", show_default="auto")] = None,
    seed: Annotated[int | None, typer.Option(help="seed of all random numbers", show_default="0")] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="a threshold; repeatable", show_default=False)
    ] = None,
    debug: Annotated[bool, typer.Option("--debug", help="tracebacks")] = False,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="no progress")] = False,
) -> None:
    """Find the cheapest changes that make a model safe, apply them, audit again, and print both.

    Exit codes: 0 nothing broken is left, 1 something is (or the budget does not suffice), 2 wrong use.
    """
    given = dict(dtype=dtype, mode=mode, steps=steps, format=format, kernels=kernels, seed=seed)
    with guarded(debug):
        options = _resolve(target, given, set_ or [])
        if lower not in (None, "fp32"):
            raise SettingsError(f"--from starts from fp32, not {lower!r}", hint="--from fp32")
        _check_output(output, force)
        path = parse_target(target).path
        if path is not None:
            check_source(path)

        from precisionlab.cli import planning  # torch: not for --help

        wanted = options.format or (OutputFormat.JSON if output is not None and output.suffix == ".json" else OutputFormat.TABLE)
        if lower is not None:
            text, repaired = planning.lowered(target, options, quiet, as_json=wanted is OutputFormat.JSON)
        else:
            text, repaired = planning.proposed(target, options, budget, max_audits, quiet, as_json=wanted is OutputFormat.JSON)
        if output is None:
            sys.stdout.write(text)
            sys.stdout.flush()
        else:
            output.write_text(text, encoding="utf-8")
            say(f"the plan is in {output}")
    raise typer.Exit(ExitCode.NOTHING_FOUND if repaired else ExitCode.FINDINGS)
