"""Running a scenario: each of its programs once as it is and once under the audit, and the numbers computed from the results."""

from __future__ import annotations

import importlib.util
import inspect
import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType

import torch

from precisionlab.report.model import Report
from precisionlab.scenarios.model import Scenario, ScenarioError
from precisionlab.session import audit
from precisionlab.subjects.words import parse_dtype

Results = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Ran:
    """One program of a scenario, after it ran."""

    version: str
    values: dict[str, torch.Tensor]
    """What it gave, copied to fp64. Of the plain run."""
    error: str
    """The exception that ended the plain run, in one line; empty when none did."""
    warned: tuple[str, ...]
    seconds: float
    report: Report | None
    """Of the audited run; None for the reference."""
    transparent: bool
    """Whether the audited run gave the same values, bit for bit."""

    @property
    def difference(self) -> str:
        """What the audited run did that the plain one did not; empty where it is transparent."""
        if self.transparent:
            return ""
        raised = self.report.record.error if self.report is not None and not self.error else None
        return f"raises only under the audit: {raised}" if raised else "the audited run gives other values than the plain run"

    @property
    def non_finite(self) -> list[str]:
        """The names of values that hold an infinity or a NaN."""
        return [name for name, value in self.values.items() if not bool(torch.isfinite(value).all())]

    @property
    def silent(self) -> bool:
        """Whether a plain run shows nothing: no exception, no warning, every value finite."""
        return not (self.error or self.warned or self.non_finite)

    @property
    def shows(self) -> str:
        """What a plain run shows, in one line."""
        if self.error:
            return f"raises {self.error}"
        if self.non_finite:
            return f"inf or NaN in {', '.join(self.non_finite)}"
        return f"warns: {self.warned[0]}" if self.warned else "nothing (all values finite, no warning)"


@dataclass(frozen=True)
class Outcome:
    """A scenario that ran."""

    scenario: Scenario
    dtype: str
    ran: dict[str, Ran]
    numbers: dict[str, float]
    """Computed from the results. Empty in another dtype than the scenario's own, where the lesson does not hold."""

    @property
    def main(self) -> Ran:
        """The broken version, or the healthy program."""
        return next(iter(self.ran.values()))

    @property
    def native(self) -> bool:
        """Whether it ran in the dtype that it is about."""
        return self.dtype == self.scenario.dtype


def load(scenario: Scenario) -> ModuleType:
    """Executes the file. Raises ``ScenarioError`` if that raises."""
    spec = importlib.util.spec_from_file_location(f"precisionlab_scenario_{scenario.path.stem}", scenario.path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ScenarioError(f"{scenario.path} cannot be executed: {type(error).__name__}: {error}", hint="repair the file") from error
    return module


def run(scenario: Scenario, dtype: str | None = None) -> Outcome:
    """Runs every version, single-threaded and with torch's random state restored afterwards.

    ``dtype``: another format for the broken and the fixed version. Raises ``ScenarioError`` where the scenario exists in one only.
    """
    chosen = str(parse_dtype(dtype or scenario.dtype))
    module = load(scenario)
    programs = {version: program_of(module, version, scenario, chosen) for version in scenario.versions}
    with surroundings():
        ran = {version: _run(version, program) for version, program in programs.items()}
    found: dict[str, float] = {}
    if chosen == scenario.dtype:
        results = [_Missing(one.values) if one.error else one.values for one in ran.values()]
        found = {name: float(value) for name, value in module.numbers(*results).items()}
    return Outcome(scenario, chosen, ran, found)


class _Missing(dict[str, torch.Tensor]):
    """Results of which an exception prevented some: NaN stands for them."""

    def __missing__(self, key: str) -> torch.Tensor:
        return torch.tensor(math.nan, dtype=torch.float64)


def program_of(module: ModuleType, version: str, scenario: Scenario, dtype: str) -> Callable[[], Results]:
    """One of the functions of a scenario file, its dtype bound. Raises ``ScenarioError`` where it has no other dtype than its own."""
    function: Callable[..., Results] = getattr(module, version)
    if version == "reference":
        return function
    if "dtype" not in inspect.signature(function).parameters:
        if dtype != scenario.dtype:
            raise ScenarioError(f"{scenario.name} is about {scenario.dtype} only", hint=f"--dtype {scenario.dtype}, or none")
        return function
    low = getattr(torch, parse_dtype(dtype).torch_name)
    return lambda: function(low)


def _run(version: str, program: Callable[[], Results]) -> Ran:
    start = time.perf_counter()
    values, error, warned = _plain(program)
    seconds = time.perf_counter() - start
    if version == "reference":
        return Ran(version, values, error, warned, seconds, None, True)
    again, report = audited(program)
    same = values.keys() == again.keys() and all(_equal(values[name], again[name]) for name in values)
    return Ran(version, values, error, warned, seconds, report, same)


def _plain(program: Callable[[], Results]) -> tuple[dict[str, torch.Tensor], str, tuple[str, ...]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            values, error = _copied(program()), ""
        except Exception as problem:
            values, error = {}, f"{type(problem).__name__}: {(str(problem).splitlines() or [''])[0]}"
    return values, error, tuple(dict.fromkeys(str(warning.message).splitlines()[0] for warning in caught))


def audited(program: Callable[[], Results]) -> tuple[dict[str, torch.Tensor], Report]:
    """The values that a program gives under the audit, and the report; where it raises, none, and ``report.record.error`` says what."""
    results: Results = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with audit() as running:
                results = program()  # held until the audit has ended: what a program returns is what it was for
        except Exception:  # a broken program may: what ended it is in the report, and ``Ran.difference`` tells if only the audit did
            return {}, running.report
    return _copied(results), running.report


def _copied(results: Results) -> dict[str, torch.Tensor]:
    return {name: torch.as_tensor(value).detach().to(torch.float64, copy=True) for name, value in results.items()}


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and bool(torch.equal(one.nan_to_num(7.0, 8.0, 9.0), other.nan_to_num(7.0, 8.0, 9.0)))


@contextmanager
def surroundings() -> Iterator[None]:
    """One thread, seed 0, and torch's random state as before afterwards: a scenario gives the same numbers in every process."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            yield
    finally:
        torch.set_num_threads(threads)
