"""Exit codes and messages, in one process: what goes wrong is one message on stderr, and stdout stays empty."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from precisionlab.cli.app import app

MODEL = """\
import torch
from torch import nn
model = lambda: nn.Linear(4, 3)
batch = torch.ones(2, 4)
def loss(model, batch):
    return model(batch).float().mean()
def optimizer(params):
    return torch.optim.SGD(params, lr=0.1)
"""


def invoke(*words: object) -> Any:
    return CliRunner().invoke(app, [str(word) for word in words])


def write(folder: Path, text: str = MODEL, name: str = "model.py") -> Path:
    (folder / name).write_text(text)
    return folder / name


def assert_refused(result: Any, *said: str, code: int = 2) -> None:
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    for words in said:
        assert words in result.stderr


def test_missing_file(tmp_path: Path) -> None:
    assert_refused(invoke("audit", tmp_path / "none.py"), "error: there is no file", "  try: ")


def test_syntax_error_with_its_line(tmp_path: Path) -> None:
    assert_refused(invoke("audit", write(tmp_path, "x = 1\ndef f(:\n")), "model.py:2: syntax error")


def test_wrong_dtype_gives_the_nearest() -> None:
    assert_refused(invoke("audit", "model.py", "--dtype", "fp17"), "no dtype 'fp17'", "'fp16'")


def test_wrong_mode_is_refused_with_the_choices() -> None:
    result = invoke("audit", "model.py", "--mode", "purr")
    assert result.exit_code == 2 and result.stdout == "" and "amp" in result.stderr and "master" in result.stderr


@pytest.mark.parametrize(
    ("assignment", "said"),
    [("rho", "name=value"), ("rh=3", "did you mean 'rho'?"), ("rho=x", "needs a number"), ("max_shadow_bytes=inf", "needs a number")],
)
def test_wrong_settings(assignment: str, said: str, tmp_path: Path) -> None:
    assert_refused(invoke("audit", write(tmp_path), "--set", assignment), said)


def test_input_dtype_alone_is_refused(tmp_path: Path) -> None:
    assert_refused(invoke("audit", write(tmp_path), "--input-high", "9"), "--input-size")


def test_no_model_in_the_file(tmp_path: Path) -> None:
    assert_refused(invoke("audit", write(tmp_path, "x = 1\n")), "has nothing to audit")


def test_existing_output_is_not_replaced_before_anything_runs(tmp_path: Path) -> None:
    report = write(tmp_path, "precious", "report.json")
    assert_refused(invoke("audit", write(tmp_path), "-o", report), "exists", "-f to replace it")
    assert report.read_text() == "precious"


def test_output_folder_must_exist(tmp_path: Path) -> None:
    assert_refused(invoke("audit", write(tmp_path), "-o", tmp_path / "no" / "report.json"), "there is no folder")


def test_internal_error_is_2_with_a_traceback_only_under_debug(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise ZeroDivisionError("ours")

    monkeypatch.setattr("precisionlab.cli.audit._run", broken)
    assert_refused(invoke("audit", write(tmp_path)), "internal error: ZeroDivisionError: ours", "please report it")
    assert "Traceback" in invoke("audit", write(tmp_path), "--debug").stderr


def test_ctrl_c_is_130(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr("precisionlab.cli.audit._run", interrupted)
    assert_refused(invoke("audit", write(tmp_path)), "interrupted", code=130)


def test_empty_batch_is_3(tmp_path: Path) -> None:
    text = MODEL.replace("torch.ones(2, 4)", "torch.ones(0, 4)")
    assert_refused(invoke("audit", write(tmp_path, text), "--kernels", "native"), "the batch of step 1 is empty", code=3)


def test_integer_model_is_3(tmp_path: Path) -> None:
    text = "import torch\nmodel = torch.nn.Identity()\nbatch = torch.arange(4)\nloss = lambda model, batch: model(batch).sum()\n"
    assert_refused(invoke("audit", write(tmp_path, text), "--kernels", "native"), "no rounding to judge", code=3)


def test_subject_that_raises_in_step_2_is_2_and_reports_step_1(tmp_path: Path) -> None:
    text = MODEL.replace("batch = torch.ones(2, 4)", "def batch(step):\n    return torch.ones(2, 4 + step)")
    result = invoke("audit", write(tmp_path, text), "--kernels", "native")
    assert result.exit_code == 2
    assert "INCOMPLETE: the subject raised in step 2 of 2: RuntimeError" in " ".join(result.stdout.split())
    assert "error: the subject raised in step 2 of 2: RuntimeError" in result.stderr
    assert "Traceback" not in result.stderr


def test_low_coverage_is_3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from precisionlab.subjects import run

    original = run._describe

    def blinded(outcome: Any, *rest: Any) -> None:
        original(outcome, *rest)
        outcome.report.record.coverage.shadowed = outcome.report.record.coverage.ops // 2

    monkeypatch.setattr(run, "_describe", blinded)
    result = invoke("audit", write(tmp_path), "--kernels", "native")
    assert result.exit_code == 3 and "less than --min-coverage 0.8" in result.stderr
    assert invoke("audit", write(tmp_path), "--kernels", "native", "--min-coverage", "0.4").exit_code == 0


def test_json_on_stdout_is_json_alone(tmp_path: Path) -> None:
    result = invoke("audit", write(tmp_path), "--format", "json", "--kernels", "native", "--steps", "1", "--dtype", "half")
    assert result.exit_code == 0
    data = json.loads(result.stdout)
    assert data["settings"]["dtype"] == "fp16"
    assert data["settings"]["command"].startswith("precisionlab audit ")
    assert "step 1 of 1" in result.stderr


def test_format_follows_the_suffix_and_quiet_leaves_one_line(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    result = invoke("audit", write(tmp_path), "-o", report, "-q", "--kernels", "native")
    assert result.stdout == ""
    assert json.loads(report.read_text())["schema_version"] == 1
    assert "step 1" not in result.stderr and f"the report is in {report}" in result.stderr


def test_colour_is_forced_by_the_environment_and_off_when_piped(tmp_path: Path) -> None:
    words = ["audit", str(write(tmp_path)), "--kernels", "native", "-q"]
    assert "\x1b[" in CliRunner(env={"FORCE_COLOR": "1", "TERM": "xterm"}).invoke(app, words).stdout
    assert "\x1b[" not in invoke(*words).stdout


def test_repaired_demo_is_safe() -> None:
    import precisionlab.models

    demo = Path(precisionlab.models.__file__).with_name("tiny_gpt.py")
    result = invoke("audit", f"{demo}:repaired", "--mode", "pure", "--kernels", "native")
    assert result.exit_code == 0, result.output
    assert "SAFE: fp16 changes nothing that matters here" in result.stdout
