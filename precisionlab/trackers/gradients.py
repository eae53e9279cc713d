"""What happens to gradients between backward and the optimizer: their unit, rescaling, accumulation, repair of non-finite values.

Notes travel on the twins of the gradients (``marks``): ``power`` after the last change, ``scale`` at backward, ``unit_site`` where S was
divided out, ``clip_site`` where they were rescaled while scaled, ``rescaled`` (factor, site), ``inside`` when something was added after
that, ``mixed``, ``reversed``, ``replaced``, and ``skipped`` / ``stale`` for non-finite values that outlive their iteration.
"""

from __future__ import annotations

import math
import weakref
from typing import Any

import torch

from precisionlab.records import Evidence, Phase, Site
from precisionlab.shadow.call import OpCall, Pair
from precisionlab.shadow.memory import UNIT_ROUNDOFF, Twin
from precisionlab.trackers.court import Court, marks_of
from precisionlab.trackers.pairs import grouped
from precisionlab.trackers.reuse import Reuse
from precisionlab.trackers.units import power_of

Tensor = torch.Tensor

_FACTORS = frozenset(("mul", "div"))
_CLEANERS = frozenset(("nan_to_num", "masked_fill", "where", "clamp", "index_put", "masked_scatter"))
_SMALLEST_SCALE = 8.0
"""Smallest factor of a loss that is taken for a loss scale (Micikevicius et al. 2018 use 8 to 32768)."""
_SCALED_DOMAIN = 1e-2
"""A clipped norm below this after unscaling was compared with the norm of scaled gradients: no threshold is meant to be so small."""
_USED_UP = ("inside", "reversed", "mixed", "replaced", "rescaled", "skipped", "stale", "clip_site", "unit_site", "clipped_scaled")
"""Marks that end with the step that used the gradient."""


class GradientProtocol:
    """Looks at each op on a gradient, and at each step that uses gradients."""

    def __init__(self, court: Court) -> None:
        self.court = court
        self.weights: dict[int, str] = {}
        """Storage of each half parameter that got a gradient -> its name."""
        self.storages: dict[int, str] = {}
        """Storage of each gradient -> the name of its parameter."""
        self.leaves: list[tuple[Tensor, str]] = []
        """Parameters that the last backward pass left with a gradient, and their names."""
        self._used_at: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._mixed_at: Site | None = None
        """Where values with different powers of S were last added up."""
        self._unit_nodes: set[int] = set()
        """Nodes of the graph that multiply or divide by S: so do their derivatives."""
        self._reuse = Reuse(court)
        self._replaced = False
        """Some value of this iteration was made of a gradient whose non-finite values were replaced."""
        self._odd: tuple[float, Site, str] | None = None
        """A number by which scaled gradients were divided, when it was not the scale in force."""
        self._scale_before = 1.0
        self._trusted = False
        """Every gradient carried the scale after the last backward pass: no op in between lost sight of it."""

    def op(self, call: OpCall) -> None:
        """Update powers and marks after one op."""
        info = call.info
        name = info.stem
        if name == "mul" and not self.court.with_scaler and call.phase is Phase.FORWARD and call.outputs[0].lo.numel() == 1:
            self._times(call)
        if self.court.scaled:
            self._powers(call)
        if self.storages and (info.in_place or name in _CLEANERS):
            self._on_gradients(call, name)
        if self.storages and not info.in_place and (self._replaced or name in _CLEANERS) and not call.backward:
            self._made_of_replaced(call, name)

    def _times(self, call: OpCall) -> None:
        """A scalar times a number that may be a loss scale: it is one if a backward pass starts from the product.

        Numbers from 8 on, and what follows a known scale by back-off or growth. Tensors on the CPU only (reading one waits for its
        device), and only powers of two: other constants are more likely weights.
        """
        for i, other in enumerate(call.args[:2]):
            tensor = isinstance(other, Tensor)
            if tensor and (other.requires_grad or other.numel() != 1 or not other.is_cpu):
                continue
            if isinstance(other, bool) or not (tensor or isinstance(other, (int, float))):
                continue
            number = float(other)
            follows = self.court.scaled and number > 0 and 0.25 <= number / self.court.scale <= 4.0 and number != 1.0
            if not (number >= _SMALLEST_SCALE or follows) or (tensor and math.frexp(number)[0] != 0.5):
                continue
            marks = marks_of(call.outputs[0].twin)
            marks["times"] = number
            if tensor and i < len(call.inputs):
                marks["factor"] = call.inputs[i].twin
            return

    def _powers(self, call: OpCall) -> None:
        outputs = call.outputs
        if call.info.name == "aten._amp_foreach_non_finite_check_and_unscale_":
            self._unscaled(call)
        if call.info.listed and len(outputs) > 1:
            for pair, entries in grouped(call):
                self._power(call, pair, entries)
            return
        for pair in outputs:
            self._power(call, pair, call.inputs)

    def _power(self, call: OpCall, pair: Pair, inputs: list[Pair]) -> None:
        factor = call.info.stem in _FACTORS and len(inputs) == 1
        power = power_of(call, pair, inputs, self.court.scale if not factor or self._is_unit(call, pair, inputs[0]) else 1.0)
        if factor and power != inputs[0].twin.power and torch.is_grad_enabled() and not call.backward:
            self._unit_nodes.add(torch.autograd._get_sequence_nr() - 1)
        if math.isnan(power) and not any(math.isnan(p.twin.power) for p in inputs):
            self._mixed_at = self.court.log.site(call.module, call.info.name, call.phase, call.place)
        pair.twin.power = power

    def _is_unit(self, call: OpCall, pair: Pair, operand: Pair) -> bool:
        """Whether a number that equals S may be the loss scale: on losses and gradients, not inside a network or its derivative."""
        if pair.lo.numel() == 1:
            return True
        if call.backward:
            node = torch._C._current_autograd_node()
            return node is not None and node._sequence_nr() in self._unit_nodes
        return operand.twin.power != 0.0 or not (torch.is_grad_enabled() and operand.lo.requires_grad)

    def _unscaled(self, call: OpCall) -> None:
        """Unscaling must divide by the scale the loss was multiplied with, not by one that ``update`` has changed since."""
        inverse = float(call.args[2])
        if inverse == 1.0:
            return
        for pair in call.outputs:
            marks = pair.twin.marks or {}
            carried = marks.get("scale")
            if carried is not None and pair.twin.power >= 1.0 and abs(carried * inverse - 1.0) > 1e-3:
                name = self.storages.get(pair.lo.untyped_storage()._cdata, "a parameter")
                site = self.court.log.site(call.module, "GradScaler.update", call.phase, call.place)
                reason = f"gradients that carry {carried:g} are divided by {1.0 / inverse:g}"
                self.court.convict("update-between-optimizers", site, {"scale": carried, "parameter": name}, name, reason)
                return

    def _on_gradients(self, call: OpCall, name: str) -> None:
        for pair in call.outputs:
            key = pair.lo.untyped_storage()._cdata
            parameter = self.storages.get(key)
            if parameter is None:
                continue
            twin = pair.twin
            marks = marks_of(twin)
            if call.backward and name == "add":
                self._accumulated(call, pair, marks, parameter)
                continue
            marks.pop("spent", None)
            if name in _FACTORS and call.info.in_place:
                factor = _factor(call, pair)
                if factor is None:
                    continue
                factor = 1.0 / factor if name == "div" and factor else factor
                site = self.court.log.site(call.module, _place_name(call), call.phase, call.place)
                held = marks.get("power", 0.0)
                marks["power"] = twin.power
                if self.court.scaled and any(abs(factor * self.court.scale**k - 1.0) < 1e-3 for k in (1, 2)):
                    marks["unit_site"] = site
                elif abs(factor - 1.0) > 0.05 or factor < 0:
                    self._divided_by_another_scale(factor, held, site, parameter)
                    marks["rescaled"] = (factor, site)
                    if self.court.scaled and held >= 1.0:
                        marks["clip_site"] = site
                        if twin.power == held and abs(factor) < 0.5:
                            marks["clipped_scaled"] = site  # a Python number carries no unit: judged by the norm at the step
                if factor < 0 and factor != -1.0:
                    marks["reversed"] = (factor, site)
            elif name in ("clamp", "clamp_max", "clamp_min") and self.court.scaled and twin.power >= 1.0 and self._bites(call, pair):
                marks["clip_site"] = marks["clipped_scaled"] = self.court.log.site(call.module, _place_name(call), call.phase, call.place)
            elif name in _CLEANERS and twin.nonfinite is False and "skipped" not in marks and self._was_nonfinite(call):
                marks["replaced"] = self.court.log.site(call.module, call.info.name, call.phase, call.place)

    def _made_of_replaced(self, call: OpCall, name: str) -> None:
        """A result whose non-finite gradient was replaced, and what is made of it, tell the step that uses them."""
        marked = next((p.twin.marks["replaced"] for p in call.inputs if p.twin.marks and "replaced" in p.twin.marks), None)
        if marked is None and name in _CLEANERS and any(self._broken_gradient(p) for p in call.inputs):
            marked = self.court.log.site(call.module, call.info.name, call.phase, call.place)
        if marked is not None:
            for pair in call.outputs:
                if not pair.twin.nonfinite:
                    marks_of(pair.twin)["replaced"] = marked
                    self._replaced = True

    def _broken_gradient(self, pair: Pair) -> bool:
        return pair.twin.nonfinite and pair.lo.untyped_storage()._cdata in self.storages

    def _divided_by_another_scale(self, factor: float, held: float, site: Site, parameter: str) -> None:
        """Gradients that carry S are divided by the S of the iteration before; that of the next one is known at its backward pass."""
        court = self.court
        if not court.scaled or court.with_scaler or held != 1.0 or factor <= 0 or not court.scale > 1.5:
            return
        if self._scale_before != court.scale and abs(factor * self._scale_before - 1.0) < 1e-3:
            self._other_scale(self._scale_before, court.scale, site, parameter)
        elif self._odd is None:
            self._odd = (factor, site, parameter)

    def _other_scale(self, divided_by: float, carried: float, site: Site, parameter: str) -> None:
        reason = f"gradients that carry {carried:g} are divided by {divided_by:g}"
        evidence: Evidence = {"scale": carried, "divided_by": divided_by, "parameter": parameter}
        self.court.convict("divided-by-another-scale", site, evidence, parameter, reason)

    def scale_known(self, scale: float) -> None:
        """A backward pass starts with this loss scale."""
        odd, before = self._odd, self.court.scale
        self._odd = None
        if odd is not None and scale != before and abs(odd[0] * scale - 1.0) < 1e-3:
            self._other_scale(scale, before, odd[1], odd[2])
        self._scale_before = before if self.court.scaled else scale

    def _bites(self, call: OpCall, pair: Pair) -> bool:
        """Whether a clamp cut many scaled values off at a bound that is tiny beside the scale."""
        given = [*call.args[1:3], call.kwargs.get("min"), call.kwargs.get("max")]
        bounds = [abs(float(b)) for b in given if isinstance(b, (int, float))]
        if not bounds or max(bounds) / self.court.scale >= _SCALED_DOMAIN:
            return False
        return float((pair.lo.abs() >= max(bounds) * (1 - 2.0**-7)).double().mean()) > 0.05

    def _was_nonfinite(self, call: OpCall) -> bool:
        return any(bool((~torch.isfinite(t)).any()) for t in call.before.values() if t.is_floating_point())

    def _accumulated(self, call: OpCall, pair: Pair, marks: dict[str, Any], parameter: str) -> None:
        site = self.court.log.site(call.module, call.info.name, call.phase, call.place)
        if marks.get("skipped"):
            marks["stale"] = site
        self._reuse.accumulated(marks, site)
        rescaled = marks.get("rescaled")
        if rescaled is not None and abs(rescaled[0]) < 0.9:
            marks["inside"] = rescaled
        if self.court.scaled and len(call.inputs) == 2 and "inside" not in marks:
            held, added = marks.get("power", 0.0), call.inputs[1].twin.power
            if self.court.scale > 1.5 and held != added and (marks.get("unit_site") is not None or self.court.with_scaler):
                marks["mixed"] = marks.get("unit_site", site)

    def before_step(self, optimizer: Any, params: list[tuple[str, Tensor]]) -> None:
        """The optimizer is about to use its gradients: they must be unscaled, whole and of one piece."""
        self.court.steps += 1
        self._unit_nodes.clear()
        self._replaced = False
        total = 0.0
        used: list[tuple[str, Twin]] = []
        negative: tuple[str, Twin] | None = None
        clipped: tuple[str, Twin] | None = None
        self._stepped_twice(optimizer, params)
        positive: tuple[str, Twin] | None = None
        extra = -1.0 if getattr(optimizer, "grad_scale", None) is not None else 0.0
        for name, p in params:
            grad = p.grad
            twin = self.court.memory.get(grad) if grad is not None and grad.layout == torch.strided else None
            if grad is None or twin is None:
                continue
            used.append((name, twin))
            if twin.marks and "clipped_scaled" in twin.marks and twin.power + extra == 0.0 and clipped is None:
                clipped = (name, twin)
            if self.court.scaled and self.court.scale > 1.5:
                power = twin.power + extra
                if power < 0 and negative is None:
                    negative = (name, twin)
                if power > 0 and positive is None:
                    positive = (name, twin)
                total += float(grad.detach().double().square().sum())
        norm = math.sqrt(total) * self.court.scale**extra  # a fused kernel divides by the scale itself
        negative = negative or clipped
        if negative is not None and self._trusted and ("clip_site" not in marks_of(negative[1]) or norm < _SCALED_DOMAIN):
            self._divided_twice(negative, norm)
        if positive is not None and self.court.with_scaler:
            name, twin = positive
            site = twin.site or self.court.here("optimizer.step", "", Phase.OPTIMIZER)
            self.court.convict(
                "step-on-scaled-gradients",
                site,
                {"scale": self.court.scale, "parameter": name},
                name,
                f"the optimizer uses gradients that are still {self.court.scale:g} times too large",
            )

        mixed = next(((name, twin) for name, twin in used if math.isnan(twin.power)), None)
        if mixed is not None and (self.court.with_scaler or "unit_site" in marks_of(mixed[1])):
            self._added_up(mixed[0], mixed[1])
        self._reuse.before_step(optimizer, used)
        for name, twin in used:
            self._marked(name, twin)

    def _added_up(self, name: str, twin: Twin) -> None:
        """Something without the scale was added to gradients that carry it."""
        if "mixed" in marks_of(twin):
            return  # by the accumulation: told there
        site = self._mixed_at or self.court.here("optimizer.step", "", Phase.OPTIMIZER)
        reason = f"part of the gradient of {name} carries the scale {self.court.scale:g} and part does not"
        self.court.convict("mixed-scales", site, {"scale": self.court.scale, "parameter": name}, name, reason)

    def _stepped_twice(self, optimizer: Any, params: list[tuple[str, Tensor]]) -> None:
        """Two steps of one optimizer on the same gradients: ``optimizer.step()`` after ``scaler.step(optimizer)``."""
        last = self._used_at.get(optimizer)
        self._used_at[optimizer] = self.court.backwards
        if self.court.with_scaler and last == self.court.backwards and self.court.backwards and any(p.grad is not None for _, p in params):
            site = self.court.here("optimizer.step", "", Phase.OPTIMIZER)
            reason = "the same gradients are applied twice"
            self.court.convict("plain-step-after-scaler-step", site, {"scale": self.court.scale}, "the weights", reason)

    def _divided_twice(self, found: tuple[str, Twin], norm: float) -> None:
        name, twin = found
        marks = marks_of(twin)
        clip = marks.get("clip_site")
        site = clip or marks.get("unit_site") or twin.site or self.court.here("optimizer.step", "", Phase.OPTIMIZER)
        fault = "clip-before-unscale" if clip is not None else "unscale-twice"
        self.court.convict(
            fault,
            site,
            {"scale": self.court.scale, "norm": norm, "parameter": name},
            name,
            f"every step is about {self.court.scale:g} times too small (gradient norm {norm:.2g})",
        )

    def _marked(self, name: str, twin: Twin) -> None:
        """Put what the marks of a used gradient tell on record, and end them."""
        marks = twin.marks
        if not marks:
            return
        convict = self.court.convict
        if "inside" in marks:
            factor, site = marks["inside"]
            reason = f"earlier micro-batches of {name} count {abs(factor):.2g} times as much as the last"
            convict("clip-inside-accumulation", site, {"factor": factor, "parameter": name}, name, reason)
        if "reversed" in marks:
            factor, site = marks["reversed"]
            reason = f"the gradient of {name} is multiplied by {factor:.4g}: the step goes uphill"
            convict("reversed-gradient", site, {"factor": factor, "parameter": name}, name, reason)
        if "mixed" in marks:
            reason = f"unscaled and scaled gradients are added up in {name}"
            convict("unscale-inside-accumulation", marks["mixed"], {"scale": self.court.scale, "parameter": name}, name, reason)
        if "replaced" in marks:
            reason = f"the overflow of {name} is hidden and a wrong step is taken"
            convict("nonfinite-gradient-replaced", marks["replaced"], {"parameter": name}, name, reason)
        for key in _USED_UP:
            marks.pop(key, None)

    def note(self) -> None:
        """After a backward pass: which storages are gradients now, and with which power."""
        grads: dict[int, str] = {}
        weights: dict[int, str] = {}
        powers: list[float] = []
        leaves: list[tuple[Tensor, str]] = []
        for ref, name in list(self.court.parameters.names()):
            p = ref()
            grad = p.grad if p is not None else None
            if grad is None or grad.layout != torch.strided:
                continue
            key = grad.untyped_storage()._cdata
            grads[key] = name
            if p is not None:
                leaves.append((p, name))
            if p is not None and UNIT_ROUNDOFF.get(p.dtype, 0.0) > 2.0**-24:
                weights[p.untyped_storage()._cdata] = name
            twin = self.court.memory.get(grad)
            power = twin.power if twin is not None else 0.0
            if power or key not in self.storages:  # gradients that this pass left alone (masters, other networks) do not count
                powers.append(power)
            if twin is not None and self.court.scaled:
                marks = marks_of(twin)
                marks["power"] = twin.power
                if self.court.with_scaler:
                    marks["scale"] = self.court.scale
        self._trusted = self.court.scaled and bool(powers) and min(powers) >= 1.0
        self.storages = grads
        self.leaves = leaves
        self.weights = weights


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
