"""``steps=``: what is not observed costs nothing and changes nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from session_programs import net, state, train

import precisionlab as pl
from precisionlab.errors import SettingsError
from precisionlab.schedule import Schedule, parse_steps, schedule_of


def test_only_the_first_steps_are_observed() -> None:
    with pl.audit(steps=2) as audit:
        train(net(), 5)
    record = audit.report.record
    assert [step.index for step in record.steps] == [0, 1]
    assert record.optimizer_steps == 5 and record.settings["observed_steps"] == "the first 2"
    assert "3 of 5 steps were not observed (observed: the first 2)" in record.notes


def test_function_chooses_the_steps_and_twins_restart() -> None:
    with pl.audit(steps=lambda step: step % 3 == 1) as audit:
        train(net(), 8)
    record = audit.report.record
    assert [step.index for step in record.steps] == [1, 4, 7]
    assert record.coverage.resyncs["steps not observed"] > 0
    assert str(audit.report.verdict) == "safe"


def test_in_a_step_that_is_not_observed_only_the_step_hooks_are_left(everything_is_restored: dict[str, Any]) -> None:
    with pl.audit(steps=1):
        train(net(), 1)
        hooks = tuple(n + 1 for n in everything_is_restored["step hooks"])
        assert state() == {**everything_is_restored, "step hooks": hooks}


def test_observed_steps_read_the_same_whatever_ran_before() -> None:
    def measured(**settings: Any) -> list[Any]:
        with pl.audit(**settings) as audit:
            train(net(), 4)
        return [(op.op, op.source, op.plan) for op in audit.report.ops]

    assert set(measured(steps=range(2, 4))) <= set(measured())


def test_program_is_bit_identical_under_any_schedule() -> None:
    plain = train(net(), 6)
    for steps in (None, 2, range(3, 5), lambda step: step % 2 == 1):
        with pl.audit(steps=steps):
            assert train(net(), 6) == plain


def test_schedule_that_raises_is_noted_and_observing_goes_on() -> None:
    with pl.audit(strict=False, steps=lambda step: step < 1 or [][step]) as audit:
        train(net(), 3)
    assert len(audit.report.record.steps) == 3
    assert any("steps= as given" in note for note in audit.report.record.notes)


def test_optimizer_inside_another_makes_one_step() -> None:
    class Outer(torch.optim.SGD):
        def __init__(self, params: Any) -> None:
            super().__init__(params, 0.1)
            self.inner = torch.optim.SGD(self.param_groups[0]["params"], 0.1)

        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            self.inner.step()

    model = net()
    with pl.audit() as audit:
        train(model, 3, Outer(model.parameters()))
    assert audit.report.record.optimizer_steps == 3


def test_step_that_raises_does_not_stop_the_count() -> None:
    class Broken(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            self.tries = getattr(self, "tries", 0) + 1
            if self.tries == 1:
                raise RuntimeError("full disk")

    model = net()
    optimizer = Broken(model.parameters(), 0.1)
    with pl.audit() as audit:
        with pytest.raises(RuntimeError):
            train(model, 1, optimizer)
        train(model, 2, optimizer)
    assert audit.report.record.optimizer_steps == 2


@pytest.mark.parametrize(
    ("text", "every", "observed", "words"),
    [
        (None, None, list(range(8)), "all"),
        ("3", None, [0, 1, 2], "the first 3"),
        ("2:5", None, [2, 3, 4], "2 to 4"),
        ("5:", None, [5, 6, 7], "from 5 on"),
        (":2", None, [0, 1], "the first 2"),
        (None, 3, [0, 3, 6], "every 3rd"),
        ("1:8", 5, [1, 6], "every 5th of 1 to 7"),
    ],
)
def test_steps_and_every_of_the_command_line(text: str | None, every: int | None, observed: list[int], words: str) -> None:
    schedule = parse_steps(text, every)
    assert [step for step in range(8) if schedule.observes(step)] == observed
    assert schedule.words() == words


@pytest.mark.parametrize("text", ["x", "0", "5:5", "7:2", "-1:3", "1:2:3"])
def test_ranges_without_a_step_are_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="--steps"):
        parse_steps(text, None)


def test_settings_that_are_no_schedule_are_refused() -> None:
    with pytest.raises(SettingsError):
        schedule_of(True)
    assert schedule_of(range(1, 9, 2)) == Schedule(1, 9, 2)
