"""The plain data of one audited run. Everything the judge and the renderers know is in here.

Standard library only: a record can be pickled, stored as JSON and judged on a machine without torch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from precisionlab.records.enums import EventKind, Phase, SinkKind, Verdict
from precisionlab.records.trials import TrialRecord

if TYPE_CHECKING:
    from precisionlab.records.ledger import LedgerRecord

Evidence = dict[str, "float | int | str | bool"]
"""Numbers with their unit in the name (``drift_u``, ``flushed_energy_share``)."""


@dataclass(frozen=True, slots=True)
class Site:
    """Where an op ran: one row of the report. ``op`` is the overload packet (``aten.mm``), ``source`` is ``file.py:41``."""

    module: str
    op: str
    phase: Phase
    source: str
    line_text: str = ""
    """The stripped text of the source line, when it could be read."""
    function: str = ""
    """Name of the user's function or method that holds the line."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Dtypes of an op: how results are stored, how arithmetic is done, what sums are kept in."""

    storage: str
    compute: str
    accumulation: str


@dataclass(slots=True)
class OpRecord:
    """Aggregate over every execution of one site. Drift and errors are in units of the storage dtype's u."""

    site: Site
    plan: Plan
    family: str
    count: int = 0
    elements: int = 0
    results: int = 0
    """Results over all executions: an op may have several outputs."""
    drift_u_max: float = 0.0
    drift_u_sum: float = 0.0
    gain_max: float = 0.0
    rho_max: float = 0.0
    rho_p99: float = 0.0
    local_error_u: float = 0.0
    local_checks: int = 0
    max_abs: float = 0.0
    headroom_log2: float | None = None
    """log2(largest finite value of the storage dtype / largest finite magnitude seen); None when nothing was measured."""
    flushed_energy_share: float = 0.0
    introduced_nonfinite: int = 0
    inherited_nonfinite: int = 0
    reduction_length: int = 0
    shadowed: bool = True
    true_max_abs: float = 0.0
    """Largest finite magnitude of the fp64 twins, also where the real value overflowed."""
    true_rms: float = 0.0
    """Smallest root mean square that a result's twin had; 0 when none was measured."""
    trials: list[TrialRecord] = field(default_factory=list)
    """What other accumulations would have done (presets standard and full, results in half precision or less)."""
    trials_skipped: str = ""
    """Why an op that sums has no trials."""

    @property
    def drift_u(self) -> float:
        """Mean normwise drift over the results."""
        return self.drift_u_sum / self.results if self.results else 0.0


@dataclass(slots=True)
class EventRecord:
    """One kind of event at one site, over all its occurrences."""

    id: int
    kind: EventKind
    site: Site
    parents: frozenset[int]
    """Events that had flowed into the operands when this one was first raised."""
    count: int = 0
    first_step: int = 0
    evidence: Evidence = field(default_factory=dict)
    """Numbers of the worst occurrence."""
    detail: str = ""
    """What exactly happened, when the kind alone does not say it (``sum of terms``, ``eps``)."""


@dataclass(slots=True)
class SinkRecord:
    """What arrived at one sink, with the events that had flowed into it."""

    kind: SinkKind
    name: str
    site: Site | None
    events: frozenset[int]
    verdict: Verdict
    """How materially lo and hi differ here, by the measure proper to this sink."""
    reason: str
    """The consequence in words (``32 of 64 logits are NaN``)."""
    evidence: Evidence = field(default_factory=dict)
    count: int = 0
    first_step: int = 0
    needs_event: bool = True
    """False where the difference is a fault by itself even if no event explains it."""


@dataclass(slots=True)
class ParameterRecord:
    """One parameter over the audit, gradients and updates against their twins."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    requires_grad: bool
    steps: int = 0
    gradient_norm: float | None = None
    gradient_drift_u: float | None = None
    gradient_cosine: float | None = None
    gradient_efficiency: float | None = None
    """Signed projection <lo, hi> / <hi, hi> summed over the steps: 1 when nothing was lost."""
    flushed_share: float | None = None
    flushed_energy_share: float | None = None
    subnormal_share: float | None = None
    update_efficiency: float | None = None
    swamped_share: float | None = None
    state: Evidence = field(default_factory=dict)


@dataclass(slots=True)
class Coverage:
    """What the audit could not see, counted by name."""

    ops: int = 0
    shadowed: int = 0
    unshadowed: dict[str, int] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    """Op name -> why it could not be shadowed."""
    default_rule: dict[str, int] = field(default_factory=dict)
    """Ops shadowed from their schema alone, without a rule of their own."""
    resyncs: dict[str, int] = field(default_factory=dict)
    """Reason -> how many twins restarted from the real value."""
    evicted_bytes: int = 0
    peak_shadow_bytes: int = 0

    @property
    def share(self) -> float:
        """Shadowed ops over ops seen; 0 when nothing ran."""
        return self.shadowed / self.ops if self.ops else 0.0


@dataclass(slots=True)
class StepRecord:
    """One training step (it ends where the optimizer step ends)."""

    index: int
    ops: int = 0
    loss: float | None = None
    loss_hi: float | None = None
    skipped: bool = False
    gradient_norm: float | None = None
    scale: float | None = None


@dataclass(slots=True)
class RunRecord:
    """Everything measured in one audit."""

    ops: list[OpRecord] = field(default_factory=list)
    events: list[EventRecord] = field(default_factory=list)
    sinks: list[SinkRecord] = field(default_factory=list)
    parameters: list[ParameterRecord] = field(default_factory=list)
    steps: list[StepRecord] = field(default_factory=list)
    scaler: dict[str, Any] | None = None
    ledger: LedgerRecord | None = None
    """Which calls made the loss error (preset full); None where it was not kept."""
    growth: dict[str, Any] = field(default_factory=dict)
    """Axis -> how errors grow along it (``growth.document``); empty for an audit of one size."""
    coverage: Coverage = field(default_factory=Coverage)
    environment: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    """Things to tell the reader about the run itself (the subject raised in step 2; the input already holds NaN)."""
    error: str | None = None
    """The exception that ended the run, in one line; None when it ended by itself."""
    module_outputs: int = 0
    """Outermost module calls seen. Without any, and without a backward pass, what the program holds at its end is its output."""
    backwards: int = 0
    optimizer_steps: int = 0
    skipped_steps: int = 0
