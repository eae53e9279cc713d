"""Known failures of low-precision programs, for teaching: each happens, is named by the audit, and is repaired.

``names()``, ``get(name)`` and ``all_scenarios()`` read the library without torch; ``run(name)`` and ``check(name)`` execute it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from precisionlab.scenarios.catalogue import all_scenarios, get, names, recorded
from precisionlab.scenarios.model import Claim, Expectation, Level, Picture, Question, Scenario

if TYPE_CHECKING:
    from precisionlab.scenarios.checking import Checked
    from precisionlab.scenarios.runner import Outcome

__all__ = [
    "Claim",
    "Expectation",
    "Level",
    "Picture",
    "Question",
    "Scenario",
    "all_scenarios",
    "check",
    "get",
    "names",
    "recorded",
    "run",
]


def run(name: str, dtype: str | None = None) -> Outcome:
    """Every version of a scenario, plain and audited. Raises ``ScenarioError`` for a name or dtype that it does not have."""
    from precisionlab.scenarios.runner import run as execute

    return execute(get(name), dtype)


def check(name: str) -> Checked:
    """Whether the audit names a scenario's fault, stays quiet on its repair, and its lesson's numbers are those measured now."""
    from precisionlab.scenarios.checking import check as verify

    return verify(get(name))
