"""Audits of one subject over sizes and seeds. A sweep costs the sum of its audits: nothing is run twice, and Ctrl-C keeps what there is."""

from __future__ import annotations

import contextlib
import gc
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

from precisionlab.errors import PrecisionLabError, SettingsError, SubjectError
from precisionlab.growth.axes import BATCH, SCALE, Axis
from precisionlab.growth.measurement import UNIT_ROUNDOFFS, Measurement, Quantity, Sweep
from precisionlab.growth.resize import check_axes, resized
from precisionlab.growth.watch import Watch, place_of
from precisionlab.records import EventKind, Phase, RunRecord, SinkKind
from precisionlab.report.model import Report
from precisionlab.subjects.batches import make_batch, tensors
from precisionlab.subjects.run import Outcome, run_subject
from precisionlab.subjects.subject import Subject
from precisionlab.subjects.words import LowDtype, parse_dtype

SEEDS = 3
STEPS = 1
MEMORY_SHARE = 0.8
"""Share of the free memory that a size may be expected to take."""
_PER_SHADOW_BYTE = 1.6
"""Bytes of a process over the bytes of its twins: the low side and the saved activations are up to half as large."""

Progress = Callable[[str], None]
_MEASURED_PHASES = (Phase.FORWARD, Phase.BACKWARD, Phase.OTHER)


class Sweeper:
    """Runs the sizes of one or several axes. ``report`` is that of the last run of a sweep, its largest size.

    The twins of the weights run on over the steps of a run (``resync="never"``), so that drift along the steps is seen to grow.
    """

    def __init__(
        self,
        subject: Subject,
        dtype: object = "fp16",
        mode: object = "amp",
        *,
        steps: int = STEPS,
        seeds: int = SEEDS,
        kernels: object = "auto",
        budget_s: float = math.inf,
        progress: Progress | None = None,
        **settings: Any,
    ) -> None:
        if isinstance(seeds, bool) or not isinstance(seeds, int) or seeds < 1:
            raise SettingsError(f"seeds must be a positive integer, got {seeds!r}", hint="seeds=3")
        self.subject, self.dtype, self.mode, self.kernels = subject, parse_dtype(dtype), mode, kernels
        if self.dtype is LowDtype.FP32:
            raise SettingsError("fp32 is the control: its growth says nothing of a half format", hint="--dtype fp16 or bf16")
        self.steps, self.seeds, self.settings = steps, seeds, {"preset": "quick", "resync": "never", **settings}
        self.say = progress or (lambda text: None)
        self.deadline = time.monotonic() + budget_s
        self.report: Report | None = None
        self.interrupted = False

    def along(self, axis: Axis) -> Sweep:
        """Every size with every seed. Sizes that raise, or are expected not to fit into memory or time, are left out and said.

        Raises ``SubjectError`` for an axis the subject does not have or ignores, and when the smallest size raises.
        """
        check_axes(self.subject, (axis,))
        sweep = Sweep(axis.name, str(self.dtype))
        with _few_objects():
            for index, size in enumerate(axis.sizes):
                reason = self.obstacle(sweep, size)
                if reason:
                    sweep.skipped.update(dict.fromkeys(axis.sizes[index:], reason))
                    break
                try:
                    self._size(sweep, size)
                except KeyboardInterrupt:
                    self.interrupted = sweep.interrupted = True
                    break
        _check_parameters(sweep)
        _note_what_is_missing(sweep)
        return sweep

    def measure(self, axis: str, size: float, seeds: Iterable[int] | None = None) -> list[Measurement]:
        """The measurements of one size, for a forecast to be confirmed; ``report`` stays that of the sweep. Raises as ``along`` does."""
        sweep, report = Sweep(axis, str(self.dtype)), self.report
        try:
            with _few_objects():
                self._size(sweep, size, seeds)
        finally:
            self.report = report
        return sweep.measurements

    def _size(self, sweep: Sweep, size: float, seeds: Iterable[int] | None = None) -> None:
        for seed in range(1 if sweep.deterministic else self.seeds) if seeds is None else seeds:
            self.say(f"{sweep.axis} {size:g}, seed {seed}")
            try:
                found = self._one(sweep.axis, size, seed)
            except PrecisionLabError as error:
                if not sweep.measurements:
                    raise
                sweep.skipped[size] = error.message
                break
            gc.collect()  # autograd graphs and twins of the last audit hold each other
            if isinstance(found, str):
                if not sweep.measurements:
                    raise SubjectError(f"the subject raised at {sweep.axis} {size:g}: {found}", hint="sizes that it can take")
                sweep.skipped[size] = found
                break
            sweep.measurements.append(found)
            if found.size != sweep.sizes[0]:
                _check_not_ignored(sweep)
        same = sweep.at(size)
        if len(sweep.sizes) == 1 and len(same) > 1 and all((m.totals, m.places) == (same[0].totals, same[0].places) for m in same):
            sweep.deterministic = True
            sweep.notes.append(f"{len(same)} seeds gave the same numbers: the other sizes are run once")

    def _one(self, axis: str, size: float, seed: int) -> Measurement | str:
        """One audit; the error in words when the subject raised."""
        subject = resized(self.subject, axis, size)
        made: list[Watch] = []

        def watch(**arguments: Any) -> Watch:
            made.append(Watch(**arguments))
            made[0].u = UNIT_ROUNDOFFS[str(self.dtype)]
            return made[0]

        begin = time.monotonic()
        shapes: list[tuple[int, ...]] = []
        noted = _noting_shapes(subject, shapes)
        outcome = run_subject(noted, self.dtype, self.mode, self.steps, seed, self.kernels, watch=watch, **self.settings)
        seconds = time.monotonic() - begin
        if isinstance(outcome.error, KeyboardInterrupt):
            raise outcome.error
        if outcome.error is not None:
            return str(outcome.report.record.error or outcome.error)
        self.report = outcome.report
        found = _measurement(size, seed, outcome, made[0], seconds, tuple(shapes))
        return found

    def obstacle(self, sweep: Sweep, size: float, most_s: float = math.inf) -> str:
        """Why ``size`` is not started; empty when it is. Time and memory are those of the sizes before, continued as a power law.

        ``most_s``: what it may take where no budget was given.
        """
        if not sweep.measurements:
            return ""
        seconds = _continued(sweep, size, lambda m: m.seconds) * (1 if sweep.deterministic else self.seeds)
        left = self.deadline - time.monotonic()
        if seconds > left:
            return f"it would take about {seconds:.0f} s, and {max(left, 0):.0f} s are left of the budget"
        if seconds > most_s and math.isinf(self.deadline):
            return f"it would take about {seconds:.0f} s, more than {most_s:.0f} s: give a --budget for it"
        wanted = _continued(sweep, size, lambda m: float(m.peak_bytes)) * _PER_SHADOW_BYTE
        free = free_bytes()
        if free is not None and wanted > MEMORY_SHARE * free:
            return f"it would take about {wanted / 2**30:.1f} GiB, and {free / 2**30:.1f} GiB are free"
        return ""


@contextlib.contextmanager
def _few_objects() -> Iterator[None]:
    """The garbage collector passes over what exists already: each audit looks through the objects of the process, and those of the
    libraries are hundreds of thousands."""
    ours = gc.get_freeze_count() == 0
    if ours:
        gc.freeze()
    try:
        yield
    finally:
        if ours:
            gc.unfreeze()


def _noting_shapes(subject: Subject, shapes: list[tuple[int, ...]]) -> Subject:
    """``subject``, whose first batch leaves the shapes of its tensors in ``shapes``."""

    def batch(step: int) -> Any:
        made = make_batch(subject, step)
        if step == 0:
            shapes.extend(tuple(t.shape) for _, t in tensors(made))
        return made

    if not callable(subject.batch):
        shapes.extend(tuple(t.shape) for _, t in tensors(subject.batch))
        return subject
    return replace(subject, batch=batch)


def free_bytes() -> int | None:
    """Memory that can still be had, in bytes; None where the system does not say."""
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration, ValueError):
        pass
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return None


def _continued(sweep: Sweep, size: float, cost: Callable[[Measurement], float]) -> float:
    """The cost of ``size`` by the power law through the last two sizes, with an exponent between 0 and 2; 0 while there is none."""
    sizes = sweep.sizes
    if not sizes:
        return 0.0
    means = [sum(cost(m) for m in sweep.at(n)) / len(sweep.at(n)) for n in sizes[-2:]]
    exponent = 1.0
    if len(means) == 2 and means[0] > 0 and means[1] > 0:
        exponent = min(max(math.log(means[1] / means[0]) / math.log(sizes[-1] / sizes[-2]), 0.0), 2.0)
    return float(means[-1] * (size / sizes[-1]) ** exponent)


def _check_not_ignored(sweep: Sweep) -> None:
    """Raises when two sizes gave the same batch, the same weights and the same work."""
    first, last = sweep.measurements[0], sweep.measurements[-1]
    if sweep.axis == SCALE:
        return
    if (first.batch_shapes, first.parameters, first.ops, first.elements) == (last.batch_shapes, last.parameters, last.ops, last.elements):
        shapes = ", ".join(str(shape) for shape in last.batch_shapes) or "no tensors"
        raise SubjectError(
            f"{sweep.axis} changes nothing: at {first.size:g} and {last.size:g} the batch ({shapes}), the {last.parameters} parameters and "
            "the ops are the same",
            hint=f"batch(step, {sweep.axis}) that makes a batch of that size, or a model builder that takes {sweep.axis}",
        )


def _check_parameters(sweep: Sweep) -> None:
    """Where the axis is one of the data, other weights make another model: wrong for the batch, to be known for the rest."""
    counts = {m.size: m.parameters for m in sweep.measurements}
    if len(set(counts.values())) < 2:
        return
    (small, few), (large, many) = min(counts.items()), max(counts.items())
    text = f"{few} parameters at {sweep.axis} {small:g} and {many} at {large:g}"
    if sweep.axis in (BATCH, SCALE):
        raise SubjectError(f"the model changes with {sweep.axis}: {text}", hint="a model whose weights do not depend on the batch")
    sweep.notes.append(f"{text}: each size is another model, made anew by its builder")


def _note_what_is_missing(sweep: Sweep) -> None:
    """Why a law has fewer sizes than were run, or none."""
    overflowed = next((m for m in sweep.measurements if m.nonfinite), None)
    if overflowed is not None:
        sweep.notes.append(
            f"{overflowed.nonfinite} overflows from {sweep.axis} {overflowed.size:g} on: errors there are infinite and in no law"
        )
    if sweep.measurements and not any(Quantity.DRIFT in m.totals for m in sweep.measurements):
        sweep.notes.append("the outermost module returned nothing that rounds: there is no output drift")
    if sweep.measurements and not any(Quantity.GRADIENT in m.totals for m in sweep.measurements):
        sweep.notes.append("no parameter got a gradient: there is no gradient error")


def _measurement(
    size: float, seed: int, outcome: Outcome, watch: Watch, seconds: float, shapes: tuple[tuple[int, ...], ...]
) -> Measurement:
    record = outcome.report.record
    totals: dict[Quantity, float] = {Quantity.FLUSHED: _flushed(record), Quantity.SWAMPED: _swamped(record, watch)}
    for quantity, value in ((Quantity.DRIFT, watch.drift_u()), (Quantity.GRADIENT, watch.gradient_error_u())):
        if value is not None:
            totals[quantity] = value
    model = watch._model
    return Measurement(
        size,
        seed,
        totals,
        {Quantity.PEAK: _peaks(record), Quantity.LOST: {place: value for place, value in watch.lost.items() if value > 0}},
        watch.blocks(),
        watch.tokens_u(),
        watch.steps_u(),
        sum(p.numel() for p in model.parameters()) if model is not None else 0,
        shapes,
        record.coverage.ops,
        sum(op.elements for op in record.ops),
        seconds,
        record.coverage.peak_shadow_bytes,
        next((place_of(e.site.op, e.site.source, e.site.module) for e in record.events if e.kind is EventKind.OVERFLOW), ""),
    )


def _peaks(record: RunRecord) -> dict[str, float]:
    """Largest exact magnitude by place, of results stored in a half format; not of scaled gradients, which a scaler brings to the end of
    the range on purpose."""
    phases = (Phase.FORWARD,) if record.scaler is not None else _MEASURED_PHASES
    found: dict[str, float] = {}
    for op in record.ops:
        if op.plan.storage in ("fp16", "bf16") and op.site.phase in phases and op.max_abs > 0:
            place = place_of(op.site.op, op.site.source, op.site.module)
            found[place] = max(found.get(place, 0.0), op.max_abs)
    for event in record.events:
        true = event.evidence.get("true_max_abs")
        if event.kind is EventKind.OVERFLOW and event.site.phase in phases and isinstance(true, float) and math.isfinite(true):
            place = place_of(event.site.op, event.site.source, event.site.module)
            found[place] = max(found.get(place, 0.0), true)
    return found


def _flushed(record: RunRecord) -> float:
    shares = [op.flushed_energy_share for op in record.ops if op.site.phase in _MEASURED_PHASES and op.plan.storage in ("fp16", "bf16")]
    return max([*shares, *(p.flushed_energy_share or 0.0 for p in record.parameters)], default=0.0)


def _swamped(record: RunRecord, watch: Watch) -> float:
    shares = [swamped / addends for swamped, addends in watch.swamped.values() if addends]
    updates = [float(s.evidence.get("swamped_share", 0.0)) for s in record.sinks if s.kind is SinkKind.UPDATE]
    return max([*shares, *updates, *(p.swamped_share or 0.0 for p in record.parameters)], default=0.0)
