"""The command as a process: exit codes, the two streams, and how fast it starts."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

DEMO = Path(__file__).parents[2] / "precisionlab" / "models" / "tiny_gpt.py"
HEAVY = ("torch", "numba", "scipy", "numpy")


def run(*words: object, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "precisionlab", *map(str, words)], capture_output=True, text=True, env={**os.environ, **environment}
    )


IN_PROCESS = "from typer.testing import CliRunner; from precisionlab.cli.app import app; CliRunner().invoke(app, {!r})"


@pytest.mark.parametrize(
    "statement",
    [
        "from precisionlab import Report, Finding, Verdict, Subject, Thresholds",
        "import precisionlab.report.table, precisionlab.report.to_json, precisionlab.report.fragment",
        *(IN_PROCESS.format(words) for words in (["-h"], ["audit", "-h"], ["--version"], ["explain", "PL101"], ["audit", "none.py"])),
    ],
)
def test_starting_imports_nothing_heavy(statement: str) -> None:
    code = f"import sys\n{statement}\nprint([name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr


def test_version_names_tool_torch_and_python() -> None:
    assert re.fullmatch(r"precisionlab \S+ \(torch \S+, Python \S+\)\n", run("--version").stdout)


def test_unknown_command_is_2() -> None:
    done = run("no-such-command")
    assert (done.returncode, done.stdout) == (2, "")


def test_findings_are_1_and_stdout_is_the_report_alone() -> None:
    """In a fresh process, on the model of ``./dev demo``."""
    done = run("audit", DEMO, "--dtype", "fp16", "--mode", "pure", "--kernels", "native", "--format", "json")
    assert done.returncode == 1, done.stderr
    report = json.loads(done.stdout)
    assert report["verdict"] == "broken" and report["findings"][0]["kind"] == "overflow"
    assert report["findings"][0]["module"].endswith("norm1") and "tiny_gpt.py:" in report["findings"][0]["source"]
    assert "step 2 of 2" in done.stderr
