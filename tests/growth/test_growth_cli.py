"""``precisionlab growth`` as a command: bad input, exit codes, files."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer.main
from typer.testing import CliRunner

from precisionlab.cli.app import app

FLAGS = {
    "--along", "--budget", "--confirm", "--debug", "--dtype", "--fail-on", "--force", "--kernels", "--mode", "--output", "--quiet",
    "--seeds", "--set", "--steps", "--target", "-f", "-o", "-q",
}  # fmt: skip

SUBJECT = """
import torch
from torch import nn

class Total(nn.Module):
    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(()))
    def forward(self, x):
        return (self.gain * x).sum(0)

model = Total
sizes = {"length": 8}
def batch(step, length):
    return torch.full((length, 8), 16.0)
def loss(model, batch):
    return model(batch).float().mean()
"""


@pytest.fixture
def subject(tmp_path: Path) -> str:
    path = tmp_path / "total.py"
    path.write_text(SUBJECT)
    return str(path)


def growth(*words: str) -> tuple[int, str, str]:
    """Exit code, stdout with wrapped lines joined again, stderr."""
    result = CliRunner().invoke(app, ["growth", *words])
    return result.exit_code, re.sub(r"\n {4,}(?=\S)", " ", result.stdout), result.stderr


LENGTHS = ("--along", "length=128:1024:x2", "--mode", "pure", "--seeds", "1")


def test_flags_are_frozen() -> None:
    command = typer.main.get_command(app).commands["growth"]  # type: ignore[attr-defined]
    assert {flag for option in command.params for flag in option.opts if flag.startswith("-")} == FLAGS, "a flag is a promise"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "--along is missing"),
        (["--along", "length=128"], "length has one size"),
        (["--along", "length=4,2"], "must ascend"),
        (["--along", "width=2,4"], "has no axis 'width'; it has length (sizes), batch_size (more examples), scale"),
        (["--along", "length=2,4", "--target", "depth=3"], "needs a size of an axis of --along (here length)"),
        (["--along", "length=2,4", "-o", "x.pdf"], "no such kind of file"),
        (["--along", "length=2,4", "--dtype", "fp32"], "fp32 is the control"),
        (["--along", "length=2,4", "--dtype", "fp17"], "no dtype 'fp17'"),
        (["--along", "length=2,4", "--set", "gian=3"], "has no setting 'gian'"),
    ],
)
def test_wrong_use_is_said_on_stderr_with_a_hint(subject: str, words: list[str], said: str) -> None:
    code, out, error = growth(subject, *words, "-q")
    assert (code, out) == (2, "")
    assert said in error and "try:" in error


def test_the_overflow_of_a_sum_is_forecast_and_the_target_fails(subject: str) -> None:
    code, out, error = growth(subject, *LENGTHS, "--target", "length=32768")
    assert code == 1
    assert "reaches 0 at length 40" in out or "reaches 0 at length 41" in out
    assert "PL510 broken" in out
    assert error.splitlines() == ["length 128", "length 256", "length 512", "length 1024"]


def test_without_a_target_a_forecast_is_no_finding(subject: str) -> None:
    code, out, _ = growth(subject, *LENGTHS, "-q")
    assert code == 0 and "PL510" not in out


def test_the_json_report_has_growth_and_is_the_same_each_time(subject: str, tmp_path: Path) -> None:
    texts = []
    for _ in range(2):
        code, out, _ = growth(subject, *LENGTHS, "-q", "-f", "-o", str(tmp_path / "g.json"))
        assert (code, out) == (0, "")
        texts.append((tmp_path / "g.json").read_text())
    assert texts[0] == texts[1]
    report = json.loads(texts[0])
    assert report["schema_version"] == 1
    assert report["growth"]["length"]["forecast"]["limit"] == 65504
    assert report["settings"]["command"].startswith("precisionlab growth")


def test_a_confirmation_is_printed_beside_its_forecast(subject: str) -> None:
    code, out, _ = growth(subject, *LENGTHS, "-q", "--confirm")
    assert code == 0
    assert "at length 4" in out and "forecast" in out and "measured" in out and ": inside" in out


def test_a_confirmation_that_the_subject_refuses_is_made_at_half_the_size(subject: str) -> None:
    raising = "    if length > 3000: raise ValueError('too long')\n    return torch.full"
    Path(subject).write_text(Path(subject).read_text().replace("    return torch.full", raising))
    code, out, _ = growth(subject, *LENGTHS, "-q", "--confirm")
    assert code == 0
    assert "at length 20" in out and "was not run: the subject raised" in out and "too long" in out


def test_the_confirmation_of_an_overflow_is_no_finding_of_the_sizes_that_were_asked_for(subject: str) -> None:
    code, out, _ = growth(subject, *LENGTHS, "-q", "--confirm")
    assert code == 0 and "at length 409" in out and "PL1" not in out


def test_two_sizes_give_numbers_and_no_law(subject: str) -> None:
    code, out, error = growth(subject, "--along", "length=2,4", "--mode", "pure", "--seeds", "1", "-q")
    assert code == 3
    assert "2 sizes were measured; a law needs 4" in out and "no law could be fitted" in error


def test_lines_are_wrapped_at_100_columns(subject: str) -> None:
    result = CliRunner().invoke(app, ["growth", subject, *LENGTHS, "-q", "--target", "length=32768"])
    assert max(len(line) for line in result.stdout.splitlines()) <= 100


def test_a_file_is_not_replaced_unasked(subject: str, tmp_path: Path) -> None:
    (tmp_path / "g.json").write_text("mine")
    code, _, error = growth(subject, *LENGTHS, "-o", str(tmp_path / "g.json"))
    assert code == 2 and "exists" in error
    assert (tmp_path / "g.json").read_text() == "mine"


def test_an_interrupt_ends_with_what_there_is_and_130(subject: str, tmp_path: Path) -> None:
    raising = "    if length == 1024: raise KeyboardInterrupt\n    return torch.full"
    Path(subject).write_text(Path(subject).read_text().replace("    return torch.full", raising))
    code, out, _ = growth(subject, "--along", "length=64:1024:x2", "--mode", "pure", "--seeds", "1", "-q")
    assert code == 130
    assert "interrupted: the sizes up to 512 count" in out
    assert "headroom at aten.sum" in out


def test_the_help_needs_no_torch() -> None:
    program = "import sys, precisionlab.cli.growth; sys.exit(any(m in sys.modules for m in ('torch', 'scipy', 'matplotlib')))"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_fits_and_forecasts_need_no_torch() -> None:
    program = (
        "import sys, precisionlab.growth.analysis, precisionlab.growth.words, precisionlab.growth.document, precisionlab.growth.findings; "
        "import precisionlab.growth.plot, precisionlab.growth.profile; sys.exit(any(m in sys.modules for m in ('torch', 'scipy')))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
