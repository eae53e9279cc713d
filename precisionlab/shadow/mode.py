"""The dispatch mode that runs every op a second time in fp64.

For each op: make the fp64 operands (windows on the twins), run the program's op untouched, run the op on the twins, tie the results
together in shadow memory, and hand an ``OpCall`` to the observer, alive only during the call. The program's own results are returned as
they are; random ops are never run twice; integer and bool results are always the program's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from precisionlab.ops.registry import Family, How
from precisionlab.shadow.call import Observer, OpCall, Pair, tensors_of
from precisionlab.shadow.memory import NO_EVENTS, UNIT_ROUNDOFF, ShadowMemory
from precisionlab.shadow.native import keep_native
from precisionlab.shadow.opinfo import WIDE, OpInfo
from precisionlab.shadow.sites import Locator
from precisionlab.shadow.special import Unshadowable

Tensor = torch.Tensor


class ShadowMode(TorchDispatchMode):
    """See the module docstring. ``observer`` may be None: twins are kept and nothing is measured."""

    def __init__(
        self,
        memory: ShadowMemory,
        locator: Locator,
        observer: Observer | None,
        *,
        keep_before: Callable[[OpInfo, Tensor], bool] | None = None,
    ) -> None:
        super().__init__()
        self.memory = memory
        self.locator = locator
        self.observer = observer
        self.keep_before = keep_before
        self.ops = 0
        self.shadowed = 0
        self.unshadowed: Counter[str] = Counter()
        self.reasons: dict[str, str] = {}
        self.default_rule: Counter[str] = Counter()
        self.low_side: Callable[[OpInfo, tuple[Any, ...], dict[str, Any]], Any] | None = None
        """Replaces the program's kernel (``--kernels fast``); returns NotImplemented to leave an op alone."""
        self._infos: dict[Any, OpInfo] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        if types and any(_desugars(t) for t in types):
            return NotImplemented
        if kwargs is None:
            kwargs = {}
        info = self._infos.get(func)
        if info is None:
            info = self._infos[func] = OpInfo(func)
        if info.composite and torch.is_inference_mode_enabled() and func._can_decompose():
            with self:
                return func.decompose(*args, **kwargs)
        if info.how is How.VIEW:
            return func(*args, **kwargs)
        self.ops += 1
        if info.may_differ:
            keep_native(self.memory, func, args)
        # this mode is off while its handler runs; others, outside of it, must not see our ops
        guard = torch._C._DisableTorchDispatch() if torch._C._len_torch_dispatch_stack() else None
        try:
            prepared = self._prepare(info, args, kwargs)
            if self.low_side is None:
                out = func(*args, **kwargs)
            else:
                out = self.low_side(info, args, kwargs)
                if out is NotImplemented:
                    out = func(*args, **kwargs)
            if prepared is None:
                self.shadowed += 1
                if info.random and self.observer is not None:
                    self._drew(OpCall(info, args, kwargs), out)
            else:
                self._shadow(info, prepared, out)
            return out
        finally:
            del guard

    # -- before the program's op --------------------------------------------------------------------------------------------------

    def _prepare(self, info: OpInfo, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[OpCall, list[Any], dict[str, Any]] | None:
        """Twins of the operands, as they are before the op. None where the op has nothing to shadow."""
        special = info.special is not None
        if info.touches_nothing and not special:
            return None
        call = OpCall(info, args, kwargs)
        if (info.how is How.REAL or info.how is How.UNINITIALISED) and not special:
            return call, [], {}
        wide = self._wide
        if info.writes:
            writes = info.writes
            hi_args = [wide(call, a, i in writes) for i, a in enumerate(args)]
        else:
            hi_args = [wide(call, a, False) for a in args]
        hi_kwargs: dict[str, Any] = {}
        if kwargs:
            written = info.written_names
            for k, a in kwargs.items():
                if k not in written:
                    hi_kwargs[k] = wide(call, a, False)
                elif not info.is_out:
                    hi_kwargs[k] = wide(call, a, True)
        if not call.inputs:
            if not call.decisions and not info.factory_dtype and info.how is not How.RERUN:
                return None
            if call.decisions:
                own = {id(p.lo): p.hi for p in call.decisions}
                hi_args = [_decided(a, own) for a in hi_args]
                hi_kwargs = {k: _decided(a, own) for k, a in hi_kwargs.items()}
        if info.in_place and self.keep_before is not None:
            before: dict[int, Tensor] = {}
            for index, _ in info.mutated:
                operand = args[index] if index < len(args) else None
                for t in operand if isinstance(operand, (list, tuple)) else (operand,):
                    if isinstance(t, Tensor) and t.is_floating_point() and t.layout == torch.strided and self.keep_before(info, t):
                        before[id(t)] = t.detach().clone()
            call.before = before
        return call, hi_args, hi_kwargs

    def _wide(self, call: OpCall, x: Any, write: bool) -> Any:
        """An argument as the twin's op gets it."""
        if isinstance(x, Tensor):
            memory = self.memory
            if x.dtype in UNIT_ROUNDOFF:
                if x.layout is not torch.strided or x.is_meta:
                    call.obstacle = "a meta tensor has no values" if x.is_meta else f"an operand has no strided storage ({x.layout})"
                    return x
                try:
                    twin = memory.state(x)
                    hi = memory.window(x, twin, write=write)
                except (RuntimeError, NotImplementedError) as error:
                    call.obstacle = str(error).split("\n")[0]
                    return x
                call.inputs.append(Pair(x, hi, twin))
                return hi
            if memory.decisions:
                found = memory.get(x)
                if found is not None and found.decision:
                    hi = memory.window(x, found)
                    call.decisions = [*call.decisions, Pair(x, hi, found)]
                    if write:
                        return x.clone()
            return x.clone() if write else x
        kind = x.__class__
        if kind is list or kind is tuple or isinstance(x, (list, tuple)):
            return [self._wide(call, e, write) for e in x]
        return WIDE.get(x, x) if kind is torch.dtype else x

    # -- after the program's op ---------------------------------------------------------------------------------------------------

    def _shadow(self, info: OpInfo, prepared: tuple[OpCall, list[Any], dict[str, Any]], out: Any) -> None:
        call, hi_args, hi_kwargs = prepared
        call.result = out
        observer = self.observer
        if observer is not None:
            call.module, call.phase, call.place, call.backward = self.locator.locate()
        if info.how is How.READ:
            self.shadowed += 1
            if observer is not None and (call.inputs or call.decisions or isinstance(out, bool)):
                observer.read(call, out)
            return
        if not call.inputs and not call.decisions and not info.mutated and not any(t.dtype in UNIT_ROUNDOFF for t in tensors_of(out)):
            self.shadowed += 1
            return
        inference = torch._C._InferenceMode(False) if torch.is_inference_mode_enabled() else None
        grad = torch.is_grad_enabled()
        torch._C._set_grad_enabled(False)
        try:
            if call.obstacle:
                raise Unshadowable(call.obstacle)
            hi_out = self._run_twin(info, call, hi_args, hi_kwargs, out)
            self._tie(info, call, out, hi_out)
            self.shadowed += 1
            if not info.rule.explicit:
                self.default_rule[info.name] += 1
        except (RuntimeError, NotImplementedError, TypeError, ValueError, IndexError, MemoryError, Unshadowable, KeyError) as error:
            self._give_up(info, call, tensors_of(out), error)
            return
        finally:
            torch._C._set_grad_enabled(grad)
            del inference
        if observer is not None:
            if info.random:
                observer.drew(call)
            if call.outputs:
                observer.op(call)
            if call.decisions:
                observer.used(call)

    def _drew(self, call: OpCall, out: Any) -> None:
        call.result = out
        call.module, call.phase, call.place, call.backward = self.locator.locate()
        if self.observer is not None:
            self.observer.drew(call)

    def _run_twin(self, info: OpInfo, call: OpCall, hi_args: list[Any], hi_kwargs: dict[str, Any], out: Any) -> Any:
        func = info.twin_func
        if info.special is not None:
            return info.special(self.memory, func, call, hi_args, hi_kwargs, out)
        if info.how is How.REAL or info.how is How.UNINITIALISED:
            return _REAL
        if info.order is not None:
            hi_args = [hi_args[i] for i in info.order if i < len(hi_args)]
        if info.is_out and not info.functional:
            for _, name in info.mutated:
                target = call.kwargs.get(name)
                if isinstance(target, Tensor):
                    hi_kwargs[name] = torch.empty(0, dtype=WIDE.get(target.dtype, target.dtype), device=target.device)
                elif target is not None:
                    hi_kwargs[name] = [torch.empty(0, dtype=WIDE.get(t.dtype, t.dtype), device=t.device) for t in target]
        elif info.factory_dtype and hi_kwargs.get("dtype") is None and isinstance(out, Tensor) and out.dtype in UNIT_ROUNDOFF:
            hi_kwargs["dtype"] = WIDE.get(out.dtype, out.dtype)
        reference = info.rule.reference
        if reference is not None:
            return reference(func, hi_args, hi_kwargs)
        return func(*hi_args, **hi_kwargs)

    def _tie(self, info: OpInfo, call: OpCall, out: Any, hi_out: Any) -> None:
        """Bind twins to fresh results; note writes; split decisions off."""
        if hi_out is _REAL:
            self._take_real(info, call)
            return
        if info.mutated:
            self._tie_mutated(info, call, hi_out)
            if info.is_out or not info.fresh_results:
                return
        if info.hidden_writes:
            twins = {id(p.lo): p.twin for p in call.inputs}
            call.events_before = {}
            for index in info.hidden_writes:
                t = call.args[index] if index < len(call.args) else None
                if isinstance(t, Tensor) and id(t) in twins:
                    twin = twins[id(t)]
                    call.events_before[id(t)] = twin.events
                    self.memory.wrote(t, twin)
                    call.outputs.append(Pair(t, self.memory.window(t, twin), twin))
        if isinstance(out, Tensor):
            self._tie_result(call, out, hi_out if isinstance(hi_out, Tensor) else tensors_of(hi_out)[0])
            return
        written = {id(p.lo) for p in call.outputs}
        for lo, hi in _side_by_side(out, hi_out):
            if id(lo) not in written:
                self._tie_result(call, lo, hi)

    def _tie_result(self, call: OpCall, lo: Tensor, hi: Tensor) -> None:
        """A fresh result of the program and its fp64 counterpart."""
        memory = self.memory
        if lo.dtype not in UNIT_ROUNDOFF:
            if self.observer is not None and (call.inputs or call.decisions) and not lo.is_floating_point() and not lo.is_quantized:
                self.observer.decision(call, lo, hi)
            return
        if lo.layout is not torch.strided or lo.is_meta:
            raise Unshadowable("a meta tensor has no values" if lo.is_meta else f"a result has no strided storage ({lo.layout})")
        if hi.dtype not in _WIDES or hi.is_complex() != lo.is_complex():
            hi = hi.to(torch.complex128 if lo.is_complex() else torch.float64)
        buffer = hi.untyped_storage()._cdata
        sharing = None
        for p in call.inputs:
            if p.twin.buffer == buffer:
                sharing = p.twin
                if p.lo is lo or p.lo.untyped_storage()._cdata == lo.untyped_storage()._cdata:
                    return  # the program's op returned an operand, or a view of one
        if hi.shape != lo.shape:
            raise Unshadowable(f"the fp64 run returned shape {tuple(hi.shape)} for {tuple(lo.shape)}")
        twin = memory.bind(lo, hi, sharing=sharing)
        call.outputs.append(Pair(lo, hi if twin.hi is hi else memory.window(lo, twin), twin))

    def _tie_mutated(self, info: OpInfo, call: OpCall, hi_out: Any) -> None:
        """Operands that the op wrote: in place the twins are written already, for ``out=`` the fp64 results are copied."""
        memory = self.memory
        given = info.is_out or info.functional
        results = iter(tensors_of(hi_out)) if given else None
        twins = {id(p.lo): p.twin for p in call.inputs}
        call.events_before = {}
        for index, name in info.mutated:
            operand = call.args[index] if index < len(call.args) else call.kwargs.get(name)
            written = info.functional and not info.func._schema.arguments[index].is_out and info.is_out
            for t in operand if isinstance(operand, (list, tuple)) else (operand,):
                if not isinstance(t, Tensor):
                    continue
                result = next(results, None) if results is not None and not written else None
                if t.dtype not in UNIT_ROUNDOFF:
                    if memory.decisions and (call.inputs or not any(p.lo is t for p in call.decisions)):
                        memory.forget(t)
                    if info.is_out and isinstance(result, Tensor) and self.observer is not None and call.inputs:
                        self.observer.decision(call, t, result)
                    continue
                if result is not None:
                    if result.shape != t.shape:
                        raise Unshadowable("out= was resized differently")
                    if info.is_out and t.numel() * t.element_size() == t.untyped_storage().nbytes():
                        wide = torch.complex128 if t.is_complex() else torch.float64
                        foreign = any(p.twin.buffer == result.untyped_storage()._cdata for p in call.inputs)
                        twin = memory.bind(t, result.to(wide, copy=foreign))
                        memory.wrote(t, twin)
                        call.outputs.append(Pair(t, memory.window(t, twin), twin))
                        continue
                    memory.window(t, memory.state(t), write=True).copy_(result)
                twin = twins.get(id(t)) or memory.state(t)
                call.events_before[id(t)] = twin.events
                memory.wrote(t, twin)
                call.outputs.append(Pair(t, memory.window(t, twin), twin))

    def _take_real(self, info: OpInfo, call: OpCall) -> None:
        """The twin restarts from the program's value: fresh results are adopted at their next use, mutated ones now."""
        for index, name in info.mutated:
            operand = call.args[index] if index < len(call.args) else call.kwargs.get(name)
            for t in operand if isinstance(operand, (list, tuple)) else (operand,):
                if isinstance(t, Tensor) and t.dtype in UNIT_ROUNDOFF:
                    twin = self.memory.get(t)
                    if twin is not None:
                        if t.numel() * t.element_size() >= t.untyped_storage().nbytes():
                            self.memory.forget(t)
                            if twin.power:  # the unit outlives the values
                                self.memory.state(t).power = twin.power
                        else:
                            self.memory.window(t, twin, write=True).copy_(t)
                            self.memory.wrote(t, twin)
        if info.family is Family.COLLECTIVE:
            self.memory.resyncs["collective: results come from other ranks"] += 1

    def _give_up(self, info: OpInfo, call: OpCall, los: list[Tensor], error: Exception) -> None:
        """The op could not be shadowed: its results restart from the real values, and it is counted by name."""
        self.unshadowed[info.name] += 1
        text = str(error).split("\n")[0]
        self.reasons[info.name] = text if isinstance(error, Unshadowable) else f"{type(error).__name__}: {text}"
        names = [a.name for a in info.func._schema.arguments]
        for index, _ in info.mutated:
            operand = call.args[index] if index < len(call.args) else call.kwargs.get(names[index])
            for t in operand if isinstance(operand, (list, tuple)) else (operand,):
                if isinstance(t, Tensor):
                    self.memory.forget(t)
        carried = frozenset().union(*(p.twin.events for p in call.inputs)) if call.inputs else NO_EVENTS
        power = max((p.twin.power for p in call.inputs), key=abs, default=0.0)
        for lo in los:
            if lo.dtype in UNIT_ROUNDOFF and lo.layout == torch.strided:
                self.memory.forget(lo)
                if carried or power:
                    twin = self.memory.state(lo)
                    twin.events, twin.power = carried, power


def _decided(x: Any, own: dict[int, Tensor]) -> Any:
    """An argument with the twin's decisions in place of the program's."""
    if isinstance(x, Tensor):
        return own.get(id(x), x)
    return [_decided(e, own) for e in x] if isinstance(x, (list, tuple)) else x


class _Marker:
    """A result that is no tensor."""


_REAL = _Marker()
_WIDES = (torch.float64, torch.complex128)


def _side_by_side(out: Any, hi_out: Any) -> list[tuple[Tensor, Tensor]]:
    """The tensors of a result with those of the fp64 run at the same places; what either of them left out is left out."""
    if isinstance(out, Tensor):
        return [(out, hi_out)] if isinstance(hi_out, Tensor) else []
    if isinstance(out, (list, tuple)) and isinstance(hi_out, (list, tuple)):
        if len(out) != len(hi_out):
            raise Unshadowable("the fp64 run returned another number of results")
        return [pair for lo, hi in zip(out, hi_out, strict=True) for pair in _side_by_side(lo, hi)]
    return []


_desugaring: dict[type, bool] = {}


def _desugars(kind: type) -> bool:
    """Whether a tensor subclass takes its ops apart itself (DTensor and other wrappers): the mode sees the parts."""
    known = _desugaring.get(kind)
    if known is None:
        own = getattr(kind, "__torch_dispatch__", None)
        plain = (Tensor.__torch_dispatch__, torch._C._disabled_torch_dispatch_impl)
        known = _desugaring[kind] = not issubclass(kind, Tensor) or not any(own == p for p in plain)
    return known
