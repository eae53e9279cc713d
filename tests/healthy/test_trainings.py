"""Whole trainings: sound ones are quiet, wrong ones are named within three steps of the first whose numbers show the fault.

The table: ``./dev bench training``. The numbers are measured without the audit (``bench.models.wrong``).
"""

from __future__ import annotations

import pytest

from bench.healthy import RISKY_PER_1000, measure
from bench.models.wrong import WRONG
from bench.training import SOUND, STEPS, name_fault, sound_program

FEW = 5


def assert_quiet(title: str, steps: int) -> None:
    row = measure(*sound_program(title, steps))
    assert row.state == "ok", row.note
    assert row.identical, "the audit changed the losses"
    assert row.broken == 0 and row.risky_per_1000 <= RISKY_PER_1000, row.findings


def assert_named(name: str, steps: int) -> None:
    row = name_fault(WRONG[name], steps)
    assert row.shows is not None, "the training is not wrong"
    assert row.code, f"not named; broken: {row.others}"
    assert row.within is not None, f"named too late: shows at step {row.shows}, found at {row.first_step}"


@pytest.mark.parametrize("title", ["GPT, bf16 autocast", "CNN, fp16 autocast, scaler"])
def test_the_first_steps_of_a_sound_training_are_quiet(title):
    assert_quiet(title, FEW)


@pytest.mark.parametrize("name", ["fp16-without-scaler", "bf16-ema"])
def test_a_wrong_training_is_named_within_three_steps(name):
    assert_named(name, FEW)


@pytest.mark.slow
@pytest.mark.parametrize("title", SOUND)
def test_fifty_steps_of_every_sound_training_are_quiet(title):
    assert_quiet(title, STEPS)


@pytest.mark.slow
@pytest.mark.parametrize("name", WRONG)
def test_every_wrong_training_of_fifty_steps_is_named_in_time(name):
    assert_named(name, STEPS)
