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


def make_scaler(**changes: object) -> dict[str, object]:
    """A GradScaler that skipped its first iteration, in a window of 2^3 to 2^15."""
    window = {
        "format": "fp16",
        "largest_gradient": 1.5,
        "lower_log2": 3,
        "lower_normal_log2": 14,
        "upper_log2": 15,
        "binades": 13,
        "scale_log2": 15.0,
        "headroom_binades": 0.0,
        "flushed_share": 0.02,
        "flushed_energy_share": 0.0,
        "tolerated_energy_share": 2.0**-11,
        "advised_log2": 13,
        "advised_flushed_share": 0.03,
        "advised_flushed_energy_share": 0.0002,
        "upper_flushed_energy_share": 0.0,
        "exponents": [[-20, 0.25, 0.0], [0, 0.75, 1.0]],
        "results": 40,
    }
    window.update({key: changes.pop(key) for key in list(changes) if key in window})
    values: dict[str, object] = dict(
        kind="GradScaler",
        scale=32768.0,
        skips=1,
        growth_interval=2000,
        growth_factor=2.0,
        backoff_factor=0.5,
        clean_steps=1,
        next={"steps": 1999, "scale": 65536.0, "fits": False},
        timeline=[
            {"step": 0, "scale": 65536.0, "skipped": True, "next_scale": 32768.0},
            {"step": 0, "scale": 32768.0, "skipped": False, "next_scale": 32768.0},
        ],
        window=window,
    )
    return {**values, **changes}


def make_record(**changes: object) -> RunRecord:
    values: dict[str, object] = dict(
        ops=[OpRecord(Site("m", "aten.pow", Phase.FORWARD, "gpt.py:41"), Plan("fp16", "fp32", "fp32"), "pointwise")],
        parameters=[
            ParameterRecord("head.weight", (256, 64), "fp16", True, steps=2, gradient_norm=0.123456789, state={"b": 1, "a": math.inf}),
            ParameterRecord(
                "embed.weight", (256, 64), "fp16", True, steps=1, gradient_norm=2.5, gradient_efficiency=1.0, flushed_share=0.0
            ),
            ParameterRecord(
                "blocks.0.norm1.weight",
                (64,),
                "fp16",
                True,
                steps=1,
                gradient_norm=3e-5,
                gradient_cosine=0.75,
                gradient_efficiency=0.5,
                flushed_share=0.25,
                update_efficiency=0.012,
                swamped_share=0.96,
            ),
        ],
        steps=[
            StepRecord(0, ops=160, loss=math.inf, loss_hi=2.5, skipped=True, scale=65536.0),
            StepRecord(0, ops=160, loss=2.4140625, loss_hi=2.4143, gradient_norm=1.25, scale=32768.0),
        ],
        scaler=make_scaler(),
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
