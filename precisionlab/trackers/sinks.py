"""Sinks: the places where a number leaves the arithmetic and does something.

Here lo and hi are compared, and the events that flowed in are read.

Values alone are never a fault: what counts is that the real value differs materially from its twin, by the measure proper to the sink.
"""

from __future__ import annotations

import gc
import math
from typing import Any

import torch

from precisionlab.records import EventKind, Evidence, Phase, SinkKind, Site, Verdict
from precisionlab.shadow.call import OpCall
from precisionlab.shadow.measure import measure
from precisionlab.shadow.memory import NO_EVENTS, UNIT_ROUNDOFF, ShadowMemory, Twin
from precisionlab.thresholds import Thresholds
from precisionlab.trackers.log import RunLog, join_events
from precisionlab.trackers.pairs import NAMES, relative

Tensor = torch.Tensor

_INDEXING = frozenset(
    f"aten.{name}"
    for name in [
        "index",
        "index_select",
        "gather",
        "take",
        "take_along_dim",
        "masked_select",
        "embedding",
        "index_put",
        "index_put_",
        "index_add",
        "index_add_",
        "index_copy",
        "index_copy_",
        "scatter",
        "scatter_",
        "scatter_add",
        "scatter_add_",
        "embedding_bag",
        "_embedding_bag",
        "nll_loss_forward",
        "nll_loss2d_forward",
        "one_hot",
        "index_fill_",
        "index_fill",
    ]
)
_INTERNAL_PHASES = frozenset((Phase.OPTIMIZER, Phase.SCALER, Phase.CLIP))
_EXACT_COMPARISONS = frozenset(("aten.eq", "aten.ne", "aten.equal", "aten.isclose", "aten.allclose"))


class Sinks:
    """Judges values where they are used, and writes ``SinkRecord``s into the log."""

    def __init__(self, log: RunLog, memory: ShadowMemory, thresholds: Thresholds) -> None:
        self.log = log
        self.memory = memory
        self.limits = thresholds

        self.reads: dict[Site, int] = {}
        """How often Python read a bool at each site."""

    def finish(self) -> None:
        """At the end: how many of the conditions at a site came out otherwise."""
        for sink in self.log.sinks.values():
            if sink.evidence.get("python") and sink.site is not None:
                sink.evidence["share"] = sink.count / max(self.reads.get(sink.site, 0), sink.count)

    # -- floating values ----------------------------------------------------------------------------------------------------------

    def value(self, kind: SinkKind, name: str, t: Tensor, site: Site | None) -> None:
        """A floating tensor arrives at an output, an exit or the loss."""
        twin = self.memory.get(t)
        if twin is None or twin.decision:
            return
        if not twin.events and not twin.nonfinite and twin.drift == 0.0 and kind is SinkKind.EXIT:
            return
        stats = measure(t, self.memory.window(t, twin))
        if not stats.elements:
            return
        drift = relative(stats.diff_sq, stats.hi_sq)
        u = twin.u or UNIT_ROUNDOFF[t.dtype]
        evidence: Evidence = {
            "drift": drift,
            "drift_u": drift / u,
            "elements": stats.elements,
            "nonfinite": stats.introduced,
            "requires_grad": bool(t.requires_grad),
            "dtype": NAMES.get(t.dtype, str(t.dtype)),
        }
        what = {SinkKind.LOSS: "the loss", SinkKind.ITEM: "a number read by .item()"}.get(kind, name)
        if stats.introduced:
            share = "" if stats.elements == 1 else f"{stats.introduced} of {stats.elements} values of "
            self.log.sink(
                kind, name, site, twin.events, Verdict.BROKEN, f"{share}{what} {'is' if not share else 'are'} Inf or NaN", evidence
            )
            return
        if stats.nonfinite and kind is not SinkKind.EXIT and bool(torch.isnan(t).any()):
            evidence["nonfinite"] = stats.nonfinite
            reason = f"{what} holds NaN in fp64 as well"
            self.log.sink(kind, name, site, NO_EVENTS, Verdict.RISKY, reason, evidence, needs_event=False)
            return
        share_limit = {SinkKind.EXIT: self.limits.exit_drift, SinkKind.ITEM: self.limits.item_drift}.get(kind, self.limits.output_drift)
        if drift > share_limit and drift > self.limits.output_drift_u * u:
            text = (
                f"{what} is off by {drift:.2g} of its size"
                if drift < 10
                else f"{what} is {drift:.3g} times its size away from its fp64 value"
            )
            self.log.sink(kind, name, site, twin.events, Verdict.BROKEN, text, evidence)
        elif kind is SinkKind.ITEM and drift > self.limits.norm_error:
            wrong = frozenset(e for e in twin.events if self.log.events[e].kind is EventKind.RHO and is_norm(self.log.events[e].site.op))
            if wrong:
                self.log.sink(kind, name, site, wrong, Verdict.RISKY, f"a norm that the program reads is wrong by {drift:.2%}", evidence)

    def output(self, path: str, output: Any, site: Site) -> None:
        """Everything an outermost module returned."""
        for name, t in _named(output, path):
            if t.dtype in UNIT_ROUNDOFF:
                self.value(SinkKind.OUTPUT, f"the output of {name}", t, site)
            else:
                self.decided(f"the output of {name}", t, site)

    def at_exit(self, held: list[Tensor]) -> None:
        """Every tensor that user code still holds, but for parameters and their gradients, which have sinks of their own."""
        with_sink = {id(t.grad) for t in held if t.is_leaf and t.requires_grad and t.grad is not None}
        for t in held:
            if id(t) in with_sink or isinstance(t, torch.nn.Parameter):
                continue
            twin = self.memory.get(t)
            if twin is None:
                continue
            name = f"a {NAMES.get(t.dtype, str(t.dtype).removeprefix('torch.'))} tensor {tuple(t.shape)} held at the end"
            if twin.decision:
                self.decided(name, t, twin.site, kind=SinkKind.EXIT)
            elif t.dtype in UNIT_ROUNDOFF:
                self.value(SinkKind.EXIT, name, t, twin.site)

    # -- decisions ----------------------------------------------------------------------------------------------------------------

    def decision(self, call: OpCall, lo: Tensor, hi: Tensor) -> None:
        """An op returned integers or bools: compare with what the twin would have decided and keep the difference with the tensor."""
        carried = join_events([p.twin.events for p in (*call.inputs, *call.decisions)] or [NO_EVENTS])
        if lo.shape != hi.shape:
            flips, total = max(lo.numel(), hi.numel()), max(lo.numel(), hi.numel())
        else:
            a, b = lo, hi
            if call.info.name == "aten.topk" and lo.dim():
                a, b = lo.sort(-1).values, hi.sort(-1).values
            flips, total = int((a != b).sum()), lo.numel()
        if not flips:
            return
        if call.info.name in _EXACT_COMPARISONS and not _strong({self.log.events[e].kind for e in carried}):
            return  # equality of rounded numbers is asked of the rounded numbers
        site = self.log.site(call.module, call.info.name, call.phase, call.place)
        events = set(carried)
        if call.inputs:
            ties = _ties(call, lo, hi)
            dtype = NAMES.get(call.inputs[0].lo.dtype, "")
            evidence: Evidence = {"flips": flips, "ties": ties, "elements": total, "dtype": dtype}
            if call.info.name == "aten._to_copy":
                events.add(
                    self.log.event(EventKind.CAST, site, carried, {"inexact": flips, "elements": total, "dtype": dtype}, "float to integer")
                )
            else:
                events.add(self.log.event(EventKind.TIE if 2 * ties > flips else EventKind.FLIP, site, carried, evidence))
        if lo.layout == torch.strided:
            self.memory.decisions += 1
            twin = self.memory.bind(lo, hi.clone() if hi.shape == lo.shape else lo.clone())
            twin.decision, twin.share, twin.site, twin.events = True, flips / max(total, 1), site, frozenset(events)

    def used(self, call: OpCall) -> None:
        """An op consumed decisions that the twin takes otherwise; it is a sink where they select data."""
        if call.info.name in _INDEXING:
            site = self.log.site(call.module, call.info.name, call.phase, call.place)
            for p in call.decisions:
                self._decided(SinkKind.DECISION, f"an index of {call.info.name}", p.twin, p.lo.numel(), site, selects=True)

    def decided(self, name: str, t: Tensor, site: Site | None, *, kind: SinkKind = SinkKind.OUTPUT) -> None:
        """Integers or bools that leave the program."""
        twin = self.memory.get(t)
        if twin is not None and twin.decision:
            self._decided(kind, name, twin, t.numel(), site, selects=False)

    def read(self, call: OpCall, value: Any) -> None:
        """``.item()``, ``bool()``, ``if tensor:``."""
        if call.phase in _INTERNAL_PHASES:
            return
        site = self.log.site(call.module, call.info.name, call.phase, call.place)
        if isinstance(value, bool):
            self.reads[site] = self.reads.get(site, 0) + 1
        for p in call.decisions:
            if p.lo.numel() == 1 and bool((p.lo != p.hi).any()) and _strong({self.log.events[e].kind for e in p.twin.events}):
                evidence: Evidence = {"share": 1.0, "flips": 1, "elements": 1, "python": True, "value": float(value)}
                self.log.sink(
                    SinkKind.DECISION,
                    "a Python condition",
                    site,
                    p.twin.events,
                    Verdict.BROKEN,
                    f"Python reads {value}, fp64 decides {p.hi.item()}",
                    evidence,
                )
        for p in call.inputs:
            self.value(SinkKind.ITEM, "item", p.lo, site)

    def _decided(self, kind: SinkKind, name: str, twin: Twin, elements: int, site: Site | None, *, selects: bool) -> None:
        kinds = {self.log.events[e].kind for e in twin.events}
        share = twin.share
        evidence: Evidence = {"share": share, "flips": round(share * elements), "elements": elements}
        reason = f"{share:.2g} of {name} differ from what fp64 decides" if share < 1 else f"{name} differs from what fp64 decides"
        weak = kinds <= {EventKind.TIE, EventKind.FLIP, EventKind.GAIN, EventKind.LOST} and EventKind.TIE in kinds and not _strong(kinds)
        if weak:
            if share > self.limits.tie_share:
                self.log.sink(kind, name, site, twin.events, Verdict.RISKY if selects else Verdict.BROKEN, reason, evidence)
        elif share > self.limits.decision_share and _strong(kinds):
            self.log.sink(kind, name, site, twin.events, Verdict.BROKEN, reason, evidence)
        elif share > self.limits.decision_share and not selects:
            self.log.sink(kind, name, site, twin.events, Verdict.RISKY, reason, evidence)


def is_norm(op: str) -> bool:
    """Whether an op of this name is a norm."""
    return op.rpartition(".")[2].removeprefix("_foreach_") in ("norm", "linalg_vector_norm", "_vector_norm", "powsum")


def live_tensors() -> list[Tensor]:
    """Every tensor that a Python object refers to. ``type`` instead of ``isinstance``: the latter wakes lazy objects of other libraries."""
    return [o for o in gc.get_objects() if issubclass(type(o), Tensor)]


def _strong(kinds: set[EventKind]) -> bool:
    return bool(kinds - {EventKind.TIE, EventKind.FLIP})


def _ties(call: OpCall, lo: Tensor, hi: Tensor) -> int:
    """How many of the differing selections are ties that only the low precision has."""
    if call.info.name not in ("aten.argmax", "aten.argmin", "aten.topk", "aten.max", "aten.min") or lo.shape != hi.shape:
        return 0
    source = call.inputs[0].lo
    dim = call.args[1] if len(call.args) > 1 and call.info.name != "aten.topk" else call.kwargs.get("dim")
    if call.info.name == "aten.topk":
        dim = call.args[2] if len(call.args) > 2 else -1
    if not isinstance(dim, int):
        flat = source.reshape(-1)
        mine, other = flat[lo.reshape(-1)], flat[hi.reshape(-1)]
    else:
        keep = lo.dim() == source.dim()
        mine = source.gather(dim, lo if keep else lo.unsqueeze(dim))
        other = source.gather(dim, hi if keep else hi.unsqueeze(dim))
        if call.info.name == "aten.topk":
            mine, other = mine.amin(dim, keepdim=True).expand_as(other), other
    different = (lo != hi).reshape(-1)
    return int(((mine == other).reshape(-1)[: different.numel()] & different).sum())


def _named(output: Any, path: str) -> list[tuple[str, Tensor]]:
    if isinstance(output, Tensor):
        return [(path, output)]
    if isinstance(output, dict):
        return [pair for key, value in output.items() for pair in _named(value, f"{path}[{key!r}]")]
    if isinstance(output, (list, tuple)):
        return [pair for i, value in enumerate(output) for pair in _named(value, f"{path}[{i}]")]
    if hasattr(output, "__dataclass_fields__") or hasattr(output, "to_tuple"):
        return [pair for key, value in vars(output).items() for pair in _named(value, f"{path}.{key}")]
    return []


def finite(x: float) -> float:
    """``x``, or 0 where it is not finite."""
    return x if math.isfinite(x) else 0.0
