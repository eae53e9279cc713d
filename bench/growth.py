"""Laws of growth against theory, and forecasts against measurements: ``./dev bench growth [--fast]``.

Three tables: anchors (laws and numbers of growth that theory or publications give), forecasts (fitted up to N, the value at 4 N inside
the 95 % interval) and onsets (first overflow or stagnation within a factor of 1.5). ``--fast`` takes one format and two seeds.
Exit 1 if an anchor is outside its range, fewer than 10 of 12 forecasts hold, or fewer than 5 of 6 onsets.
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

from bench.growing import anchors
from bench.growing.cases import BEYOND, FORECASTS, ONSETS
from bench.growing.forecasts import Outcome, forecast_onset, forecast_value
from bench.science import WIDTH, line

NEEDED_FORECASTS, NEEDED_ONSETS = 10 / 12, 5 / 6


def row(found: Outcome) -> str:
    """One line of the tables of forecasts."""
    interval = f"{found.forecast:.4g} [{found.low:.4g}, {found.high:.4g}]"
    return f"  {found.name:46}{interval:34}{found.measured:>10.4g}  {'' if found.holds else 'MISSED  '}{found.law}"


def main(words: list[str] | None = None) -> int:
    """See the module docstring."""
    parser = argparse.ArgumentParser(prog="bench.growth", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fast", action="store_true", help="one format and two seeds")
    parser.add_argument("--only", choices=("anchors", "forecasts", "onsets"), help="one of the tables")
    options = parser.parse_args(words)
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    seeds, dtypes = (2, ("bf16",)) if options.fast else (3, ("fp16", "bf16"))
    begin, good = time.perf_counter(), True
    if options.only in (None, "anchors"):
        print(f"  {'anchors':{WIDTH}}{'measured':>12}{'expected':>20}  {'allowed':24}by")
        outside = 0
        for checks in (anchors.shared(), anchors.sums(), anchors.depth(dtypes, seeds), anchors.sizes(seeds)):
            for check in checks:
                print(line(check), flush=True)
                outside += not check.holds
        print(f"{outside} outside their range\n")
        good = good and not outside
    for name, cases, needed, run in (
        (f"value at {BEYOND} N", FORECASTS, NEEDED_FORECASTS, forecast_value),
        ("first size", ONSETS, NEEDED_ONSETS, forecast_onset),
    ):
        if options.only not in (None, "forecasts" if cases is FORECASTS else "onsets"):
            continue
        print(f"  {name:46}{'forecast':34}{'measured':>10}")
        held = 0
        for case in cases:
            found = run(case, seeds)
            print(row(found), flush=True)
            held += found.holds
        print(f"{held} of {len(cases)}\n")
        good = good and held >= needed * len(cases)
    print(f"{time.perf_counter() - begin:.0f} s")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
