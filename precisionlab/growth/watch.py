"""An audit that also keeps what growth is read from: output drift, gradient error, drift of every module call, tokens, lost addends."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from precisionlab.growth.measurement import Block
from precisionlab.records import Phase
from precisionlab.session import audit
from precisionlab.shadow.call import OpCall
from precisionlab.shadow.measure import lost_addend, measure
from precisionlab.shadow.memory import UNIT_ROUNDOFF
from precisionlab.subjects.batches import tensors
from precisionlab.trackers.addends import ADDITIVE, increments
from precisionlab.trackers.events import keeps_before
from precisionlab.trackers.plans import HALVES

MOST_BLOCKS = 4096
"""Module calls that are kept; of later ones nothing is."""


class Watch(audit):
    """See the module docstring. Numbers only; no tensor outlives the call it is measured in. ``u`` is set before it starts."""

    u = 2.0**-11
    """Unit roundoff in which drift is given: that of the format under audit, also where a result is kept in fp32."""

    def __init__(self, model: nn.Module | None = None, optimizer: Any = None, scaler: Any = None, **settings: Any) -> None:
        super().__init__(model, optimizer, scaler, **settings)
        self._mode.keep_before = keeps_before
        self.output_sq: dict[int, tuple[float, float]] = {}
        """Step -> (squared error, squared norm) of everything the outermost module returned."""
        self.gradient_sq = [0.0, 0.0]
        self.gradients_whole = True
        """Whether every gradient seen was finite."""
        self.lost: dict[str, float] = {}
        """Place -> share of an addend that was lost, the worst of its additions, in u."""
        self.swamped: dict[str, tuple[int, int]] = {}
        """Place -> (addends that changed nothing, addends)."""
        self.calls: list[tuple[str, str, int, float]] = []
        """(path, signature, parameters, drift in u) of each module call, in the order in which they ended."""
        self.tokens_sq: tuple[torch.Tensor, torch.Tensor] | None = None
        self._signatures: dict[int, tuple[str, int]] = {}
        self._used = False

    # -- ops ----------------------------------------------------------------------------------------------------------------------

    def op(self, call: OpCall) -> None:
        """See ``shadow.mode.Observer``."""
        super().op(call)
        if call.info.name in ADDITIVE and not self._locator.in_optimizer:
            with self._guard.guarding("lost addends"):
                self._added(call)

    def _added(self, call: OpCall) -> None:
        for pair in call.outputs:
            if pair.lo.dtype not in HALVES:
                continue
            site = self._log.site(call.module, call.info.name, call.phase, call.place)
            found = increments(call, pair, site)
            if found is None:
                continue
            base, addend, alpha = found
            numbers = lost_addend(base, addend, pair.lo, alpha)
            if not call.info.in_place and numbers.addend_sq > numbers.base_sq and alpha == 1.0:
                base, addend = addend, base
                numbers = lost_addend(base, addend, pair.lo, 1.0)
            if not numbers.addend_sq > 0:
                continue
            place = place_of(site.op, site.source, site.module)
            self.lost[place] = max(self.lost.get(place, 0.0), math.sqrt(numbers.lost_sq / numbers.addend_sq) / self.u)
            swamped, addends = self.swamped.get(place, (0, 0))
            self.swamped[place] = swamped + numbers.swamped, addends + numbers.addends

    # -- modules ------------------------------------------------------------------------------------------------------------------

    def _module_done(self, module: nn.Module, path: str, output: Any, depth: int) -> None:
        super()._module_done(module, path, output, depth)
        if torch._C._current_autograd_node() is None and len(self.calls) < MOST_BLOCKS:
            with self._guard.guarding("module outputs"), torch.no_grad(), torch._C._DisableTorchDispatch():
                self._measured(module, path, output, depth)

    def _measured(self, module: nn.Module, path: str, output: Any, depth: int) -> None:
        error = size = 0.0
        for _, t in tensors(output):
            twin = self.memory.get(t) if t.dtype in UNIT_ROUNDOFF else None
            if twin is None or twin.decision:
                continue
            hi = self.memory.window(t, twin)
            stats = measure(t, hi)
            error, size = (error + stats.diff_sq, size + stats.hi_sq) if not stats.introduced else (math.inf, size)
            if not depth and t.dim() >= 3 and not stats.introduced and not t.is_complex():
                self._by_token(t, hi)
        if not depth:
            known = self.output_sq.get(self._log.step, (0.0, 0.0))
            self.output_sq[self._log.step] = known[0] + error, known[1] + size
        if size > 0:
            signature, count = self._signature(module)
            self.calls.append((path, signature, count, math.sqrt(error / size) / self.u))

    def _by_token(self, t: torch.Tensor, hi: torch.Tensor) -> None:
        """Squares by position along the second dimension: batch, sequence, features."""
        others = [d for d in range(t.dim()) if d != 1]
        squares = (t.double() - hi).square().sum(others), hi.square().sum(others)
        known = self.tokens_sq
        same = known is not None and known[0].shape == squares[0].shape
        self.tokens_sq = (known[0] + squares[0], known[1] + squares[1]) if same and known is not None else squares

    def _signature(self, module: nn.Module) -> tuple[str, int]:
        """Class and parameter shapes, empty for a module without parameters; and how many numbers these are."""
        found = self._signatures.get(id(module))
        if found is None:
            shapes = [tuple(p.shape) for p in module.parameters()]
            name = f"{type(module).__module__}.{type(module).__qualname__}"
            text = f"{name} {shapes}" if shapes else ""
            found = self._signatures[id(module)] = text, sum(p.numel() for p in module.parameters())
        return found

    # -- gradients ----------------------------------------------------------------------------------------------------------------

    def _start_step(self, optimizer: Any) -> None:
        self._used = True
        with torch.no_grad(), torch._C._DisableTorchDispatch():
            self._gradients([p for _, p in self._parameters.of(optimizer)])
        super()._start_step(optimizer)

    def _judge_the_living(self) -> None:
        if not self._used and self._model is not None:
            with torch._C._DisableTorchDispatch():
                self._gradients(list(self._model.parameters()))
        super()._judge_the_living()

    def _gradients(self, params: list[Any]) -> None:
        for p in params:
            grad = p.grad
            twin = self.memory.get(grad) if grad is not None and grad.layout == torch.strided and grad.dtype in UNIT_ROUNDOFF else None
            if twin is None or twin.decision:
                continue
            stats = measure(grad, self.memory.window(grad, twin))
            self.gradients_whole = self.gradients_whole and not stats.introduced
            self.gradient_sq[0] += stats.diff_sq
            self.gradient_sq[1] += stats.hi_sq

    # -- results ------------------------------------------------------------------------------------------------------------------

    def steps_u(self) -> tuple[float, ...]:
        """Drift of the outputs step by step, in u; infinite where they overflowed."""
        drifts = (_ratio(error, size, self.u) for _, (error, size) in sorted(self.output_sq.items()))
        return tuple(drift for drift in drifts if drift is not None)

    def drift_u(self) -> float | None:
        """Drift of the outputs of all steps together, in u; None where the outermost module returned nothing that rounds, infinite where it
        overflowed."""
        error, size = (sum(pair[i] for pair in self.output_sq.values()) for i in (0, 1))
        return _ratio(error, size, self.u)

    def gradient_error_u(self) -> float | None:
        """Normwise error of all gradients together, in u; None without gradients, infinite where one overflowed."""
        error, size = self.gradient_sq
        return _ratio(error if self.gradients_whole else math.inf, size, self.u)

    def tokens_u(self) -> tuple[float, ...]:
        """Drift by position, in u; empty where the output has no such dimension."""
        if self.tokens_sq is None or not bool((self.tokens_sq[1] > 0).all()):
            return ()
        return tuple(((self.tokens_sq[0] / self.tokens_sq[1]).sqrt() / self.u).tolist())

    def blocks(self) -> tuple[Block, ...]:
        """Every module call that has parameters; with the gradients that its last backward op made."""
        backward: dict[str, float] = {}
        for record in self._log.ops.values():
            if record.site.phase is Phase.BACKWARD and record.drift_u_max > 0:
                path = record.site.module
                while path:
                    backward[path] = record.drift_u  # records stand in the order of first execution: the last one stays
                    path = path.rpartition(".")[0]
        return tuple(Block(path, name, count, drift, backward.get(path)) for path, name, count, drift in self.calls if name)


def _ratio(error_sq: float, size_sq: float, u: float) -> float | None:
    """||error|| / ||exact|| in u; infinite where something overflowed, None where nothing was measured."""
    if math.isinf(error_sq):
        return math.inf
    return math.sqrt(error_sq / size_sq) / u if size_sq > 0 else None


def place_of(op: str, source: str, module: str) -> str:
    """``aten.mm (model.py:41)``: the same line of every repeated block is one place."""
    where = source or module
    return f"{op} ({where})" if where else op
