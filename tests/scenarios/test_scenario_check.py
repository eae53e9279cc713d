"""Every scenario is what it says; and a scenario that is not is caught, with what is wrong with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

import precisionlab.session
from precisionlab import scenarios
from precisionlab.scenarios.checking import check
from precisionlab.scenarios.model import Claim, Expectation, Question, Scenario, ScenarioError, read
from precisionlab.scenarios.text import run_text

EVERY = scenarios.all_scenarios()
FAST = {topic: next(s.name for s in EVERY if s.topic == topic) for topic in dict.fromkeys(s.topic for s in EVERY)}
"""One of each topic; the others take half a minute together."""


OTHER = {"fp16": "bf16", "bf16": "fp16", "fp32": "bf16"}


@pytest.mark.parametrize(
    "scenario",
    [pytest.param(s, id=s.name, marks=() if s.name in FAST.values() else pytest.mark.slow) for s in EVERY],
)
def test_it_is_what_it_says_and_its_run_is_at_most_80_columns_wide(scenario: Scenario) -> None:
    done = check(scenario)
    assert done.problems == ()
    assert max(map(len, run_text(done.outcome).splitlines())) <= 80


@pytest.mark.slow
@pytest.mark.parametrize("scenario", EVERY, ids=lambda s: s.name)
def test_in_the_other_format_it_runs_or_says_that_it_cannot(scenario: Scenario) -> None:
    try:
        outcome = scenarios.run(scenario.name, OTHER[scenario.dtype])
    except ScenarioError as error:
        assert f"is about {scenario.dtype} only" in error.message
    else:
        assert not any(one.error for one in outcome.ran.values())
        assert max(map(len, run_text(outcome).splitlines())) <= 80


BASE = scenarios.get("past-65504")

WRONG: dict[str, tuple[Callable[[], Scenario], str]] = {
    "another code": (lambda: replace(BASE, expect=(Expectation("PL501", "aten.mul"),)), "PL501 at aten.mul is not named"),
    "another op": (lambda: replace(BASE, expect=(Expectation("PL101", "aten.exp"),)), "PL101 is not at aten.exp but"),
    "another verdict": (lambda: replace(BASE, verdict="risky"), "the verdict is broken, expected risky"),
    "a fault that is not expected": (lambda: replace(BASE, expect=()), "also broken PL101"),
    "a number out of its range": (
        lambda: replace(BASE, claims={**BASE.claims, "exact": Claim(1.0, 2.0)}),
        "number exact moved out of its range: 75000, claimed 1 to 2",
    ),
    "a number that is not computed": (
        lambda: replace(BASE, claims={**BASE.claims, "more": Claim(0.0, 1.0)}),
        "number more is claimed but not computed",
    ),
    "a placeholder without a number": (lambda: replace(BASE, hook="{nothing}"), "placeholder"),
    "a question with two answers": (
        lambda: replace(BASE, questions=(Question("?", (("a", "exact > 0"), ("b", "exact > 1"))),)),
        "2 of 2 choices are true",
    ),
    "no question": (lambda: replace(BASE, questions=()), "no question"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_said(name: str) -> None:
    make, told = WRONG[name]
    done = check(make())
    assert not done.passed
    assert any(told in problem for problem in done.problems), done.problems


def test_a_number_that_left_the_record_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    before = {"past-65504": {"numbers": {"nan_share": 0.2}}}
    monkeypatch.setattr("precisionlab.scenarios.checking.recorded", lambda: before)
    assert check(BASE).problems == ("number nan_share moved: 0.25, recorded 0.2",)
    assert check(BASE, against_record=False).problems == ()


def _changed(tmp_path, old: str, new: str) -> Scenario:  # type: ignore[no-untyped-def]
    path = tmp_path / "past_65504.py"
    path.write_text(BASE.source.replace(old, new))
    return read(path)


def test_a_repair_that_repairs_nothing_is_not_quiet(tmp_path) -> None:  # type: ignore[no-untyped-def]
    problems = check(_changed(tmp_path, "2.0**-6)", "1.0)"), against_record=False).problems
    assert any(problem.startswith("fixed: should be quiet, but has broken PL101 at aten.mul") for problem in problems)


def test_a_program_that_raises_is_told_and_not_raised(tmp_path) -> None:  # type: ignore[no-untyped-def]
    problems = check(_changed(tmp_path, "_layer(dtype, 2.0**-6)", "1 / 0"), against_record=False).problems
    assert "fixed: raised ZeroDivisionError: division by zero" in problems


def test_a_run_leaves_generator_and_threads_alone() -> None:
    import torch

    torch.manual_seed(5)
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    scenarios.run("past-65504")
    assert torch.equal(state, torch.get_rng_state())
    assert torch.get_num_threads() == threads


def test_the_library_is_reached_through_the_package() -> None:
    import precisionlab as pl

    assert pl.scenarios.get("past_65504") is BASE
    assert pl.scenarios.check("past-65504").passed


def test_silent_is_what_a_plain_run_shows_nothing_of() -> None:
    shown, silent = scenarios.run("past-65504").main, scenarios.run("spacing-after-one").main
    assert (shown.silent, silent.silent) == (False, True)
    assert shown.shows == "inf or NaN in largest, out"


def test_another_format_runs_without_the_numbers_of_the_lesson() -> None:
    outcome = scenarios.run("past-65504", "bf16")
    assert outcome.numbers == {} and not outcome.native
    assert outcome.main.report is not None and outcome.main.report.findings == []


def test_what_raises_only_under_the_audit_is_told_as_that(monkeypatch: pytest.MonkeyPatch) -> None:
    from precisionlab.scenarios import runner

    def program() -> dict[str, torch.Tensor]:
        if precisionlab.session.running() is not None:
            raise RuntimeError("a fault of the audit")
        return {"value": torch.ones(1)}

    ran = runner._run("broken", program)
    assert not ran.transparent and ran.difference == "raises only under the audit: RuntimeError: a fault of the audit"
