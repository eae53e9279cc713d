"""Every threshold of the judge and the event rules, in one table: name, default, sentence, source.

Each can be set by name in ``[tool.precisionlab]``, on the command line (``--set name=value``) and in ``pl.audit(**settings)``.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field, fields
from typing import Any

from precisionlab.errors import SettingsError


def _limit(default: float, sentence: str) -> Any:
    return field(default=default, metadata={"sentence": sentence})


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Limits with their meaning. ``u`` is the unit roundoff of the storage dtype (fp16 2^-11, bf16 2^-8, fp32 2^-24).

    Where a sentence gives a margin, "quiet" is the largest value over healthy and repaired programs and "faulty" the smallest
    over programs that must be convicted.
    """

    # Events: what one op did.
    gain: float = _limit(8.0, "Drift out over drift in above which an op amplified inherited error. Healthy forward ops stay below 7.1.")
    gain_drift_u: float = _limit(8.0, "Drift of the result, in u, below which no amplification is recorded. Healthy outputs carry 1-2 u.")
    rho: float = _limit(
        8.0,
        "Local error over its condition-aware bound above which the op's arithmetic is too narrow. Healthy kernels stay at or below 1.5.",
    )
    rho_local_u: float = _limit(
        8.0,
        "Normwise local error, in u, that must accompany rho: single elements of an inaccurate kernel do no harm.",
    )
    lost_share: float = _limit(
        0.5,
        "Share of an addend's magnitude that the rounded sum lost. Healthy residual additions lose up to 0.12.",
    )
    structural_zero_u: float = _limit(
        0.01,
        "Size of a cancelling result, in u of its operands, below which its exact value counts as zero: noise there is no fault.",
    )
    flush_share: float = _limit(0.1, "Share of the energy of a result that became zero. Quiet 0.003 in half, faulty 0.78.")
    headroom_log2: float = _limit(
        0.5,
        "Binades left below the largest finite number under which a result is called near overflow: maxima vary by as much "
        "between batches.",
    )
    mask_drift_u: float = _limit(1.0, "Drift, in u, at or below which the effect of earlier events counts as masked.")

    # Columns of a dtype plan: what the numbers of an op say of it, whatever became of them.
    rho_risky: float = _limit(
        2.0,
        "Local error over its bound above which arithmetic or accumulation is risky. Healthy kernels stay at or below 1.5 (2976 op "
        "instances of transformers: 1.0).",
    )
    flush_share_risky: float = _limit(
        0.01,
        "Share of the energy of a result that became zero above which its storage is risky. Quiet 0.003 in half.",
    )
    trial_outputs: float = _limit(
        32.0,
        "Outputs of an op on which other accumulations are tried at a time; 0: none. Of 32 the root mean square error is right to 1 %.",
    )

    # Sinks: where it matters.
    output_drift: float = _limit(
        0.02,
        "Normwise drift of a module output that is material, together with output_drift_u. Quiet 0.64 %, faulty 4.9 %.",
    )
    output_drift_u: float = _limit(
        8.0,
        "The same in u: both must be exceeded, since bf16 noise alone reaches 1 % and fp16 range faults show at fewer u.",
    )
    exit_drift: float = _limit(0.05, "Normwise drift of a value that outlives the audit. Quiet 0.64 %, faulty 33 %.")
    item_drift: float = _limit(0.10, "Relative drift of a number read into Python. Quiet 1 %, faulty 100 %.")
    gradient_efficiency: float = _limit(
        0.6,
        "Signed projection <lo,hi>/<hi,hi> of a gradient below which too much of it was lost. Quiet 0.63, faulty 0.49.",
    )
    gradient_share: float = _limit(
        1e-6,
        "Share of the total gradient energy below which a parameter's gradient is not judged (structural zeros, key biases).",
    )
    update_efficiency: float = _limit(
        0.5,
        "Signed projection of the weight updates below which they are swamped. Quiet 0.63, faulty 0.49.",
    )
    excess_step: float = _limit(3.0, "Length of a weight update over its twin's above which it runs away, given a range fault upstream.")
    update_steps: float = _limit(3.0, "Steps in a row that must lose their update before it is a finding.")
    accumulator_error: float = _limit(0.25, "Error of a long-lived value over its true displacement. Quiet 0.008 %, faulty 100 %.")
    accumulator_writes: float = _limit(8.0, "In-place writes after which a long-lived value is judged, and again at every doubling.")
    norm_error: float = _limit(
        2.0**-10,
        "Relative error that a gradient norm's own arithmetic makes, above which it is risky: a clipped step inherits it. fp32 norms of "
        "well-behaved kernels stay below 1e-6.",
    )
    norm_error_broken: float = _limit(2.0**-6, "The same above which it is broken: two units of bf16.")
    state_displacement: float = _limit(
        0.05,
        "Exact displacement of a half moment over its size, above which not following it is broken: a step goes with the root of v, "
        "so it is then off by 2.5 %. Below, it is risky.",
    )
    compensation_residual: float = _limit(
        0.25,
        "Share of the energy of what a step lost that the state may miss and still count as its compensation: it is rounded to half, too.",
    )
    reused_steps: float = _limit(
        3.0,
        "Steps of one optimizer in a row that use gradients a second time, before it is a finding: another network's loss may pass "
        "through its parameters once before they are cleared.",
    )
    schedule_changes: float = _limit(
        3.0,
        "Skipped steps after which the rate moved, before a schedule written by hand is judged: one may fall on the end of an epoch.",
    )
    skips_tried: float = _limit(
        2.0,
        "Skips in a row that no scale explains before every step counts as skipped: the scale has been lowered in between, to no effect.",
    )
    calibration_skips: float = _limit(10.0, "Skips that finding a scale may take: from torch's initial 65536 they lead down to 64.")
    growth_skips: float = _limit(3.0, "Skips right after a growth of the scale, from which on their share of the steps is judged.")
    growth_share: float = _limit(
        0.1,
        "Share of the steps that growing the scale may cost. At torch's growth interval of 2000 it is 0.05 %.",
    )
    schedule_share: float = _limit(
        0.10,
        "Share of the base learning rate that a schedule may move on iterations without a step. Quiet 6e-7, faulty 45 %.",
    )
    master_mismatch: float = _limit(
        8.0,
        "Change of a parameter by its master copy over the step taken plus rounding. Quiet 1, faulty 822.",
    )
    decision_share: float = _limit(0.05, "Share of decisions that differ from the twin's. Quiet 0.4 %, faulty 62 %.")
    tie_share: float = _limit(0.005, "Share of selections decided by a tie that only the low precision has. Quiet 0, faulty 1.4 %.")

    @classmethod
    def from_settings(cls, settings: dict[str, Any]) -> Thresholds:
        """Defaults overridden by name.

        Raises ``SettingsError`` for a name that does not exist (with the nearest one) and for a value that is no number.
        """
        known = {f.name for f in fields(cls)}
        chosen: dict[str, float] = {}
        for name, value in settings.items():
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                raise SettingsError(
                    f"there is no setting {name!r}", hint=f"did you mean {near[0]!r}?" if near else f"settings: {', '.join(sorted(known))}"
                )
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise SettingsError(f"setting {name} needs a number, got {value!r}", hint=f"default: {getattr(cls(), name)}")
            chosen[name] = float(value)
        return cls(**chosen)

    @classmethod
    def describe(cls) -> list[tuple[str, float, str]]:
        """``(name, default, sentence)`` of every threshold."""
        return [(f.name, float(f.default), f.metadata["sentence"]) for f in fields(cls)]  # type: ignore[arg-type]
