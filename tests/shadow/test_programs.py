"""Whole training programs: nothing changes under the audit, and the twins are what fp64 would have computed."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import precisionlab as pl
from tests.shadow import opdb, programs

FAITHFUL = 1e-9
EXCEPTIONS: dict[str, str] = {}
"""Programs whose twins may differ from a plain fp64 run, with the reason."""


def _print(left: dict[str, Any]) -> dict[str, Any]:
    return {k: opdb.bits(v) if isinstance(v, torch.Tensor) else v for k, v in left.items()} | {"rng": torch.get_rng_state().numpy().tobytes()}


@pytest.mark.parametrize("name", programs.PROGRAMS)
def test_two_training_steps_are_bit_identical_under_the_audit(name: str) -> None:
    plain = _print(programs.run(name))
    with pl.audit() as audit:
        left = programs.run(name)
        with torch._C._DisableTorchDispatch():
            watched = _print(left)
    assert [k for k in plain if plain[k] != watched.get(k)] == []
    coverage = audit.report.run.coverage if hasattr(audit.report, "run") else audit._record().coverage
    assert coverage.unshadowed == {}
    assert coverage.resyncs == {}
    assert coverage.default_rule == {}


@pytest.mark.parametrize("name", programs.PROGRAMS)
def test_after_two_steps_twins_equal_the_plain_fp64_run(name: str) -> None:
    truth = programs.run(name, wide=True)
    with pl.audit(resync="never", preset="quick") as audit:
        left = programs.run(name)
        twins = {k: audit.shadow(v) for k, v in left.items() if isinstance(v, torch.Tensor) and v.is_floating_point()}
    wrong = {k: error for k, v in twins.items() if (error := opdb.normwise(v, truth[k])) > FAITHFUL}
    assert wrong == {} or name in EXCEPTIONS
