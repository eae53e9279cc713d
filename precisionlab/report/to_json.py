"""``Report`` as the JSON report, ``schema_version`` 1: strict JSON, stable order, six significant digits, no timestamps.

The schema is ``schema.json`` beside this file. NaN and infinities are the strings ``"nan"``, ``"inf"`` and ``"-inf"``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from enum import Enum
from numbers import Integral, Real
from typing import Any

from precisionlab.records import Coverage, LedgerRecord, ParameterRecord, Plan, StepRecord
from precisionlab.report.model import Column, Finding, OpVerdict, Report

SCHEMA_VERSION = 1
SIGNIFICANT_DIGITS = 6


def report_to_dict(report: Report) -> dict[str, Any]:
    """Plain dicts, lists, strings, numbers, booleans and None, ready for ``json.dumps(..., allow_nan=False)``."""
    record = report.record
    return {
        "schema_version": SCHEMA_VERSION,
        "verdict": str(report.verdict),
        "findings": [_finding(finding) for finding in report.findings],
        "ops": [_op(op) for op in report.ops],
        "parameters": [_parameter(parameter) for parameter in record.parameters],
        "scaler": None if record.scaler is None else plain(record.scaler),
        "growth": plain(record.growth),
        "ledger": None if record.ledger is None else _ledger(record.ledger),
        "coverage": _coverage(record.coverage),
        "environment": plain(record.environment),
        "settings": plain(record.settings),
        "steps": [_step(step) for step in record.steps],
        "optimizer_steps": record.optimizer_steps,
        "skipped_steps": record.skipped_steps,
        "inherited_op_sites": report.inherited,
        "quiet_events": report.quiet_events,
        "notes": all_notes(report),
        "error": record.error,
    }


def report_to_json(report: Report) -> str:
    """The JSON report as text, with a newline at its end."""
    return json.dumps(report_to_dict(report), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def all_notes(report: Report) -> list[str]:
    """The notes of the record and of the judge, each once."""
    ledger = report.record.ledger
    undefined = [f"the loss error is not attributed: {ledger.undefined}"] if ledger is not None and ledger.undefined else []
    return list(dict.fromkeys([*report.record.notes, *report.notes, *undefined]))


def plain(value: Any) -> Any:
    """Any value of a record as strict JSON. Free mappings are sorted by key, sets become sorted lists, the unknown becomes text."""
    if value is None or isinstance(value, (bool, str)):
        return str(value) if isinstance(value, Enum) else value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return number(float(value))
    if isinstance(value, Mapping):
        return {str(key): plain(value[key]) for key in sorted(value, key=str)}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted((plain(item) for item in value), key=str)
    return str(value)


def number(value: float | None) -> float | str | None:
    """Six significant digits; NaN and infinities as strings."""
    if value is None:
        return None
    if math.isfinite(value):
        return float(f"{value:.{SIGNIFICANT_DIGITS}g}")
    return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "code": finding.code,
        "kind": str(finding.kind),
        "verdict": str(finding.verdict),
        "phase": str(finding.phase),
        "module": finding.module,
        "op": finding.op,
        "source": finding.source,
        "parameter": finding.parameter,
        "message": finding.message,
        "evidence": plain(finding.evidence),
        "advice": finding.advice,
        "count": finding.count,
        "first_step": finding.first_step,
        "fingerprint": finding.fingerprint,
    }


def _op(op: OpVerdict) -> dict[str, Any]:
    return {
        "module": op.module,
        "op": op.op,
        "phase": str(op.phase),
        "source": op.source,
        "count": op.count,
        "plan": _plan(op.plan),
        "verdict": str(op.verdict),
        "columns": {"storage": _column(op.storage), "compute": _column(op.compute), "accumulation": _column(op.accumulation)},
        "drift_u": number(op.drift_u),
        "rho_p99": number(op.rho_p99),
        "rho_max": number(op.rho_max),
        "gain": number(op.gain),
        "loss_share": number(op.loss_share),
        "trials": [_trial(trial) for trial in op.trials],
    }


def _plan(plan: Plan) -> dict[str, str]:
    return {"storage": plan.storage, "compute": plan.compute, "accumulation": plan.accumulation}


def _trial(trial: dict[str, Any]) -> dict[str, Any]:
    changed = {key: _plan(value) if isinstance(value, Plan) else value for key, value in trial.items()}
    return {key: plain(value) for key, value in changed.items()}


def _column(column: Column) -> dict[str, Any]:
    return {"verdict": str(column.verdict), "evidence": plain(column.evidence)}


def _ledger(ledger: LedgerRecord) -> dict[str, Any]:
    """Sites are listed only where enough is explained to rank them."""
    shares = ledger.shares if ledger.ranks else []
    return {
        "loss_error": number(ledger.loss_error),
        "predicted": number(ledger.predicted),
        "explained": number(ledger.explained),
        "method": ledger.method,
        "shares": [
            {
                "module": share.site.module,
                "op": share.site.op,
                "source": share.site.source,
                "share": number(share.share if share.share is not None else 0.0),
                "rss": number(share.rss),
            }
            for share in shares
        ],
    }


def _parameter(parameter: ParameterRecord) -> dict[str, Any]:
    return {
        "name": parameter.name,
        "shape": list(parameter.shape),
        "dtype": parameter.dtype,
        "requires_grad": parameter.requires_grad,
        "steps": parameter.steps,
        "gradient_norm": number(parameter.gradient_norm),
        "gradient_drift_u": number(parameter.gradient_drift_u),
        "gradient_cosine": number(parameter.gradient_cosine),
        "gradient_efficiency": number(parameter.gradient_efficiency),
        "flushed_share": number(parameter.flushed_share),
        "flushed_energy_share": number(parameter.flushed_energy_share),
        "subnormal_share": number(parameter.subnormal_share),
        "update_efficiency": number(parameter.update_efficiency),
        "swamped_share": number(parameter.swamped_share),
        "state": plain(parameter.state),
    }


def _coverage(coverage: Coverage) -> dict[str, Any]:
    return {
        "ops": coverage.ops,
        "shadowed": coverage.shadowed,
        "share": number(coverage.share),
        "unshadowed": plain(coverage.unshadowed),
        "reasons": plain(coverage.reasons),
        "default_rule": plain(coverage.default_rule),
        "resyncs": plain(coverage.resyncs),
        "evicted_bytes": coverage.evicted_bytes,
        "peak_shadow_bytes": coverage.peak_shadow_bytes,
    }


def _step(step: StepRecord) -> dict[str, Any]:
    return {
        "index": step.index,
        "ops": step.ops,
        "loss": number(step.loss),
        "loss_hi": number(step.loss_hi),
        "skipped": step.skipped,
        "gradient_norm": number(step.gradient_norm),
        "scale": number(step.scale),
    }
