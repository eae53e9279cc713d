"""Events: what one op did to its numbers, read from the real results and their twins.

An event is not a fault. It is attached to the twin of the result, travels with every value computed from it, and dies where its effect
is masked (drift back to ``mask_drift_u``). Sinks and the judge decide what becomes of it.
"""

from __future__ import annotations

import math

import torch

from precisionlab.ops.local import LocalError, OutputError, local_error
from precisionlab.ops.registry import Family
from precisionlab.records import EventKind, Evidence, OpRecord, Phase, Site
from precisionlab.shadow.call import UNMEASURED, OpCall, Pair, tensors_of
from precisionlab.shadow.measure import LostStats, Stats, count_nonfinite, measure
from precisionlab.shadow.memory import NO_EVENTS, UNIT_ROUNDOFF, Twin
from precisionlab.shadow.opinfo import OpInfo
from precisionlab.thresholds import Thresholds
from precisionlab.trackers.addends import ADDITIVE, lost_evidence, lost_in_sum, pending_write_back
from precisionlab.trackers.casts import cast_events, known_cast
from precisionlab.trackers.log import RunLog, join_events
from precisionlab.trackers.pairs import NAMES, drift_of, grouped, relative, rms_of
from precisionlab.trackers.plans import HALVES, SUMS, Plans

Tensor = torch.Tensor

_LARGEST = {d: torch.finfo(d).max for d in NAMES}
_TINY = {d: torch.finfo(d).smallest_normal * (2.0 if d is torch.float64 else 1.0) * UNIT_ROUNDOFF[d] * 2.0 for d in NAMES}
_LASTING: frozenset[EventKind] = frozenset((EventKind.LOST, EventKind.CAST))
"""Events that survive masking: one lost addend is invisible in the drift and adds up over a loop."""
_SMALL = 4096
"""Elements up to which measuring costs no more than deciding whether to."""
_LOCAL_WORK = 1 << 26
"""Multiply-adds above which a local error is measured on a sample of the outputs."""


class EventRules:
    """Looks at each op with floating results and raises events. ``exhaustive`` also measures every local error (preset full)."""

    def __init__(
        self, log: RunLog, thresholds: Thresholds, plans: Plans | None = None, *, local: bool = True, exhaustive: bool = False
    ) -> None:
        self.log = log
        self.limits = thresholds
        self.plans = plans or Plans()
        self.local = local
        self.exhaustive = exhaustive
        self.half_gradients: list[tuple[Pair, Stats]] = []
        """The fp16 results of the running op, when it runs in a backward pass, with their measurements (``trackers.window``)."""

    def op(self, call: OpCall) -> OpRecord | None:
        """Measure the results of one op, raise its events, and set the influence sets of the twins."""
        info = call.info
        outputs = call.outputs
        first = outputs[0]
        if self.half_gradients:
            self.half_gradients = []
        plan = self.plans.of
        record = self.log.op(call.module, info.name, call.phase, call.place, lambda: (info.family.value, plan(first.lo.dtype, call)))
        record.count += 1
        if info.listed and len(outputs) > 1:
            self._listed(call, record)
            return record
        inputs = call.inputs
        if info.mutated:
            carried_sets = [call.events_before.get(id(p.lo), p.twin.events) for p in inputs]
        else:
            carried_sets = [p.twin.events for p in inputs]
        carried_sets.extend(d.twin.events for d in call.decisions)
        carried = join_events(carried_sets) if carried_sets else NO_EVENTS
        for pair in outputs:
            self._result(call, record, pair, inputs, carried)
        return record

    def _listed(self, call: OpCall, record: OpRecord) -> None:
        """List ops (``_foreach_*``): the i-th result belongs to the i-th entries and to the operands all share (a clip coefficient)."""
        for pair, entries in grouped(call):
            carried = join_events([call.events_before.get(id(p.lo), p.twin.events) for p in entries]) if entries else NO_EVENTS
            self._result(call, record, pair, entries, carried)

    def _result(self, call: OpCall, record: OpRecord, pair: Pair, inputs: list[Pair], carried: frozenset[int]) -> None:
        info = call.info
        lo, hi, twin = pair.lo, pair.hi, pair.twin
        in_drift = 0.0
        coarsest = twin.u
        tainted = False
        for p in inputs:
            source = p.twin
            if source.drift > in_drift:
                in_drift = source.drift
            if source.u > coarsest:
                coarsest = source.u
            if source.nonfinite:
                tainted = True
        if info.in_place and not tainted:
            tainted = twin.nonfinite
        twin.u = coarsest
        record.elements += lo.numel()
        record.results += 1
        if info.exact:
            # data movement rounds nothing
            twin.drift, twin.nonfinite = in_drift, tainted
            twin.events = carried
            if len(inputs) == 1:
                twin.lo_rms, twin.error_rms = inputs[0].twin.lo_rms, inputs[0].twin.error_rms
            record.drift_u_sum += in_drift / coarsest if coarsest else 0.0
            return
        if info.name == "aten._to_copy" and known_cast(call, record, pair, inputs, in_drift, tainted, carried):
            return
        if (
            not self.local
            and call.phase is Phase.OPTIMIZER
            and lo.dtype is torch.float32
            and lo.numel() > _SMALL
            and not count_nonfinite(lo)
        ):
            # preset quick: large fp32 sums and products inside a step are looked at where they end, in the weights
            twin.drift, twin.nonfinite, twin.events, twin.lo_rms = in_drift, False, carried, -1.0
            return
        stats = measure(lo, hi)
        n = stats.elements
        if n == 0:
            return
        if call.backward and lo.dtype is torch.float16:
            self.half_gradients.append((pair, stats))
        drift = relative(stats.diff_sq, stats.hi_sq)
        drift_u = drift / coarsest
        raised: list[int] = []
        if stats.introduced or stats.flushed or drift_u > self.limits.gain_drift_u or self.exhaustive:
            raised = self._suspicious(call, record, pair, inputs, stats, drift, in_drift, tainted, carried)
        base_name = info.name
        if base_name in ADDITIVE and not stats.introduced:
            event = self._lost(call, pair, stats, carried)
            if event is not None:
                raised.append(event)
        if info.family is Family.CAST or base_name in ("aten._to_copy", "aten.copy_"):
            raised.extend(cast_events(self.log, call, pair, inputs, stats, carried))
        twin.drift = drift
        twin.error_rms = math.sqrt(stats.diff_sq / n)
        twin.nonfinite = stats.introduced > 0 or (
            info.in_place and twin.nonfinite and pair.lo.numel() * lo.element_size() < lo.untyped_storage().nbytes()
        )
        twin.lo_rms = math.sqrt(stats.lo_sq / n)
        if carried or raised:
            events = join_events([carried, frozenset(raised)]) if raised else carried
            if not raised and drift_u <= self.limits.mask_drift_u and not stats.introduced:
                kinds = self.log.events
                events = frozenset(e for e in events if kinds[e].kind in _LASTING)
            twin.events = events
        else:
            twin.events = NO_EVENTS
        self._note(record, stats, drift_u, lo.dtype)

    # -- the rules ----------------------------------------------------------------------------------------------------------------

    def _suspicious(
        self,
        call: OpCall,
        record: OpRecord,
        pair: Pair,
        inputs: list[Pair],
        stats: Stats,
        drift: float,
        in_drift: float,
        tainted: bool,
        carried: frozenset[int],
    ) -> list[int]:
        limits = self.limits
        twin = pair.twin
        u = twin.u
        storage_u = UNIT_ROUNDOFF[pair.lo.dtype]
        raised: list[int] = []
        flush = stats.flushed > 0 and stats.flushed_sq > limits.flush_share * stats.hi_sq
        grew = drift > limits.gain_drift_u * u and drift > limits.gain * max(in_drift, u / 2)
        if grew and not call.info.mutated:
            in_drift = max((drift_of(p) for p in inputs), default=0.0)
            grew = drift > limits.gain * max(in_drift, u / 2)
        new_nonfinite = stats.introduced > 0 and not tainted
        if not (flush or grew or new_nonfinite or self.exhaustive):
            return raised
        whole = self._local(call) if self.local or new_nonfinite or flush else None
        found: OutputError | None = None
        if whole is not None:
            found = next((o for t, o in zip(tensors_of(call.result), whole.outputs, strict=False) if t is pair.lo), None)
            self._note_local(record, whole)
        site = record.site
        dtype = NAMES.get(pair.lo.dtype, str(pair.lo.dtype))
        if new_nonfinite:
            raised.append(self._nonfinite(call, pair, inputs, stats, found, whole, site, dtype, carried))
            return raised
        if flush and _underflows(stats, pair.lo.dtype) and (found is None or found.flushed_energy_share > limits.flush_share):
            evidence: Evidence = {
                "flushed": stats.flushed,
                "elements": stats.elements,
                "flushed_energy_share": stats.flushed_sq / stats.hi_sq,
                "true_max_abs": stats.hi_max_abs,
                "smallest_subnormal": _TINY.get(pair.lo.dtype, 0.0),
                "dtype": dtype,
            }
            raised.append(self.log.event(EventKind.FLUSH, site, carried, evidence, _constant_or(call, inputs)))
            return raised
        if not grew:
            return raised
        if (
            found is not None
            and found.rho_max is not None
            and found.rho_max > limits.rho
            and found.local_u * storage_u > limits.rho_local_u * u
        ):
            evidence = {
                "rho_max": found.rho_max,
                "rho_p99": found.rho_p99 or 0.0,
                "local_error_u": found.local_u,
                "reduction_length": whole.length if whole is not None else 0,
                "dtype": dtype,
            }
            raised.append(self.log.event(EventKind.RHO, site, carried, evidence))
            return raised
        if found is not None and stats.subnormal and found.local_u * storage_u > limits.gain_drift_u * u:
            # the op rounded correctly and still lost its digits: only the spacing of subnormals does that
            evidence = {
                "subnormal": stats.subnormal,
                "flushed": stats.flushed,
                "elements": stats.elements,
                "flushed_energy_share": stats.flushed_sq / stats.hi_sq,
                "local_error_u": found.local_u,
                "true_max_abs": stats.hi_max_abs,
                "smallest_normal": torch.finfo(pair.lo.dtype).smallest_normal,
                "dtype": dtype,
            }
            raised.append(self.log.event(EventKind.FLUSH, site, carried, evidence, "subnormal"))
            return raised
        record.gain_max = max(record.gain_max, drift / max(in_drift, u / 2))
        operand_rms = max((rms_of(p) for p in inputs), default=0.0)
        evidence = {
            "gain": drift / max(in_drift, u / 2),
            "drift_u_in": in_drift / u,
            "drift_u_out": drift / u,
            "drift": drift,
            "error_over_operands_u": math.sqrt(stats.diff_sq / stats.elements) / (u * operand_rms) if operand_rms else math.inf,
            "result_over_operands_u": math.sqrt(stats.hi_sq / stats.elements) / (u * operand_rms) if operand_rms else math.inf,
            "dtype": dtype,
        }
        raised.append(self.log.event(EventKind.GAIN, site, carried, evidence))
        return raised

    def _nonfinite(
        self,
        call: OpCall,
        pair: Pair,
        inputs: list[Pair],
        stats: Stats,
        found: OutputError | None,
        whole: LocalError | None,
        site: Site,
        dtype: str,
        carried: frozenset[int],
    ) -> int:
        """Overflow when the exact result of the rounded operands is finite, domain fault when it is not."""
        largest = _LARGEST.get(pair.lo.dtype, math.inf)
        evidence: Evidence = {
            "nonfinite": stats.introduced,
            "elements": stats.elements,
            "true_max_abs": stats.hi_max_abs,
            "format_max": largest,
            "dtype": dtype,
        }
        if found is not None:
            overflow = found.introduced > 0
            if overflow and whole is not None and whole.y is not None:
                evidence["true_max_abs"] = max(
                    stats.hi_max_abs, max((float(y.abs().max()) for y in tensors_of(whole.y) if y.numel()), default=0.0)
                )
        else:
            overflow = stats.hi_max_abs > largest * (1 - 2.0**-9)
        if not overflow:
            return self.log.event(EventKind.DOMAIN, site, carried, evidence, call.info.name.split(".")[-1].rstrip("_"))
        detail = _constant_or(call, inputs, cast="cast")
        if detail == "result" and call.info.family in SUMS:
            detail = "accumulator"
            evidence["reduction_length"] = whole.length if whole is not None else 0
            evidence["term_max_abs"] = max((measure(p.lo, p.hi).max_abs for p in inputs), default=0.0) if not call.info.mutated else 0.0
        return self.log.event(EventKind.OVERFLOW, site, carried, evidence, detail)

    def _lost(self, call: OpCall, pair: Pair, stats: Stats, carried: frozenset[int]) -> int | None:
        if pair.lo.dtype not in HALVES:
            pair.twin.pending = pending_write_back(call, pair, self.limits.lost_share)
            if stats.elements > 4096 or pair.lo.dtype is torch.float64:
                return None
        lost = lost_in_sum(call, pair, stats, self.limits.lost_share, self._site(call))
        if lost is None:
            return None
        return self._lost_event(call, pair, lost, carried, "accumulate" if call.info.in_place else "add")

    def _lost_event(self, call: OpCall, pair: Pair, lost: LostStats, carried: frozenset[int], detail: str) -> int:
        return self.log.event(EventKind.LOST, self._site(call), carried, lost_evidence(lost, pair.lo), detail)

    # -- helpers ------------------------------------------------------------------------------------------------------------------

    def _site(self, call: OpCall) -> Site:
        return self.log.site(call.module, call.info.name, call.phase, call.place)

    def _local(self, call: OpCall) -> LocalError | None:
        """Local error of the op on the operands as the program had them, measured once a call; None where it cannot be."""
        if call.local is UNMEASURED:
            call.local = self._measure_local(call)
        found: LocalError | None = call.local
        return found

    def _measure_local(self, call: OpCall) -> LocalError | None:
        info = call.info
        if info.family in (Family.RANDOM, Family.COLLECTIVE):
            return None
        args, kwargs = call.args, call.kwargs
        if info.mutated:
            if info.is_out or not call.before:
                return None
            args = tuple(call.before.get(id(a), a) if isinstance(a, Tensor) else a for a in args)
        try:
            return local_error(info.func, args, kwargs, call.result, info.rule, sample=_LOCAL_WORK)
        except (RuntimeError, NotImplementedError, TypeError, ValueError, IndexError):
            return None

    def _note(self, record: OpRecord, stats: Stats, drift_u: float, dtype: torch.dtype) -> None:
        if math.isfinite(drift_u):
            record.drift_u_sum += drift_u
            if drift_u > record.drift_u_max:
                record.drift_u_max = drift_u
        if stats.max_abs > record.max_abs:
            record.max_abs = stats.max_abs
        if stats.hi_max_abs > record.true_max_abs:
            record.true_max_abs = stats.hi_max_abs
        if stats.hi_sq > 0.0:
            rms = math.sqrt(stats.hi_sq / stats.elements)
            if rms < record.true_rms or not record.true_rms:
                record.true_rms = rms
        if stats.introduced:
            record.introduced_nonfinite += stats.introduced
        if stats.flushed and stats.hi_sq > 0:
            record.flushed_energy_share = max(record.flushed_energy_share, stats.flushed_sq / stats.hi_sq)

    def _note_local(self, record: OpRecord, found: LocalError) -> None:
        record.local_checks += 1
        if found.rho_max is not None:
            record.rho_max = max(record.rho_max, found.rho_max)
            record.rho_p99 = max(record.rho_p99, found.rho_p99 or 0.0)
        record.local_error_u = max(record.local_error_u, found.local_u)
        record.reduction_length = max(record.reduction_length, found.length)


def keeps_before(info: OpInfo, t: Tensor) -> bool:
    """Whether the rules need the value an in-place op overwrites: halves, leaves with gradients, and anything that costs nothing."""
    return t.dtype in HALVES or t.numel() <= 4096 or (t.requires_grad and t.is_leaf)


def _underflows(stats: Stats, dtype: torch.dtype) -> bool:
    """Whether the zeros stand for values that the format cannot hold, not for differences that only fp64 does not cancel."""
    return math.sqrt(stats.flushed_sq / stats.flushed) <= _TINY.get(dtype, 0.0)


def _constant_or(call: OpCall, inputs: list[Pair], cast: str = "cast") -> str:
    if call.info.family is Family.FACTORY or (not inputs and not call.args):
        return "constant"
    if call.info.name in ("aten._to_copy", "aten.copy_"):
        source = call.args[1] if call.info.in_place and len(call.args) > 1 else call.args[0]
        if isinstance(source, Tensor) and source.dtype not in UNIT_ROUNDOFF:
            return "integer"
        return cast
    return "result"


def state_of(twin: Twin) -> tuple[float, frozenset[int]]:
    """Drift in u and events of a twin, for ``audit.where``."""
    return (twin.drift / twin.u if twin.u else 0.0, twin.events)
