"""The adjoint ledger: how much of the loss error each forward call made, to first order.

For a call y = f(x) of the forward pass let delta = y_lo - f_fp64(x_lo), the error it makes by itself on its actual operands (and what
its inputs brought along that no call had made: a batch cast to half), and a the adjoint dL / dy. Then L_lo - L_hi = sum <a, delta>,
with an error of third order where a is the mean of the adjoints on both trajectories (the trapezoidal rule along the line between them;
one-sided in ADAPT, Menon et al. 2018). delta is kept from the forward pass, and a tensor hook on y receives the real gradient, whose twin
is in shadow memory.

Calls are those of ``torch.overrides``: ``F.linear`` with its autocast casts is one, so is ``F.cross_entropy``. What runs without such a
call (the inside of a custom ``autograd.Function``, a random call that cannot be repeated in fp64) is missing from the sum; ``explained``,
predicted over actual loss error, shows it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode, resolve_name

from precisionlab.records import LedgerRecord, LedgerShare, Phase, Site
from precisionlab.shadow.memory import UNIT_ROUNDOFF, ShadowMemory
from precisionlab.shadow.sites import Locator
from precisionlab.trackers.log import RunLog

_CASTS = frozenset(("to", "type", "type_as", "half", "bfloat16", "float", "double"))
_DROPOUTS = frozenset(("dropout", "dropout_", "dropout1d", "dropout2d", "dropout3d"))
"""Random calls whose mask can be read off their result. Alpha dropout puts other values than zero in."""
_FAST_PATHS = (nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerEncoder)
"""Modules that take another kernel, outside of autograd, when functions are overridden: the ledger steps aside for them."""

_NO_CALLS = frozenset((Tensor.requires_grad_, Tensor.detach, Tensor.register_hook, Tensor.retain_grad, Tensor.item, Tensor.tolist))


class _Entry:
    """Sums of one site."""

    __slots__ = ("calls", "energy", "op", "site", "sum")

    def __init__(self, site: Site, op: Site | None) -> None:
        self.site = site
        self.op = op
        self.sum = 0.0
        self.energy = 0.0
        self.calls = 0


class Ledger(TorchFunctionMode):
    """Active in preset full. See the module docstring."""

    def __init__(
        self,
        log: RunLog,
        memory: ShadowMemory,
        locator: Locator,
        scale: Callable[[], float],
        guarding: Callable[[str], AbstractContextManager[None]],
    ) -> None:
        """``scale`` gives the loss scale in force; ``guarding(where)`` keeps faults of the ledger from the program."""
        super().__init__()
        self.guarding = guarding
        self.log = log
        self.memory = memory
        self.locator = locator
        self.scale = scale
        self.executed: list[Site] = []
        """Sites of the ops that ran since the call began (told by the observer)."""
        self.loss_error = 0.0
        self.losses = 0
        self.missing: dict[str, int] = {}
        """Calls that could not be repeated in fp64, by name."""
        self.undefined = ""
        self.hooked = 0
        self._entries: dict[Site, _Entry] = {}
        self._names: dict[Any, str] = {}
        self._aside: list[Any] = []

    # -- calls ----------------------------------------------------------------------------------------------------------------------

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        if not torch.is_grad_enabled() or self.locator.in_optimizer or func in _NO_CALLS:
            return func(*args, **kwargs)
        name = self._name(func)
        stem = name.rpartition(".")[2]
        before = self._overwritten(stem, args)
        self.executed = []
        out = func(*args, **kwargs)
        with self.guarding(f"the ledger at {name}"):
            self._called(func, name, stem, args, kwargs, before, out)
        return out

    def _called(
        self, func: Any, name: str, stem: str, args: tuple[Any, ...], kwargs: dict[str, Any], before: Tensor | None, out: Any
    ) -> None:
        """A call of a forward pass has run."""
        results = [t for t in (out if isinstance(out, (tuple, list)) else (out,)) if isinstance(t, Tensor)]
        tracked = [t for t in results if t.requires_grad and t.grad_fn is not None and t.dtype in UNIT_ROUNDOFF and not t.is_complex()]
        if tracked and not (before is None and any(_views(t, args) for t in tracked)):
            self._enter_call(func, name, stem, args if before is None else (before, *args[1:]), kwargs, results, tracked)

    def remove(self) -> None:
        """Leave the stack of modes, whatever was put on top since."""
        above = []
        while torch._C._len_torch_function_stack():
            mode = torch._C._pop_torch_function_stack()
            if mode is self:
                break
            above.append(mode)
        for mode in reversed(above):
            torch._C._push_on_torch_function_stack(mode)

    def _enter_call(
        self, func: Any, name: str, stem: str, args: tuple[Any, ...], kwargs: dict[str, Any], results: list[Tensor], tracked: list[Tensor]
    ) -> None:
        module, _, place, _ = self.locator.locate()
        site = self.log.site(module, name, Phase.FORWARD, place)
        main = self.executed[-1] if self.executed else None
        device = tracked[0].device.type
        with torch.no_grad(), torch._C._DisableTorchDispatch(), torch.autocast(device, enabled=False):
            exact = self._exact(func, stem, args, kwargs, results)
        if exact is None:
            self.missing[name] = self.missing.get(name, 0) + 1
            return
        for t, y in zip(results, exact, strict=False):
            if not any(t is each for each in tracked) or y.shape != t.shape:
                continue
            with torch.no_grad(), torch._C._DisableTorchDispatch():
                delta = t.detach().double() - y
                if not delta.any():
                    continue
                if not bool(torch.isfinite(delta).all()):
                    self.undefined = self.undefined or f"{name} at {site.source} is not finite"
                    continue
                delta = delta.float()
            self.hooked += 1
            t.register_hook(self._hook(site, main, delta))

    def _exact(self, func: Any, stem: str, args: tuple[Any, ...], kwargs: dict[str, Any], results: list[Tensor]) -> list[Tensor] | None:
        """The call in fp64 on the real operands; None where it cannot be repeated."""
        if stem in _CASTS:
            return [self._wide(args[0])]
        if stem in _DROPOUTS:
            return _same_mask(self._wide(args[0]), args, kwargs, results[0])
        generator = torch if results[0].is_cpu else torch.get_device_module(results[0].device.type)
        state = generator.get_rng_state()
        try:
            out = func(*(self._wide(a) for a in args), **{k: self._wide(v) for k, v in kwargs.items()})
        except (RuntimeError, TypeError, ValueError, NotImplementedError, IndexError):
            return None
        finally:
            drew = not torch.equal(state, generator.get_rng_state())
            generator.set_rng_state(state)
        if drew:
            return None
        exact = [t for t in (out if isinstance(out, (tuple, list)) else (out,)) if isinstance(t, Tensor)]
        return [t if t.dtype is torch.float64 else t.double() for t in exact]

    def _wide(self, x: Any) -> Any:
        """An argument in fp64; dtypes that name a narrower format become fp64.

        The twin of a leaf where it differs: no earlier call accounts for the error of an input that was cast, or of drifted weights.
        """
        if isinstance(x, Tensor):
            if x.dtype not in UNIT_ROUNDOFF or x.is_complex():
                return x
            if x.grad_fn is None and x.layout is torch.strided:
                twin = self.memory.get(x)
                if twin is not None and twin.drift != 0.0 and not twin.nonfinite:
                    return self.memory.window(x, twin).clone()
            return x.detach().double()
        if isinstance(x, torch.dtype):
            return torch.float64 if x in UNIT_ROUNDOFF and x.is_floating_point else x
        if isinstance(x, (list, tuple)):
            wide = [self._wide(e) for e in x]
            return type(x)(wide) if type(x) in (list, tuple) else wide
        return x

    def _overwritten(self, stem: str, args: tuple[Any, ...]) -> Tensor | None:
        """A copy of the operand that an in-place call is about to overwrite."""
        if not args or not isinstance(args[0], Tensor) or not (stem.endswith("_") and not stem.endswith("__")):
            return None
        with torch.no_grad(), torch._C._DisableTorchDispatch():
            return args[0].detach().clone()

    def _name(self, func: Any) -> str:
        known = self._names.get(func)
        if known is None:
            found = resolve_name(func) or getattr(func, "__name__", "call")
            head, _, tail = found.rpartition(".")
            if tail.startswith("__i") and tail.endswith("__") and tail != "__invert__":
                tail = f"{tail[3:-2]}_"
            elif tail.startswith("__") and tail.endswith("__"):
                tail = tail.strip("_")
            known = self._names[func] = f"{head}.{tail}" if head else tail
        return known

    # -- the backward pass ----------------------------------------------------------------------------------------------------------

    def _hook(self, site: Site, main: Site | None, delta: Tensor) -> Callable[[Tensor], None]:
        def hook(gradient: Tensor) -> None:
            with self.guarding("the ledger in the backward pass"):
                self._arrived(site, main, delta, gradient)

        return hook

    def _arrived(self, site: Site, main: Site | None, delta: Tensor, gradient: Tensor) -> None:
        with torch.no_grad(), torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
            if gradient.layout is not torch.strided or gradient.shape != delta.shape:
                return
            twin = self.memory.get(gradient)
            lo = gradient.detach().double()
            adjoint = lo if twin is None else (lo + self.memory.window(gradient, twin)) / 2
            unit = self.scale() ** twin.power if twin is not None and math.isfinite(twin.power) else 1.0
            each = adjoint * delta
            total, energy = float(each.sum()) / unit, float(each.square().sum()) / unit**2
        if not math.isfinite(total):
            self.undefined = self.undefined or f"the gradient at {site.source} is not finite"
            return
        entry = self._entries.get(site)
        if entry is None:
            entry = self._entries[site] = _Entry(site, main)
        entry.sum += total
        entry.energy += energy
        entry.calls += 1

    def root(self, lo: Tensor, hi: Tensor, weight: Tensor | None, scale: float) -> None:
        """Backward starts from ``lo``: the loss error to explain. ``weight`` is the gradient it starts with, None for 1."""
        difference = lo.detach().double() - hi
        error = float(difference.sum() if weight is None else (difference * weight.double()).sum()) / scale
        if not math.isfinite(error):
            self.undefined = self.undefined or "the loss is not finite"
            return
        self.loss_error += error
        self.losses += 1

    # -- modules whose fast path asks whether functions are overridden --------------------------------------------------------------

    def entering(self, module: nn.Module) -> None:
        """Before a module's forward."""
        if isinstance(module, _FAST_PATHS) and not torch.is_grad_enabled():
            self._aside.append((module, torch._C.DisableTorchFunction()))

    def leaving(self, module: nn.Module) -> None:
        """After it."""
        if self._aside and self._aside[-1][0] is module:
            self._aside.pop()

    # -- record ---------------------------------------------------------------------------------------------------------------------

    def record(self) -> LedgerRecord | None:
        """What is known so far; None before the first backward pass."""
        if not self.losses and not self.undefined:
            return None
        predicted = sum(e.sum for e in self._entries.values())
        explained = predicted / self.loss_error if self.loss_error and not self.undefined else None
        energy = sum(e.energy for e in self._entries.values())
        shares = [
            LedgerShare(
                e.site,
                e.op,
                e.sum / self.loss_error if self.loss_error else None,
                math.sqrt(e.energy),
                math.sqrt(e.energy / energy) if energy > 0 else 0.0,
                e.calls,
            )
            for e in sorted(self._entries.values(), key=lambda e: -e.energy)
        ]
        return LedgerRecord(
            self.loss_error, predicted, explained, "mean adjoint", shares, dict(sorted(self.missing.items())), self.undefined, self.losses
        )


def _views(t: Tensor, args: tuple[Any, ...]) -> bool:
    """Whether a result is a view of an operand: views round nothing."""
    if t.layout is not torch.strided:
        return False
    key = t.untyped_storage()._cdata
    return any(isinstance(a, Tensor) and a.layout is torch.strided and a.untyped_storage()._cdata == key for a in args)


def _same_mask(x: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any], out: Tensor) -> list[Tensor] | None:
    """Dropout with the mask that was drawn: zeros stay zeros, the rest is divided by 1 - p."""
    p = args[1] if len(args) > 1 else kwargs.get("p", 0.5)
    training = args[2] if len(args) > 2 else kwargs.get("training", kwargs.get("train", True))
    if not training or p == 0:
        return [x]
    if not isinstance(p, (int, float)) or p >= 1:
        return None
    return [torch.where(out.detach() != 0, x / (1 - p), 0.0)]
