"""Every example of the documentation runs and prints what the page shows."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import precisionlab.session

from .pages import DOCS, WRITTEN_BY_HAND, Block, blocks
from .running import agrees, run_block

RUNNABLE = {"python", "console", "toml"}
MARKS = {"no-run", "slow"}
NAMES = [str(page.relative_to(DOCS)) for page in WRITTEN_BY_HAND]


def _run(page: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, *, slow: bool) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    stops: list[str] = []
    monkeypatch.setattr(sys, "breakpointhook", lambda *given, **named: stops.append("stopped"))
    chosen = [b for b in blocks(page) if b.language in RUNNABLE and "no-run" not in b.marks and (slow or "slow" not in b.marks)]
    names: dict[str, Any] = {"__name__": "__main__"}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            for block in chosen:
                run_block(block, page, names)
    finally:
        torch.set_num_threads(threads)
        for file in (b.file for b in chosen if b.file):
            sys.modules.pop(file.removesuffix(".py"), None)
        left_open = precisionlab.session.running()
        if left_open is not None:
            left_open.stop()
    assert left_open is None, "an example leaves its audit running"
    stopping = [b for b in chosen if b.language == "python" and ".break_on(" in b.text and "hook=" not in b.text]
    assert len(stops) >= len(stopping), "an example of break_on does not stop"


@pytest.mark.parametrize("name", NAMES)
def test_examples_run_and_print_what_the_page_shows(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _run(DOCS / name, tmp_path, monkeypatch, slow=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [n for n, page in zip(NAMES, WRITTEN_BY_HAND, strict=True) if any("slow" in b.marks for b in blocks(page))]
)
def test_slow_examples_run_and_print_what_the_page_shows(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _run(DOCS / name, tmp_path, monkeypatch, slow=True)


@pytest.mark.parametrize("name", NAMES)
def test_blocks_that_do_not_run_say_why_and_files_are_used(name: str) -> None:
    found = blocks(DOCS / name)
    assert [b.line for b in found if b.marks - MARKS] == [], "an unknown mark"
    assert [b.line for b in found if ("no-run" in b.marks) != b.excused] == [], "no-run and its reason come together"
    unused = [b.file for i, b in enumerate(found) if b.file and b.language == "python" and not _used(b, found[i + 1 :])]
    assert unused == [], "a file that no later example uses"


def _used(file: Block, later: list[Block]) -> bool:
    return file.file is not None and any(file.file in b.text for b in later)


def test_output_may_differ_in_the_last_digits_and_nowhere_else() -> None:
    shown = "loss 1.25, 3 faults\n--------\n... seed 0"
    assert agrees(shown, "loss  1.26, 3 faults\n------\nmodel.py: fp16, seed 0")
    assert not agrees(shown, "loss 2.25, 3 faults\n------\nseed 0")
    assert not agrees(shown, "loss 1.25, 4 faults\n------\nx seed 0")
    assert not agrees(shown, "loss 1.25, 3 faults\n------\nx seed 1")
