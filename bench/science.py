"""Numbers of low-precision arithmetic, published or derived, measured again: value, value expected, allowed spread.

    ./dev bench science             all anchors (half a minute)
    ./dev bench science A4 A9       some of them
    ./dev bench science --list      what there is

``by`` says what produced a number: ``audit`` (a small program under ``pl.audit``, read from its report or its fp64 twins), ``emulation``
(``precisionlab.formats``), ``torch`` (a kernel's own result) or ``formula``. Exit 1 if a value is outside its range, 2 for an anchor that
does not exist. Sources stand in the docstrings of ``bench/anchors``.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from pathlib import Path

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from bench.anchors import ANCHORS, Check

WIDTH = 74


def line(check: Check) -> str:
    """One line of the table."""
    allowed = f"{check.low:.4g} .. {check.high:.4g}" if check.low != check.high else "exactly"
    verdict = "" if check.holds else "  OUTSIDE"
    return f"  {check.claim:{WIDTH}}{check.measured:>12.5g}{check.expected:>20}  {allowed:24}{check.by}{verdict}"


def in_order(name: str) -> tuple[bool, int, str]:
    """A1, A2, ... A10, then the others."""
    number = name[1:]
    return (not number.isdigit(), int(number) if number.isdigit() else 0, name)


def main(words: list[str] | None = None) -> int:
    """See the module docstring."""
    parser = argparse.ArgumentParser(prog="bench.science", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("anchors", nargs="*", metavar="ANCHOR", help="A4, A9, norms, ...; all of them if none is given")
    parser.add_argument("--list", action="store_true", help="print the anchors and end")
    options = parser.parse_args(words)
    if options.list:
        for anchor in (ANCHORS[name] for name in sorted(ANCHORS, key=in_order)):
            print(f"{anchor.name:8}{anchor.title}")
        return 0
    unknown = [name for name in options.anchors if name not in ANCHORS]
    if unknown:
        print(f"there is no anchor {', '.join(unknown)}; there is: {', '.join(ANCHORS)}", file=sys.stderr)
        return 2
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    print(f"  {'':{WIDTH}}{'measured':>12}{'expected':>20}  {'allowed':24}by")
    held = outside = 0
    for name in options.anchors or sorted(ANCHORS, key=in_order):
        anchor, begin = ANCHORS[name], time.perf_counter()
        print(f"{name}  {anchor.title}")
        for check in anchor.run():
            print(line(check), flush=True)
            held, outside = held + check.holds, outside + (not check.holds)
        print(f"  {time.perf_counter() - begin:.1f} s", flush=True)
    print(f"{held + outside} values, {outside} outside their range")
    return 1 if outside else 0


if __name__ == "__main__":
    sys.exit(main())
