from __future__ import annotations

import sys
import types
from typing import Any

import pytest

from precisionlab.records import Coverage, RunRecord, Verdict
from precisionlab.report.model import Report


class FakeAudit:
    """Stands for ``pl.audit`` where only the loop around it is under test. ``last`` is the newest one."""

    last: FakeAudit
    coverage = Coverage(10, 10)

    def __init__(self, model: Any = None, optimizer: Any = None, scaler: Any = None, **settings: Any) -> None:
        self.model, self.optimizer, self.scaler, self.settings = model, optimizer, scaler, settings
        self.report = Report(Verdict.SAFE, [], [], RunRecord(coverage=type(self).coverage))
        type(self).last = self

    def __enter__(self) -> FakeAudit:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is not None:
            self.report.record.error = f"{type(error).__name__}: {error}"
            self.report.record.notes.append(f"the program raised in step 0: {self.report.record.error}")


@pytest.fixture
def fake_audit(monkeypatch: pytest.MonkeyPatch) -> type[FakeAudit]:
    module = types.ModuleType("precisionlab.session")
    fresh = type("FreshAudit", (FakeAudit,), {})
    module.audit = fresh  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "precisionlab.session", module)
    return fresh
