"""``precisionlab probe`` and ``--target``, as a user meets them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer.main
from typer.testing import CliRunner

from precisionlab.backends import Origin, load_profile
from precisionlab.cli.app import app

PROBE_FLAGS = {
    "--debug", "--device", "--dtype", "--flags", "--force", "--format", "--op", "--output", "--quiet", "--show", "-f", "-o", "-q",
}  # fmt: skip
MODEL = """
import torch
model = lambda: torch.nn.Sequential(torch.nn.Embedding(8, 16), torch.nn.LayerNorm(16), torch.nn.Linear(16, 4))
batch = lambda step: torch.arange(64).reshape(8, 8) % 8
loss = lambda model, batch: model(batch).float().square().mean()
"""


def call(*words: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, list(words))
    return result.exit_code, result.stdout, result.stderr


def audited_plans(tmp_path: Path, *words: str) -> tuple[dict[str, dict[str, str]], list[str]]:
    (tmp_path / "model.py").write_text(MODEL)
    code, out, err = call("audit", str(tmp_path / "model.py"), "--dtype", "bf16", "--mode", "pure", "--format", "json", "-q", *words)
    assert code == 0, err
    report = json.loads(out)
    return {op["op"]: op["plan"] for op in report["ops"]}, report["notes"]


def test_flags_of_probe_are_frozen() -> None:
    command = typer.main.get_command(app).commands["probe"]  # type: ignore[attr-defined]
    assert {flag for option in command.params for flag in option.opts if flag.startswith("-")} == PROBE_FLAGS, "a flag is a promise"


def test_a_probe_is_written_read_back_and_shown(tmp_path: Path) -> None:
    file = tmp_path / "here.json"
    code, out, err = call("probe", "--op", "index_add", "--dtype", "bf16", "--no-flags", "-o", str(file), "-q")
    assert (code, out) == (0, "") and str(file) in err
    profile = load_profile(file)
    assert (profile.name, profile.origin) == ("here", Origin.PROBED)
    assert {entry.op for entry in profile.entries} == {"aten.index_add"} and {entry.dtype for entry in profile.entries} == {"bf16"}
    code, out, _ = call("probe", "--show", str(file))
    assert code == 0 and "measured here" in out and "bf16 *" in out and "aten.index_add, elements" in out
    assert json.loads(call("probe", "--show", str(file), "--format", "json")[1]) == json.loads(file.read_text())
    assert call("probe", "--op", "sum", "-o", str(file))[0] == 2  # not replaced without -f


def test_switches_that_change_a_kernel_are_named() -> None:
    code, out, _ = call("probe", "--op", "sum", "--dtype", "fp32", "--format", "json", "-q")
    effects = {(effect["flag"], effect["op"]): effect["changes"] for effect in json.loads(out)["flags"]}
    assert code == 0
    assert effects["torch.set_flush_denormal(True)", "aten.sum (first dimension)"] == {"flushes_subnormals": "False -> True"}
    assert effects["torch.use_deterministic_algorithms(True)", "*"] == {}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--op", "nosuch"), "no case for 'nosuch'"),
        (("--dtype", "int8"), "unknown number format 'int8'"),
        (("--dtype", "fp8_e5m2"), "no cases in fp8_e5m2"),
        (("--device", "nowhere"), "no device 'nowhere'"),
        (("--show", "h10"), "no profile 'h10'"),
        (("--show", "none.json"), "cannot be read"),
    ],
)
def test_wrong_use_ends_with_2_and_says_what_to_try(words: tuple[str, ...], said: str) -> None:
    code, out, err = call("probe", *words)
    assert (code, out) == (2, "") and said in err and "try:" in err


def test_the_plan_of_an_op_shows_what_this_machine_accumulates_in(tmp_path: Path) -> None:
    plans, _ = audited_plans(tmp_path, "--kernels", "native")
    assert plans["aten.embedding_dense_backward"]["accumulation"] == "bf16"
    assert plans["aten.native_layer_norm_backward"]["accumulation"] == "bf16"
    assert plans["aten.mm"]["accumulation"] == plans["aten.native_layer_norm"]["accumulation"] == "fp32"


def test_a_target_replaces_the_accumulation_of_the_plan_and_is_noted(tmp_path: Path) -> None:
    entry = {"op": "aten.mm", "dtype": "bf16", "size_class": "short", "accumulation": "14-bit"}
    target = {"profile_version": 1, "name": "odd", "device": "cuda", "hardware": "an accelerator", "torch": "1.0", "origin": "probed"}
    (tmp_path / "odd.json").write_text(json.dumps({**target, "notes": [], "entries": [entry], "flags": []}))
    plans, notes = audited_plans(tmp_path, "--target", str(tmp_path / "odd.json"))
    assert plans["aten.mm"]["accumulation"] == "14-bit"
    assert plans["aten.embedding_dense_backward"]["accumulation"] == "fp32"  # unknown to the target: what kernels mean to do
    assert any("target 'odd'" in note for note in notes) and any("probed under torch 1.0" in note for note in notes)


def test_an_unknown_target_is_refused_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text("raise RuntimeError('ran')")
    code, _, err = call("audit", str(tmp_path / "model.py"), "--target", "h10")
    assert code == 2 and "shipped are" in err and "ran" not in err
