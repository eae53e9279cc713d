"""A Python prompt behind a scenario's broken program, with its results and its audit at hand."""

from __future__ import annotations

import code
from typing import Any

from precisionlab.scenarios.columns import paragraphs
from precisionlab.scenarios.model import Scenario
from precisionlab.scenarios.runner import load, program_of, surroundings


def namespace(scenario: Scenario, dtype: str | None = None) -> dict[str, Any]:
    """What the prompt knows: ``audit`` (still running), ``results``, ``report``, the module's own names, ``torch`` and ``pl``.

    Leaves the audit running. Raises ``ScenarioError`` for a dtype that the scenario does not have.
    """
    import torch

    import precisionlab as pl

    module = load(scenario)
    program = program_of(module, scenario.versions[0], scenario, dtype or scenario.dtype)
    running = pl.audit().start()
    with surroundings():
        try:
            results: Any = dict(program())
        except Exception as error:
            results = error
    own = {name: value for name, value in vars(module).items() if not name.startswith("__")}
    return {**own, "torch": torch, "pl": pl, "audit": running, "results": results, "scenario": scenario}


def start(scenario: Scenario, dtype: str | None = None) -> None:
    """Runs the program and opens the prompt. The audit ends with it."""
    names = namespace(scenario, dtype)
    running = names["audit"]
    told = [
        scenario.title,
        "results: what the program gave. audit.report: what the audit says so far. audit.where(t), audit.shadow(t), audit.compare(t): "
        "of a tensor, which op made it, its fp64 twin, and where they differ. fixed(), reference(): the other versions. Ctrl-D ends.",
    ]
    try:
        code.interact(banner="\n".join(paragraphs(text) for text in told), local=names, exitmsg="")
    finally:
        if running.active:
            running.stop()
