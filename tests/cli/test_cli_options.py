from __future__ import annotations

from pathlib import Path

import pytest
import typer.main

from precisionlab.cli.app import app
from precisionlab.cli.audit import _resolve
from precisionlab.cli.config import nearest_table
from precisionlab.cli.options import AuditOptions, FailOn, Preset, known_keys, merged, parse_assignments
from precisionlab.errors import SettingsError
from precisionlab.subjects.words import LowDtype, Mode

AUDIT_FLAGS = {
    "--all", "--debug", "--dtype", "--fail-on", "--force", "--format", "--input-dtype", "--input-high", "--input-size", "--kernels",
    "--min-coverage", "--mode", "--output", "--preset", "--quiet", "--resync", "--seed", "--set", "--steps", "--target", "-f", "-o",
    "-q",
}  # fmt: skip


def project(folder: Path, table: str) -> Path:
    (folder / "pyproject.toml").write_text(table)
    return folder / "model.py"


NOTHING = dict.fromkeys(["dtype", "mode"])


def test_flags_of_audit_are_frozen() -> None:
    command = typer.main.get_command(app).commands["audit"]  # type: ignore[attr-defined]
    assert {flag for option in command.params for flag in option.opts if flag.startswith("-")} == AUDIT_FLAGS, "a flag is a promise"


def test_file_overrides_defaults_and_the_command_line_overrides_the_file(tmp_path: Path) -> None:
    target = project(tmp_path, '[tool.precisionlab]\ndtype = "bf16"\nmode = "pure"\nfail-on = "risky"\nrho = 16\n')
    options = _resolve(str(target), {"dtype": None, "mode": Mode.MASTER}, ["gain=4"])
    assert (options.dtype, options.mode, options.fail_on, options.steps) == (LowDtype.BF16, Mode.MASTER, FailOn.RISKY, 2)
    assert options.settings == {"rho": 16.0, "gain": 4.0}


def test_nearest_file_with_the_table_counts(tmp_path: Path) -> None:
    project(tmp_path, "[tool.precisionlab]\nsteps = 5\n")
    (tmp_path / "sub").mkdir()
    target = project(tmp_path / "sub", "[tool.other]\n")
    assert _resolve(str(target), dict(NOTHING), []).steps == 5


def test_no_file_leaves_the_defaults(tmp_path: Path) -> None:
    assert nearest_table(tmp_path)[0] == {} or "precisionlab" in nearest_table(tmp_path)[1]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("stepz = 3", "has no setting 'stepz'. Try: did you mean 'steps'?"),
        ('steps = "two"', "steps needs a whole number, got 'two'"),
        ("steps = 0", "steps cannot be 0"),
        ("steps = true", "steps needs a whole number"),
        ("min_coverage = 2", "min_coverage cannot be 2"),
        ('mode = "purr"', "mode cannot be 'purr'. Try: amp or pure or master"),
        ("rho = [1]", r"rho needs a number, got \[1\]"),
        ('dtype = "fp17"', "no dtype 'fp17'"),
    ],
)
def test_wrong_key_or_value_in_the_file_is_said(line: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=said.replace("?", r"\?")):
        _resolve(str(project(tmp_path, f"[tool.precisionlab]\n{line}\n")), dict(NOTHING), [])


def test_file_that_is_no_toml_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"pyproject.toml cannot be read"):
        _resolve(str(project(tmp_path, "[tool\n")), dict(NOTHING), [])


def test_assignments_take_exponents_for_bytes() -> None:
    assert parse_assignments(["max_shadow_bytes=2e9", "flush-share=0.2"]) == {"max_shadow_bytes": 2_000_000_000, "flush_share": 0.2}


def test_every_threshold_can_be_set_from_the_file() -> None:
    from precisionlab.thresholds import Thresholds

    assert {name for name, _, _ in Thresholds.describe()} <= set(known_keys())


def test_only_given_settings_reach_the_engine() -> None:
    assert AuditOptions().engine_settings() == {}
    assert merged(AuditOptions(), {"preset": "full", "rho": 3}, "x").engine_settings() == {"preset": "full", "rho": 3.0}


def test_command_repeats_the_audit() -> None:
    options = merged(AuditOptions(), {"dtype": "bf16", "preset": Preset.FULL, "rho": 3, "seed": 7}, "x")
    assert options.command("my model.py") == (
        "precisionlab audit 'my model.py' --dtype bf16 --mode amp --steps 2 --seed 7 --kernels auto --preset full --set rho=3"
    )
