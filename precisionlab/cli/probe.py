"""``precisionlab probe``: what the kernels of this machine accumulate in, measured."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from precisionlab.cli.audit import _check_output
from precisionlab.cli.guard import guarded
from precisionlab.cli.options import OutputFormat

EPILOG = (
    "Examples: precisionlab probe -o here.json | precisionlab probe --op 'native_layer_norm*' --dtype bf16 | "
    "precisionlab probe --show h100 | precisionlab audit model.py --target here.json"
)


def probe(
    op: Annotated[list[str] | None, typer.Option("--op", metavar="GLOB", help="only these ops; repeatable", show_default="all")] = None,
    dtype: Annotated[list[str] | None, typer.Option(help="fp32, bf16 or fp16; repeatable", show_default="all three")] = None,
    device: Annotated[str, typer.Option(help="cpu, or cuda where there is one")] = "cpu",
    flags: Annotated[bool, typer.Option("--flags/--no-flags", help="also what switches of torch change")] = True,
    show: Annotated[
        str | None, typer.Option("--show", metavar="PROFILE", help="measure nothing: show a file or a shipped profile", show_default=False)
    ] = None,
    format: Annotated[OutputFormat | None, typer.Option(help="by default from the suffix of -o, else table", show_default=False)] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="write it there, for --target", show_default=False)
    ] = None,
    force: Annotated[bool, typer.Option("-f", "--force", help="let -o replace a file")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="tracebacks")] = False,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="no progress")] = False,
) -> None:
    """Measure what the kernels of this machine accumulate in, in which order, how they round, and what they flush to zero.

    Nothing is looked up: each kernel sums crafted terms, and its results tell. About a minute for everything.
    """
    with guarded(debug):
        _check_output(output, force)
        from precisionlab.cli import probing  # numpy and the formats: not for --help

        probing.run(show, op or ["*"], dtype or [], device, flags, format, output, quiet)
