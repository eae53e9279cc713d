"""A Python prompt behind a scenario's broken program, with its results and its audit at hand."""

from __future__ import annotations

import code
from typing import Any

from precisionlab.scenarios.columns import paragraphs
from precisionlab.scenarios.model import Scenario
from precisionlab.scenarios.runner import audited, load, program_of, surroundings


def namespace(scenario: Scenario, dtype: str | None = None) -> dict[str, Any]:
    """What the prompt knows: ``report`` of one run, ``results`` and ``audit`` of another, the module's own names, ``torch`` and ``pl``.

    Leaves that audit running: it knows the twins of the results. Raises ``ScenarioError`` for a dtype that the scenario does not have.
    """
    import torch

    import precisionlab as pl

    module = load(scenario)
    program = program_of(module, scenario.versions[0], scenario, dtype or scenario.dtype)
    with surroundings():
        report = audited(program)[1]
    running = pl.audit().start()
    with surroundings():
        try:
            results: Any = dict(program())
        except Exception as error:
            results = error
    own = {name: value for name, value in vars(module).items() if not name.startswith("__")}
    return {**own, "torch": torch, "pl": pl, "audit": running, "results": results, "report": report, "scenario": scenario}


def start(scenario: Scenario, dtype: str | None = None) -> None:
    """Runs the program and opens the prompt. The audit ends with it."""
    names = namespace(scenario, dtype)
    running = names["audit"]
    verdict = str(names["report"].verdict).upper()
    told = [
        scenario.title,
        f"The audit of the broken program says {verdict}: print(report). It ran once more, under an audit that goes on here: results is "
        "what it gave; audit.where(t), audit.shadow(t) and audit.compare(t) tell of a tensor which op made it, its fp64 twin, and where "
        "they differ. fixed() and reference() are the other versions. Ctrl-D ends.",
    ]
    try:
        code.interact(banner="\n".join(paragraphs(text) for text in told), local=names, exitmsg="")
    finally:
        if running.active:
            running.stop()
