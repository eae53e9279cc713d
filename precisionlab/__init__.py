"""precisionlab: is this PyTorch program numerically safe in fp16 or bf16, what breaks first, and what repairs it.

Importing the package imports no torch: the names below load their module when first used (PEP 562).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from precisionlab import scenarios
    from precisionlab.planning.apply import apply_plan
    from precisionlab.planning.subject import plan_subject
    from precisionlab.records import Verdict
    from precisionlab.report.model import Finding, Report
    from precisionlab.session import audit
    from precisionlab.subjects.run import audit_subject
    from precisionlab.subjects.subject import Subject
    from precisionlab.thresholds import Thresholds

__version__ = "0.1.0"

__all__ = [
    "Finding",
    "Report",
    "Subject",
    "Thresholds",
    "Verdict",
    "__version__",
    "apply_plan",
    "audit",
    "audit_subject",
    "plan_subject",
    "scenarios",
]

_HOME = {
    "Finding": "precisionlab.report.model",
    "Report": "precisionlab.report.model",
    "Subject": "precisionlab.subjects.subject",
    "Thresholds": "precisionlab.thresholds",
    "Verdict": "precisionlab.records",
    "audit": "precisionlab.session",
    "apply_plan": "precisionlab.planning.apply",
    "audit_subject": "precisionlab.subjects.run",
    "plan_subject": "precisionlab.planning.subject",
}


def __getattr__(name: str) -> Any:
    if name == "scenarios":
        return importlib.import_module("precisionlab.scenarios")
    if name not in _HOME:
        raise AttributeError(f"module 'precisionlab' has no attribute {name!r}")
    found = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
