"""The protocol of the training loop: scale, backward, unscale, clip, step, update, zero, schedule.

Here lo and hi agree and the program is still wrong, so nothing numeric shows it. Each fault is an event at the op or call that broke the
protocol, and a sink at the step that used its result. The parts: ``scaler`` and ``hand_scale`` (with ``scale_history``), ``gradients``
(with ``units``), ``copies``, ``schedule``, ``constants``; they share a ``Court``.
"""

from __future__ import annotations

from typing import Any

import torch

from precisionlab.records import Phase, SinkKind, Site
from precisionlab.shadow.call import OpCall
from precisionlab.shadow.memory import UNIT_ROUNDOFF, ShadowMemory, Twin
from precisionlab.shadow.sites import Locator
from precisionlab.thresholds import Thresholds
from precisionlab.trackers.constants import Constants
from precisionlab.trackers.copies import Copies
from precisionlab.trackers.court import Court
from precisionlab.trackers.gradients import GradientProtocol
from precisionlab.trackers.hand_scale import HandScale
from precisionlab.trackers.handmade import Handmade, leaves_of
from precisionlab.trackers.ledger import Ledger
from precisionlab.trackers.log import RunLog
from precisionlab.trackers.norms import Norms
from precisionlab.trackers.parameters import Parameters
from precisionlab.trackers.patches import Patches
from precisionlab.trackers.recompute import Recompute
from precisionlab.trackers.scale_history import ScaleHistory
from precisionlab.trackers.scaler import Scaler
from precisionlab.trackers.schedule import Schedule
from precisionlab.trackers.sinks import Sinks

Tensor = torch.Tensor


class Protocol:
    """Installs the wrappers and passes ops and steps on to the parts."""

    def __init__(
        self, log: RunLog, memory: ShadowMemory, locator: Locator, parameters: Parameters, sinks: Sinks, thresholds: Thresholds
    ) -> None:
        self.court = Court(log, memory, locator, parameters, thresholds)
        self.sinks = sinks
        self.scale_history = ScaleHistory(self.court)
        self.scaler = Scaler(self.court, self.scale_history)
        self._hand_scale = HandScale(self.court, self.scale_history)
        self.gradients = GradientProtocol(self.court)
        self.copies = Copies(self.court)
        self._schedule = Schedule(self.court)
        self._constants = Constants(self.court)
        self._norms = Norms(self.court)
        self.recompute = Recompute(self.court)
        self.handmade = Handmade(self.court)
        self.ledger: Ledger | None = None
        self._entered = False
        self._patches = Patches()

    def scale_summary(self) -> dict[str, Any] | None:
        """``RunRecord.scaler``."""
        return self.scale_history.summary(self._hand_scale.unfinished())

    @property
    def skipped(self) -> int:
        """Steps that a scaler skipped."""
        return self.scale_history.skipped

    @property
    def backwards(self) -> int:
        """Backward passes seen."""
        return self.court.backwards

    def install(self) -> None:
        """Wrap backward, the scaler, the scheduler and ``torch.tensor``."""
        from torch.amp.grad_scaler import GradScaler
        from torch.optim.lr_scheduler import LRScheduler

        wrap = self._patches.wrap
        wrap(torch.autograd, "backward", self._backward)
        wrap(torch.autograd, "grad", self._grad)
        wrap(torch.Tensor, "tolist", self._tolist)
        wrap(torch.optim.Optimizer, "zero_grad", self._zero_grad)
        wrap(torch, "tensor", self._constants.tensor)
        wrap(GradScaler, "scale", self.scaler.scale)
        wrap(GradScaler, "unscale_", self.scaler.unscale)
        wrap(GradScaler, "step", self._scaler_step)
        wrap(GradScaler, "update", self.scaler.update)
        wrap(GradScaler, "load_state_dict", self.scaler.load_state)
        wrap(LRScheduler, "step", self._schedule.step)

    def remove(self) -> None:
        """Put everything back."""
        self._patches.restore()

    def op(self, call: OpCall) -> None:
        """One shadowed op with floating results."""
        if self.handmade.open:
            self.handmade.forward(call)
        self.gradients.op(call)
        self.copies.op(call, call.info.stem)
        self._norms.op(call, self.gradients.storages)
        self.recompute.op(call)

    def _scaled_by_hand(self, twin: Twin, site: Site) -> None:
        """A number multiplied onto the loss right before backward is a loss scale."""
        court = self.court
        marks = twin.marks or {}
        if "times" in marks:
            self.gradients.scale_known(marks["times"])
            self._hand_scale.before_backward(marks["times"], site)
            court.scale, court.scaled, twin.power = marks["times"], True, 1.0
            if "factor" in marks:
                marks.pop("factor").power = 1.0
        elif court.scaled and twin.power == 1.0:
            self._hand_scale.before_backward(court.scale, site)

    def _loss(self, root: Tensor, twin: Twin | None) -> None:
        """The loss goes on the timeline, without its scale."""
        court = self.court
        scale = court.scale**twin.power if twin is not None and court.scaled else 1.0
        with torch.no_grad(), torch._C._DisableTorchDispatch():
            lo = float(root)
            hi = lo if twin is None else float(court.memory.window(root, twin))
        if scale > 0:
            court.timeline.loss(lo / scale, hi / scale, court.scale if court.scaled else None)

    def _account(self, roots: list[Tensor], weights: Any) -> None:
        """The loss error that the ledger has to explain."""
        given = list(weights) if isinstance(weights, (list, tuple)) else [weights] * len(roots)
        with torch.no_grad(), torch._C._DisableTorchDispatch():
            for root, weight in zip(roots, given, strict=False):
                twin = self.court.memory.get(root)
                if self.ledger is not None and twin is not None and not root.is_complex():
                    unit = self.court.scale**twin.power if self.court.scaled and twin.power == twin.power else 1.0
                    self.ledger.root(root, self.court.memory.window(root, twin), weight, unit)

    def before_step(self, optimizer: Any, params: list[tuple[str, Tensor]]) -> None:
        """The optimizer is about to use its gradients."""
        self.gradients.before_step(optimizer, params)
        self.recompute.forget()

    def _scaler_step(self, original: Any, scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        before = self.court.steps
        out = self.scaler.step(original, scaler, optimizer, *args, **kwargs)
        if scaler.is_enabled():
            self._schedule.iteration(optimizer, taken=self.court.steps != before)
        return out

    def _zero_grad(self, original: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        """The first that is heard of an optimizer, and of parameters that no module has."""
        self.court.parameters.learn_from(optimizer)
        return original(optimizer, *args, **kwargs)

    def _tolist(self, original: Any, tensor: Tensor) -> Any:
        """``Tensor.tolist`` copies without an op that could be seen."""
        if tensor.dtype in UNIT_ROUNDOFF and not tensor.is_complex():
            with torch.no_grad(), torch._C._DisableTorchDispatch():
                self.sinks.value(SinkKind.ITEM, "item", tensor, self.court.here("tolist", "", Phase.FORWARD))
        return original(tensor)

    def _grad(self, original: Any, outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """``torch.autograd.grad``: its leaves may be stepped by hand."""
        if self._again():
            return original(outputs, inputs, *args, **kwargs)
        self.court.backwards += 1
        if self.ledger is not None:
            roots = [outputs] if isinstance(outputs, Tensor) else list(outputs)
            self._account(roots, args[0] if args else kwargs.get("grad_outputs"))
        self.handmade.learn((t, self.court.parameters.name_of(t, name)) for t, name in leaves_of(inputs))
        inside, self._entered = self._entered, True
        try:
            return original(outputs, inputs, *args, **kwargs)
        finally:
            self._entered = inside

    def _again(self) -> bool:
        """Under a function mode, torch calls ``backward`` and ``grad`` a second time from inside; a pass within a pass is another one."""
        return self._entered and torch._C._current_autograd_node() is None

    def _backward(self, original: Any, tensors: Any, *args: Any, **kwargs: Any) -> Any:
        if self._again():
            return original(tensors, *args, **kwargs)
        court = self.court
        court.backwards += 1
        roots = [tensors] if isinstance(tensors, Tensor) else [t for t in tensors if isinstance(t, Tensor)]
        _, _, place, _ = court.locator.locate()
        for root in roots:
            site = court.log.site("", "backward", Phase.FORWARD, place)
            with torch.no_grad(), torch._C._DisableTorchDispatch():
                self.sinks.value(SinkKind.LOSS, "the loss", root, site)
                twin = court.memory.get(root)
            self.scale_history.window.root(root.dtype, site)
            if twin is not None and not court.with_scaler:
                self._scaled_by_hand(twin, site)
            if root.numel() == 1 and not root.is_complex():
                self._loss(root, twin)
        if self.ledger is not None:
            self._account(roots, args[0] if args else kwargs.get("grad_tensors"))
        inside, self._entered = self._entered, True
        try:
            out = original(tensors, *args, **kwargs)
        finally:
            self._entered = inside
        self.gradients.note()
        self.handmade.learn(self.gradients.leaves)
        if court.scaled and not court.with_scaler:
            with torch.no_grad(), torch._C._DisableTorchDispatch():
                self._hand_scale.after_backward()
        self.copies.weights = self.gradients.weights
        return out
