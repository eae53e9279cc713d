"""The library travels in the wheel and is found there, outside of the checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from precisionlab import scenarios

ROOT = Path(__file__).parents[2]


def call(*words: object, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run([sys.executable, *map(str, words)], cwd=cwd, capture_output=True, text=True, env={**clean, **environment})


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which the wheel of this checkout is installed, without its dependencies."""
    pytest.importorskip("hatchling")
    place = tmp_path_factory.mktemp("wheel")
    built = call("-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", place, ROOT, cwd=place)
    assert built.returncode == 0, built.stderr
    (wheel,) = place.glob("precisionlab-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(place / "site")
    return place


@pytest.mark.slow
def test_the_wheel_lists_and_checks_the_library_outside_the_checkout(installed: Path) -> None:
    where = {"PYTHONPATH": str(installed / "site")}
    listed = call("-m", "precisionlab", "scenarios", "list", cwd=installed, **where)
    assert listed.returncode == 0, listed.stderr
    assert all(name in listed.stdout for name in scenarios.names())
    found = call("-c", "from precisionlab.scenarios.catalogue import folder; print(folder())", cwd=installed, **where)
    assert Path(found.stdout.strip()) == (installed / "site" / "precisionlab" / "scenarios" / "library").resolve()
    shown = call("-m", "precisionlab", "scenarios", "show", "past-65504", cwd=installed, **where)
    assert "75000" in shown.stdout
    checked = call("-m", "precisionlab", "scenarios", "check", cwd=installed, **where)
    assert checked.returncode == 0, checked.stdout
    assert f"{len(scenarios.names())} of {len(scenarios.names())} scenarios are what they say" in checked.stdout
