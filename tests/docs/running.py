"""Runs the examples of a page as its reader would: files are written, Python goes on in one namespace, commands print what is shown."""

from __future__ import annotations

import contextlib
import io
import linecache
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

from .pages import ROOT, Block, Command

TOLERANCE = 0.2
"""Relative: decimal numbers differ a little between machines and versions of torch. Whole numbers must be equal."""
_PART = re.compile(
    r"(?P<any>\.\.\.)|(?P<decimal>(?<![\w.])-?\d+(?:\.\d+(?:e[-+]?\d+)?|e[-+]?\d+)(?![\w.]*\w))|(?P<rule>-{4,})|(?P<space>\s+)"
)
_DECIMAL = r"(-?\d+(?:\.\d+)?(?:e[-+]?\d+)?|nan|inf)"


def agrees(shown: str, printed: str) -> bool:
    """Whether ``printed`` is what a page shows: ``...`` stands for anything, white space and the kernels of the machine do not count."""
    shown, printed = (re.sub(r"kernels (fast|native)", "kernels *", text).strip() for text in (shown, printed))
    pattern, wanted, end = "", [], 0
    for part in _PART.finditer(shown):
        pattern += re.escape(shown[end : part.start()])
        end = part.end()
        if part["decimal"]:
            wanted.append(float(part["decimal"]))
        pattern += {"any": ".*?", "decimal": _DECIMAL, "rule": "-+", "space": r"\s+"}[part.lastgroup or ""]
    found = re.fullmatch(pattern + re.escape(shown[end:]), printed, re.DOTALL)
    return found is not None and all(abs(float(n) - w) <= TOLERANCE * abs(w) for n, w in zip(found.groups(), wanted, strict=True))


class _Stream(io.StringIO):
    """Keeps what is written to it, and hands it on to a stream for both."""

    def __init__(self, both: io.StringIO) -> None:
        super().__init__()
        self.both = both

    def write(self, text: str) -> int:
        self.both.write(text)
        return super().write(text)


def run_block(block: Block, page: Path, names: dict[str, Any]) -> None:
    """Writes, executes or runs one block in the working folder."""
    if block.file is not None:
        Path(block.file).write_text(block.text, encoding="utf-8")
    elif block.language == "python":
        source = "\n" * (block.line - 1) + block.text
        name = f"{page.stem}.py"
        lines = page.read_text(encoding="utf-8").splitlines(keepends=True)  # line numbers are those of the page
        linecache.cache[name] = (sum(map(len, lines)), None, lines, name)
        exec(compile(source, name, "exec"), names)
    elif block.language == "console":
        for command in block.commands():
            run_command(command)


def run_command(command: Command) -> None:
    """Runs ``precisionlab ...`` and compares its output and exit code with what the page shows (``...`` stands for anything)."""
    program, *arguments = shlex.split(command.words)
    assert program == "precisionlab", f"{command.words}: only precisionlab is run here"
    code, output, both = _as_process(arguments) if arguments[0] == "run" else _in_process(arguments)
    assert code == command.code, f"{command.words} gives exit code {code}, the page says {command.code}\n{both}"
    if command.shown.strip() and not any(agrees(command.shown, text) for text in (output, both)):
        raise AssertionError(f"{command.words} prints\n{both}\nand the page shows\n{command.shown}")


def _in_process(arguments: list[str]) -> tuple[int, str, str]:
    """A command in this process, which has torch already: exit code, stdout, both streams."""
    from precisionlab.cli.app import main

    both = io.StringIO()
    output, errors = _Stream(both), _Stream(both)
    before = sys.argv
    sys.argv = ["precisionlab", *arguments]
    code: Any = 0
    try:
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
            main()
    except SystemExit as left:
        code = left.code
    finally:
        sys.argv = before
    return int(code or 0), output.getvalue(), both.getvalue()


def _as_process(arguments: list[str]) -> tuple[int, str, str]:
    """``run`` takes a process over (signals, ``sys.argv``, ``__main__``): it gets one."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-m", "precisionlab", *arguments], capture_output=True, text=True, env=environment, check=False)
    return done.returncode, done.stdout, done.stdout + done.stderr
