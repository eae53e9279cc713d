"""Reports to render: built by hand, so that these tests need neither torch nor the engine."""

from __future__ import annotations

import math

from precisionlab.records import Coverage, Kind, OpRecord, ParameterRecord, Phase, Plan, RunRecord, Site, StepRecord, Verdict
from precisionlab.report.model import Column, Finding, OpVerdict

SETTINGS = {"subject": "gpt.py", "dtype": "fp16", "mode": "pure", "steps": 2, "seed": 0, "kernels": "fast", "optimizer": "AdamW"}


def make_finding(position: int = 0, verdict: Verdict = Verdict.BROKEN, **changes: object) -> Finding:
    values: dict[str, object] = dict(
        code="PL101",
        kind=Kind.OVERFLOW,
        verdict=verdict,
        phase=Phase.FORWARD,
        module=f"blocks.{position}.norm1",
        op="aten.pow",
        source="gpt.py:41",
        parameter=None,
        message="4 of 16384 squares exceed 65504 (the exact result reaches 1.6e5). Consequence: every logit of the first token is wrong.",
        evidence={"introduced_nonfinite": 4, "exact_max_abs": 160000.123456789, "headroom_log2": -math.inf},
        advice="Square and sum in fp32 (x.float().square().mean(-1)) and round once: fp32 reaches 3e38.",
        count=2,
        first_step=0,
        fingerprint=f"{position:016x}",
    )
    return Finding(**{**values, **changes})  # type: ignore[arg-type]


def make_op(position: int, verdict: Verdict, drift_u: float, source: str = "gpt.py:41") -> OpVerdict:
    safe = Column(Verdict.SAFE, {})
    plan = Plan("fp16", "fp32", "fp32")
    storage = Column(verdict, {"drift_u": drift_u})
    return OpVerdict(
        f"blocks.{position}.norm1", "aten.pow", Phase.FORWARD, source, 2, plan, verdict, storage, safe, safe, drift_u, 0.5, 1.25, math.nan
    )


def make_record(**changes: object) -> RunRecord:
    values: dict[str, object] = dict(
        ops=[OpRecord(Site("m", "aten.pow", Phase.FORWARD, "gpt.py:41"), Plan("fp16", "fp32", "fp32"), "pointwise")],
        parameters=[
            ParameterRecord("head.weight", (256, 64), "fp16", True, steps=2, gradient_norm=0.123456789, state={"b": 1, "a": math.inf})
        ],
        steps=[StepRecord(0, ops=160, loss=math.inf, loss_hi=2.5, skipped=True, scale=65536.0)],
        scaler={"scale": 65536.0, "growth_interval": 2000},
        coverage=Coverage(
            ops=320,
            shadowed=317,
            unshadowed={"aten.foo": 2, "aten.bar": 1},
            reasons={"aten.foo": "no fp64 kernel"},
            resyncs={"unseen write": 1},
        ),
        environment={"torch": "2.13.0", "python": "3.11.7"},
        settings=dict(SETTINGS),
        notes=["optimizer: none given, AdamW(lr=0.0001) was used"],
        optimizer_steps=1,
        skipped_steps=1,
    )
    return RunRecord(**{**values, **changes})  # type: ignore[arg-type]
