"""Whole training programs: nothing changes under the audit, and the twins are what fp64 would have computed."""

from __future__ import annotations

from typing import Any

import opdb
import programs
import pytest
import torch

import precisionlab as pl

FAITHFUL = 1e-9
"""Largest normwise distance of a twin from the plain fp64 run."""


def _print(left: dict[str, Any]) -> dict[str, Any]:
    bits = {k: opdb.bits(v) if isinstance(v, torch.Tensor) else v for k, v in left.items()}
    return bits | {"rng": torch.get_rng_state().numpy().tobytes()}


@pytest.mark.parametrize("name", programs.PROGRAMS)
def test_two_training_steps_are_bit_identical_under_the_audit(name: str) -> None:
    plain = _print(programs.build(name)())
    go = programs.build(name)
    with pl.audit() as audit:
        left = go()
        with torch._C._DisableTorchDispatch():
            watched = _print(left)
    assert [k for k in plain if plain[k] != watched.get(k)] == []
    assert audit._mode.reasons == {}
    assert audit.memory.resyncs == {}
    assert audit._mode.default_rule == {}


@pytest.mark.parametrize("name", programs.PROGRAMS)
def test_after_two_steps_twins_equal_the_plain_fp64_run(name: str) -> None:
    truth = programs.build(name, wide=True)()
    go = programs.build(name)
    with pl.audit(resync="never", preset="quick") as audit:
        left = go()
        twins = {k: audit.shadow(v) for k, v in left.items() if isinstance(v, torch.Tensor) and v.is_floating_point()}
    assert {k: error for k, v in twins.items() if (error := opdb.normwise(v, truth[k])) > FAITHFUL} == {}
    assert len(twins) >= 10


def test_twins_differ_from_the_tensors_they_belong_to() -> None:
    """The comparison above would be empty if the twins restarted from the real values all the time."""
    go = programs.build("MLP with dropout, bf16 autocast, foreach AdamW")
    with pl.audit(resync="never") as audit:
        left = go()
        drifts = [opdb.normwise(audit.shadow(v), v.detach().double()) for k, v in left.items() if k.startswith("gradient")]
    assert min(drifts) > 1e-4
