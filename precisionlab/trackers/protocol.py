"""The protocol of the training loop: scale, backward, unscale, clip, step, update, zero, schedule.

Here lo and hi agree and the program is still wrong, so nothing numeric shows it. The state lives with the gradients (marks on their
twins); each finding is an event at the op or call that broke the protocol and a sink at the step that used its result.
"""

from __future__ import annotations

import math
import weakref
from typing import Any

import torch

from precisionlab.records import EventKind, Evidence, Phase, SinkKind, Site, Verdict
from precisionlab.shadow.memory import NO_EVENTS, UNIT_ROUNDOFF, ShadowMemory, Twin
from precisionlab.shadow.mode import OpCall, Pair
from precisionlab.shadow.sites import Locator
from precisionlab.thresholds import Thresholds
from precisionlab.trackers.copies import Copies
from precisionlab.trackers.log import RunLog
from precisionlab.trackers.parameters import Parameters
from precisionlab.trackers.patches import Patches
from precisionlab.trackers.sinks import Sinks
from precisionlab.trackers.units import power_of, stem

Tensor = torch.Tensor

_FACTORS = frozenset(("mul", "div"))
_CLEANERS = frozenset(("nan_to_num", "masked_fill", "where", "clamp", "index_put", "masked_scatter"))
_SCALED_DOMAIN = 1e-2
"""A clipped norm below this after unscaling was compared with the norm of scaled gradients: no threshold is meant to be so small."""
_COLLAPSED = 1.0
"""A loss scale below 1 shrinks the loss: growth and back-off have lost their purpose (torch's scaler starts at 65536)."""


class Protocol:
    """Follows scaler, clipping, accumulation, schedule and casts of one audit."""

    def __init__(
        self, log: RunLog, memory: ShadowMemory, locator: Locator, parameters: Parameters, sinks: Sinks, thresholds: Thresholds
    ) -> None:
        self.log = log
        self.memory = memory
        self.locator = locator
        self.parameters = parameters
        self.sinks = sinks
        self.backwards = 0
        self.limits = thresholds
        self.scale = 1.0
        self.scaled = False
        """A loss scale was seen: powers are tracked."""
        self.timeline: list[dict[str, Any]] = []
        self.skipped = 0
        self.steps = 0
        self._skips_in_a_row = 0
        self._grads: dict[int, str] = {}
        self._params: weakref.WeakSet[Any] | None = None
        self._known: dict[int, weakref.ref[Tensor]] = {}
        self._schedulers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._spent: weakref.WeakKeyDictionary[Any, float] = weakref.WeakKeyDictionary()
        self.copies = Copies(self, memory, parameters, thresholds)
        self._with_scaler = False
        self._used_at: dict[int, int] = {}
        self._stale_seen = False
        self._patches = Patches()

    # -- wrapping -----------------------------------------------------------------------------------------------------------------

    def install(self) -> None:
        """Wrap backward, the scaler, the scheduler and ``torch.tensor``."""
        from torch.amp.grad_scaler import GradScaler
        from torch.optim.lr_scheduler import LRScheduler

        wrap = self._patches.wrap
        wrap(torch.autograd, "backward", self._backward)
        wrap(torch, "tensor", self._constant)
        wrap(GradScaler, "scale", self._scale)
        wrap(GradScaler, "unscale_", self._unscale)
        wrap(GradScaler, "step", self._scaler_step)
        wrap(GradScaler, "update", self._update)
        wrap(LRScheduler, "step", self._schedule)

    def remove(self) -> None:
        """Put everything back."""
        self._patches.restore()

    # -- calls --------------------------------------------------------------------------------------------------------------------

    def _constant(self, original: Any, data: Any, *args: Any, **kwargs: Any) -> Any:
        """``torch.tensor(0.999, dtype=half)``: the twin holds the Python number."""
        out = original(data, *args, **kwargs)
        if (
            isinstance(data, (int, float))
            and not isinstance(data, bool)
            and isinstance(out, Tensor)
            and out.dtype in UNIT_ROUNDOFF
            and out.numel() == 1
        ):
            with torch.no_grad(), torch._C._DisableTorchDispatch():
                exact, stored = float(data), float(out.detach())
                if exact != stored and math.isfinite(exact) and not out.is_complex():
                    twin = self.memory.bind(out, torch.full(out.shape, exact, dtype=torch.float64))
                    self._rounded_constant(out, twin, exact, stored)
        return out

    def _rounded_constant(self, out: Tensor, twin: Twin, exact: float, stored: float) -> None:
        u = twin.u
        twin.drift = abs(stored - exact) / abs(exact) if exact else 0.0
        if not math.isfinite(stored):
            detail, twin.nonfinite = "rounds to infinity", True
        elif stored == 0.0:
            detail = "rounds to 0"
        elif stored == 1.0 and abs(exact - 1.0) > 0:
            detail = "rounds to 1"
        else:
            return
        module, phase, place, _ = self.locator.locate()
        site = self.log.site(module, "torch.tensor", phase, place)
        evidence: Evidence = {"value": exact, "stored": stored, "dtype": str(out.dtype).removeprefix("torch."), "u": u}
        twin.events = frozenset((self.log.event(EventKind.CONSTANT, site, NO_EVENTS, evidence, detail),))
        twin.site = site

    def _backward(self, original: Any, tensors: Any, *args: Any, **kwargs: Any) -> Any:
        self.backwards += 1
        roots = [tensors] if isinstance(tensors, Tensor) else list(tensors)
        _, _, place, _ = self.locator.locate()
        for root in roots:
            if isinstance(root, Tensor):
                with torch.no_grad(), torch._C._DisableTorchDispatch():
                    self.sinks.value(SinkKind.LOSS, "the loss", root, self.log.site("", "backward", Phase.FORWARD, place))
            twin = self.memory.get(root) if isinstance(root, Tensor) else None
            if twin is not None and twin.marks and "times" in twin.marks and twin.power == 0.0:
                # a Python number multiplied onto the loss right before backward is a static loss scale
                self.scale, self.scaled, twin.power = twin.marks["times"], True, 1.0
        out = original(tensors, *args, **kwargs)
        self._note_gradients()
        return out

    def _scale(self, original: Any, scaler: Any, outputs: Any, *args: Any, **kwargs: Any) -> Any:
        if scaler.is_enabled():
            self._with_scaler = True
            self._scaled_already(outputs)
            self._tag_scale(scaler, outputs)
        result = original(scaler, outputs, *args, **kwargs)
        return result

    def _tag_scale(self, scaler: Any, outputs: Any) -> None:
        """The scale tensor is S^1: the loss and, through backward, every gradient inherit it."""
        first = next(iter(_tensors(outputs)), None)
        if scaler._scale is None and first is not None:
            scaler._lazy_init_scale_growth_tracker(first.device)  # what scale() is about to do itself
        if scaler._scale is not None:
            self.scaled, self.scale = True, float(scaler.get_scale())
            with torch.no_grad(), torch._C._DisableTorchDispatch():
                self.memory.state(scaler._scale).power = 1.0

    def _scaled_already(self, outputs: Any) -> None:
        """A loss that already carries the scale: gradients of a scaled output went into it undivided."""
        for t in _tensors(outputs):
            twin = self.memory.get(t)
            if twin is not None and twin.power != 0.0 and self.scale > 1.5:
                site = twin.site or self._here("GradScaler.scale", "", Phase.SCALER)
                evidence: Evidence = {"scale": self.scale, "power": twin.power}
                reason = f"part of the loss is already multiplied by the scale {self.scale:g}"
                self.convict("gradient-penalty-on-scaled-gradients", site, evidence, "the loss", reason)

    def _unscale(self, original: Any, scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        if scaler.is_enabled():
            self._halves_under_scaler(optimizer)
        return original(scaler, optimizer, *args, **kwargs)

    def _halves_under_scaler(self, optimizer: Any) -> None:
        """Gradients stored in fp16 cannot be unscaled without losing what the scale saved: torch refuses. Judged before it raises."""
        halves = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None and p.grad.dtype is torch.float16]
        if halves:
            name = self.parameters.name_of(halves[0], "a parameter")
            site = self._here("GradScaler.unscale_", name.rpartition(".")[0], Phase.SCALER)
            self.convict(
                "fp16-parameters-under-scaler",
                site,
                {"parameters": len(halves), "parameter": name},
                name,
                f"unscaling {len(halves)} fp16 gradients is refused and no step is taken",
            )

    def _scaler_step(self, original: Any, scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        if not scaler.is_enabled():
            return original(scaler, optimizer, *args, **kwargs)
        self._halves_under_scaler(optimizer)
        before = self.steps
        out = original(scaler, optimizer, *args, **kwargs)
        if self.steps == before:
            self._skipped_step(optimizer)
        else:
            self._skips_in_a_row = 0
        return out

    def _skipped_step(self, optimizer: Any) -> None:
        self.skipped += 1
        self._skips_in_a_row += 1
        for group in optimizer.param_groups:
            for p in group["params"]:
                twin = self.memory.get(p.grad) if p.grad is not None and p.grad.layout == torch.strided else None
                if twin is None:
                    continue
                marks = _marks(twin)
                if "stale" in marks:
                    self._stale_seen = True
                    name = self.parameters.name_of(p, "a parameter")
                    self.convict(
                        "stale-nonfinite-gradient",
                        marks["stale"],
                        {"parameter": name, "skips": self._skips_in_a_row},
                        name,
                        "the step is skipped again",
                    )
                marks["skipped"] = True

    def _update(self, original: Any, scaler: Any, *args: Any, **kwargs: Any) -> Any:
        if not scaler.is_enabled():
            return original(scaler, *args, **kwargs)
        before = float(scaler.get_scale())
        out = original(scaler, *args, **kwargs)
        after = float(scaler.get_scale())
        self.scale = after
        self.timeline.append({"step": self.log.step, "scale": before, "skipped": self._skips_in_a_row > 0, "next_scale": after})
        if after < _COLLAPSED and after < before and self._skips_in_a_row >= 2 and not self._stale_seen:
            site = self._here("GradScaler.update", "", Phase.SCALER)
            self.convict(
                "scale-collapse",
                site,
                {"scale": after, "skips": self._skips_in_a_row},
                "the loss scale",
                f"the loss scale falls to {after:.3g} and every step is skipped",
            )
        return out

    def _schedule(self, original: Any, scheduler: Any, *args: Any, **kwargs: Any) -> Any:
        optimizer = scheduler.optimizer
        before = [float(g["lr"]) for g in optimizer.param_groups]
        out = original(scheduler, *args, **kwargs)
        last = self._schedulers.get(scheduler)
        self._schedulers[scheduler] = self.steps
        if last is not None and last == self.steps:
            after = [float(g["lr"]) for g in optimizer.param_groups]
            base = max((abs(float(b)) for b in scheduler.base_lrs), default=0.0)
            spent = self._spent.get(scheduler, 0.0) + max((abs(a - b) for a, b in zip(after, before, strict=True)), default=0.0)
            self._spent[scheduler] = spent
            if base > 0 and spent > self.limits.schedule_share * base:
                site = self._here("lr_scheduler.step", "", Phase.OPTIMIZER)
                self.convict(
                    "scheduler-steps-on-skips",
                    site,
                    {"spent_share": spent / base},
                    "the learning rate",
                    f"{spent / base:.0%} of the schedule was used up by iterations that took no step",
                )
        return out

    # -- ops ----------------------------------------------------------------------------------------------------------------------

    def op(self, call: OpCall) -> None:
        """Update powers and marks after one op."""
        info = call.info
        name = stem(info.name)
        if name == "mul" and not self.scaled and call.phase is Phase.FORWARD and call.outputs[0].lo.numel() == 1:
            number = call.args[1] if len(call.args) > 1 else None
            if isinstance(number, (int, float)) and number >= 8 and call.outputs[0].lo.requires_grad is False:
                _marks(call.outputs[0].twin)["times"] = float(number)
        if self.scaled:
            self._powers(call)
        self.copies.op(call, name)
        if self._grads and (info.in_place or name in _CLEANERS):
            self._on_gradients(call, name)

    def _powers(self, call: OpCall) -> None:
        outputs = call.outputs
        if call.info.name == "aten._amp_foreach_non_finite_check_and_unscale_":
            self._unscaled(call)
        if call.info.listed and len(outputs) > 1:
            for pair, entries in grouped(call):
                pair.twin.power = power_of(call, pair, entries, self.scale)
            return
        for pair in outputs:
            pair.twin.power = power_of(call, pair, call.inputs, self.scale)

    def _unscaled(self, call: OpCall) -> None:
        """Unscaling must divide by the scale the loss was multiplied with, not by one that ``update`` has changed since."""
        inverse = float(call.args[2])
        if inverse == 1.0:
            return
        for pair in call.outputs:
            marks = pair.twin.marks or {}
            carried = marks.get("scale")
            if carried is not None and pair.twin.power >= 1.0 and abs(carried * inverse - 1.0) > 1e-3:
                name = self._grads.get(pair.lo.untyped_storage()._cdata, "a parameter")
                site = self.log.site(call.module, "GradScaler.update", call.phase, call.place)
                reason = f"gradients that carry {carried:g} are divided by {1.0 / inverse:g}"
                self.convict("update-between-optimizers", site, {"scale": carried, "parameter": name}, name, reason)
                return

    def _on_gradients(self, call: OpCall, name: str) -> None:
        for pair in call.outputs:
            key = pair.lo.untyped_storage()._cdata
            parameter = self._grads.get(key)
            if parameter is None:
                continue
            twin = pair.twin
            marks = _marks(twin)
            if call.backward and name == "add":
                self._accumulated(call, pair, marks, parameter)
            elif name in _FACTORS and call.info.in_place:
                factor = _factor(call, pair)
                if factor is None:
                    continue
                factor = 1.0 / factor if name == "div" and factor else factor
                site = self.log.site(call.module, _place_name(call), call.phase, call.place)
                held = marks.get("power", 0.0)
                marks["power"] = twin.power
                if self.scaled and abs(factor * self.scale - 1.0) < 1e-3:
                    marks["unit_site"] = site
                elif abs(factor - 1.0) > 0.05 or factor < 0:
                    marks["rescaled"] = (factor, site)
                    if self.scaled and held >= 1.0:
                        marks["clip_site"] = site
                        if twin.power == held and abs(factor) < 0.5:
                            marks["clipped_scaled"] = site  # a Python number carries no unit: judged by the norm at the step
                if factor < 0 and factor != -1.0:
                    marks["reversed"] = (factor, site)
            elif name in ("clamp", "clamp_max", "clamp_min") and self.scaled and twin.power >= 1.0 and self._bites(call, pair):
                marks["clip_site"] = marks["clipped_scaled"] = self.log.site(call.module, _place_name(call), call.phase, call.place)
            elif name in _CLEANERS and twin.nonfinite is False and "skipped" not in marks and self._was_nonfinite(call):
                marks["replaced"] = self.log.site(call.module, call.info.name, call.phase, call.place)

    def _bites(self, call: OpCall, pair: Pair) -> bool:
        """Whether a clamp cut many scaled values off at a bound that is tiny beside the scale."""
        given = [*call.args[1:3], call.kwargs.get("min"), call.kwargs.get("max")]
        bounds = [abs(float(b)) for b in given if isinstance(b, (int, float))]
        if not bounds or max(bounds) / self.scale >= _SCALED_DOMAIN:
            return False
        return float((pair.lo.abs() >= max(bounds) * (1 - 2.0**-7)).double().mean()) > 0.05

    def _was_nonfinite(self, call: OpCall) -> bool:
        return any(bool((~torch.isfinite(t)).any()) for t in call.before.values() if t.is_floating_point())

    def _accumulated(self, call: OpCall, pair: Pair, marks: dict[str, Any], parameter: str) -> None:
        site = self.log.site(call.module, call.info.name, call.phase, call.place)
        if marks.get("skipped"):
            marks["stale"] = site
        rescaled = marks.get("rescaled")
        if rescaled is not None and abs(rescaled[0]) < 0.9:
            marks["inside"] = rescaled
        if self.scaled and len(call.inputs) == 2 and "inside" not in marks:
            held, added = marks.get("power", 0.0), call.inputs[1].twin.power
            if self.scale > 1.5 and held != added and (marks.get("unit_site") is not None or self._with_scaler):
                marks["mixed"] = marks.get("unit_site", site)

    # -- gradients at the step ----------------------------------------------------------------------------------------------------

    def before_step(self, optimizer: Any, params: list[tuple[str, Tensor]]) -> None:
        """The optimizer is about to use its gradients: they must be unscaled, whole and of one piece."""
        self.steps += 1
        total = 0.0
        used: list[tuple[str, Twin]] = []
        negative: tuple[str, Twin] | None = None
        clipped: tuple[str, Twin] | None = None
        self._stepped_twice(optimizer, params)
        positive: tuple[str, Twin] | None = None
        extra = -1.0 if getattr(optimizer, "grad_scale", None) is not None else 0.0
        for name, p in params:
            grad = p.grad
            twin = self.memory.get(grad) if grad is not None and grad.layout == torch.strided else None
            if grad is None or twin is None:
                continue
            used.append((name, twin))
            if twin.marks and "clipped_scaled" in twin.marks and twin.power + extra == 0.0 and clipped is None:
                clipped = (name, twin)
            if self.scaled and self.scale > 1.5:
                power = twin.power + extra
                if power < 0 and negative is None:
                    negative = (name, twin)
                if power > 0 and positive is None:
                    positive = (name, twin)
                total += float(grad.detach().double().square().sum())
        norm = math.sqrt(total)
        negative = negative or clipped
        if negative is not None and ("clip_site" not in _marks(negative[1]) or norm < _SCALED_DOMAIN):
            self._divided_twice(negative, norm)
        if positive is not None and self._with_scaler:
            name, twin = positive
            site = twin.site or self._here("optimizer.step", "", Phase.OPTIMIZER)
            self.convict(
                "step-on-scaled-gradients",
                site,
                {"scale": self.scale, "parameter": name},
                name,
                f"the optimizer uses gradients that are still {self.scale:g} times too large",
            )

        for name, twin in used:
            self._marked(name, twin)

    def _stepped_twice(self, optimizer: Any, params: list[tuple[str, Tensor]]) -> None:
        """Two steps of one optimizer on the same gradients: ``optimizer.step()`` after ``scaler.step(optimizer)``."""
        last = self._used_at.get(id(optimizer))
        self._used_at[id(optimizer)] = self.backwards
        if self._with_scaler and last == self.backwards and self.backwards and any(p.grad is not None for _, p in params):
            site = self._here("optimizer.step", "", Phase.OPTIMIZER)
            reason = "the same gradients are applied twice"
            self.convict("plain-step-after-scaler-step", site, {"scale": self.scale}, "the weights", reason)

    def _divided_twice(self, found: tuple[str, Twin], norm: float) -> None:
        name, twin = found
        marks = _marks(twin)
        clip = marks.get("clip_site")
        site = clip or marks.get("unit_site") or twin.site or self._here("optimizer.step", "", Phase.OPTIMIZER)
        fault = "clip-before-unscale" if clip is not None else "unscale-twice"
        self.convict(
            fault,
            site,
            {"scale": self.scale, "norm": norm, "parameter": name},
            name,
            f"every step is about {self.scale:g} times too small (gradient norm {norm:.2g})",
        )

    def _marked(self, name: str, twin: Twin) -> None:
        marks = twin.marks
        if not marks:
            return
        if "inside" in marks:
            factor, site = marks["inside"]
            self.convict(
                "clip-inside-accumulation",
                site,
                {"factor": factor, "parameter": name},
                name,
                f"earlier micro-batches of {name} count {abs(factor):.2g} times as much as the last",
            )
        if "reversed" in marks:
            factor, site = marks["reversed"]
            self.convict(
                "reversed-gradient",
                site,
                {"factor": factor, "parameter": name},
                name,
                f"the gradient of {name} is multiplied by {factor:.4g}: the step goes uphill",
            )
        if "mixed" in marks:
            self.convict(
                "unscale-inside-accumulation",
                marks["mixed"],
                {"scale": self.scale, "parameter": name},
                name,
                f"unscaled and scaled gradients are added up in {name}",
            )
        if "replaced" in marks:
            self.convict(
                "nonfinite-gradient-replaced",
                marks["replaced"],
                {"parameter": name},
                name,
                f"the overflow of {name} is hidden and a wrong step is taken",
            )
        for key in ("inside", "reversed", "mixed", "replaced", "rescaled", "skipped", "stale", "clip_site", "unit_site", "clipped_scaled"):
            marks.pop(key, None)

    def _note_gradients(self) -> None:
        """After backward: which storages are gradients now, and with which power."""
        grads: dict[int, str] = {}
        weights: dict[int, str] = {}
        for ref, name in list(self.parameters.names()):
            p = ref()
            grad = p.grad if p is not None else None
            if grad is None or grad.layout != torch.strided:
                continue
            grads[grad.untyped_storage()._cdata] = name
            if p is not None and UNIT_ROUNDOFF.get(p.dtype, 0.0) > 2.0**-24:
                weights[p.untyped_storage()._cdata] = name
            twin = self.memory.get(grad)
            if twin is not None and self.scaled:
                marks = _marks(twin)
                marks["power"] = twin.power
                if self._with_scaler:
                    marks["scale"] = self.scale
        self._grads = grads
        self.copies.weights = weights

    # -- helpers ------------------------------------------------------------------------------------------------------------------

    def _here(self, op: str, module: str, phase: Phase) -> Site:
        _, _, place, _ = self.locator.locate()
        return self.log.site(module, op, phase, place)

    def convict(self, fault: str, site: Site, evidence: Evidence, name: str, reason: str) -> None:
        event = self.log.event(EventKind.PROTOCOL, site, NO_EVENTS, evidence, fault)
        self.log.sink(SinkKind.GRADIENT, name, site, frozenset((event,)), Verdict.BROKEN, reason, evidence, needs_event=False)


def grouped(call: OpCall) -> list[tuple[Pair, list[Pair]]]:
    """For list ops: each result with the operands that belong to it."""
    lists = [a for a in (*call.args, *call.kwargs.values()) if isinstance(a, (list, tuple)) and a and isinstance(a[0], Tensor)]
    single = [p for p in call.inputs if any(p.lo is a for a in call.args)]
    by_id = {id(p.lo): p for p in call.inputs}
    out = []
    for i, pair in enumerate(call.outputs):
        entries = [by_id[id(entry[i])] for entry in lists if i < len(entry) and id(entry[i]) in by_id]
        out.append((pair, entries + single))
    return out


def _factor(call: OpCall, pair: Pair) -> float | None:
    other: Any = call.args[1] if len(call.args) > 1 else None
    if isinstance(other, (list, tuple)):
        index = next((i for i, p in enumerate(call.outputs) if p is pair), 0)
        other = other[index] if index < len(other) else None
    if isinstance(other, bool) or not isinstance(other, (int, float, Tensor)):
        return None
    if isinstance(other, Tensor):
        return float(other) if other.numel() == 1 and not other.is_complex() else None
    return float(other)


def _place_name(call: OpCall) -> str:
    return "clip_grad_norm_" if call.phase is Phase.CLIP else call.info.name


def _marks(twin: Twin) -> dict[str, Any]:
    if twin.marks is None:
        twin.marks = {}
    return twin.marks


def _tensors(x: Any) -> list[Tensor]:
    if isinstance(x, Tensor):
        return [x]
    return [t for e in x for t in _tensors(e)] if isinstance(x, (list, tuple)) else []
