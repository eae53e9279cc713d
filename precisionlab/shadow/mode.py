"""The dispatch mode that runs every op a second time in fp64.

For each op: make the fp64 operands (windows on the twins), run the program's op untouched, run the op on the twins, tie the results
together in shadow memory, and hand an ``OpCall`` to the observer, alive only during the call. The program's own results are returned as
they are; random ops are never run twice; integer and bool results are always the program's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from precisionlab.ops.registry import Family, How
from precisionlab.records import Phase
from precisionlab.shadow.memory import NO_EVENTS, UNIT_ROUNDOFF, ShadowMemory, Twin
from precisionlab.shadow.opinfo import WIDE, OpInfo
from precisionlab.shadow.sites import Locator, Place
from precisionlab.shadow.special import SPECIAL, Unshadowable

Tensor = torch.Tensor


UNMEASURED = object()
"""The local error of a call that nobody has asked for yet."""


class Pair:
    """A real tensor with its twin and the twin's window."""

    __slots__ = ("lo", "hi", "twin")

    def __init__(self, lo: Tensor, hi: Tensor, twin: Twin) -> None:
        self.lo = lo
        self.hi = hi
        self.twin = twin


class OpCall:
    """One executed op as the trackers see it."""

    __slots__ = ("info", "module", "phase", "place", "backward", "args", "kwargs", "inputs", "outputs", "before", "decisions", "events_before", "result", "local", "obstacle")

    def __init__(self, info: OpInfo, module: str, phase: Phase, place: Place, backward: bool, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.info = info
        self.module = module
        self.phase = phase
        self.place = place
        self.backward = backward
        self.args = args
        self.kwargs = kwargs
        self.inputs: list[Pair] = []
        self.outputs: list[Pair] = []
        self.before: dict[int, Tensor] = {}
        """id of a mutated operand -> its real value before the op (kept only where a rule needs it)."""
        self.decisions: list[Pair] = []
        """Integer or bool operands that the twin decided otherwise."""
        self.events_before: dict[int, frozenset[int]] = {}
        self.result: Any = None
        self.local: Any = UNMEASURED
        self.obstacle = ""
        """Why this call cannot be shadowed, when an operand already says so."""


class Observer(Protocol):
    """What a session wants to hear of."""

    def op(self, call: OpCall) -> None:
        """A shadowed op with floating results."""

    def decision(self, call: OpCall, lo: Tensor, hi: Tensor) -> None:
        """An op with integer or bool results, and what the twin would have decided."""

    def used(self, call: OpCall) -> None:
        """An op that used integer or bool operands the twin decided otherwise."""

    def read(self, call: OpCall, value: Any) -> None:
        """A number left for Python."""


class ShadowMode(TorchDispatchMode):
    """See the module docstring. ``observer`` may be None: twins are kept and nothing is measured."""

    def __init__(self, memory: ShadowMemory, locator: Locator, observer: Observer | None, *, keep_before: Callable[[OpInfo, Tensor], bool] | None = None) -> None:
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
        kwargs = kwargs or {}
        if types and any(not issubclass(t, (torch.Tensor,)) or hasattr(t, "__tensor_flatten__") for t in types):
            return NotImplemented
        info = self._infos.get(func)
        if info is None:
            info = self._infos[func] = OpInfo(func)
        if info.how is How.VIEW:
            return self._view(info, func, args, kwargs)
        if torch.is_inference_mode_enabled():
            composite = _decompose(self, func, args, kwargs)
            if composite is not NotImplemented:
                return composite
        self.ops += 1
        guard = torch._C._DisableTorchDispatch()
        try:
            prepared = self._prepare(info, args, kwargs)
            out = self._run_real(info, func, args, kwargs)
            if prepared is not None:
                self._shadow(info, func, prepared, out)
            else:
                self.shadowed += 1
            return out
        finally:
            del guard

    def _run_real(self, info: OpInfo, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.low_side is not None:
            out = self.low_side(info, args, kwargs)
            if out is not NotImplemented:
                return out
        return func(*args, **kwargs)

    def _view(self, info: OpInfo, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return func(*args, **kwargs)

    # -- before the program's op --------------------------------------------------------------------------------------------------

    def _prepare(self, info: OpInfo, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[OpCall, list[Any], dict[str, Any]] | None:
        """Twins of the operands, as they are before the op. None where the op has nothing to shadow."""
        call = OpCall(info, "", Phase.OTHER, _NO_PLACE, False, args, kwargs)
        if info.how is How.REAL or info.how is How.UNINITIALISED:
            return (call, [], {}) if info.mutated or info.rule.family is Family.COLLECTIVE or info.func._overloadpacket in SPECIAL else None
        mutated = info.writes
        hi_args = [self._wide(call, a, i in mutated) for i, a in enumerate(args)]
        hi_kwargs = {k: self._wide(call, a, k in info.written_names) for k, a in kwargs.items() if not (info.is_out and k in info.written_names)}
        inputs = call.inputs
        if not inputs and not call.decisions and not info.factory_dtype and info.how is not How.RERUN:
            return None
        if call.decisions and not inputs:
            own = {id(p.lo): p.hi for p in call.decisions}
            hi_args = [_decided(a, own) for a in hi_args]
            hi_kwargs = {k: _decided(a, own) for k, a in hi_kwargs.items()}
        if info.mutated and self.keep_before is not None and not info.is_out:
            for index, _ in info.mutated:
                operand = args[index] if index < len(args) else None
                for t in operand if isinstance(operand, (list, tuple)) else (operand,):
                    if isinstance(t, Tensor) and t.is_floating_point() and self.keep_before(info, t):
                        call.before[id(t)] = t.clone()
        return call, hi_args, hi_kwargs

    def _wide(self, call: OpCall, x: Any, write: bool) -> Any:
        """An argument as the twin's op gets it."""
        if isinstance(x, Tensor):
            memory = self.memory
            if x.dtype in UNIT_ROUNDOFF:
                if x.layout != torch.strided:
                    call.obstacle = f"operand without a strided storage ({x.layout})"
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
                    call.decisions.append(Pair(x, memory.window(x, found), found))
            return x.clone() if write else x
        if isinstance(x, torch.dtype):
            return WIDE.get(x, x)
        if isinstance(x, (list, tuple)):
            return [self._wide(call, e, write) for e in x]
        return x

    # -- after the program's op ---------------------------------------------------------------------------------------------------

    def _shadow(self, info: OpInfo, func: Any, prepared: tuple[OpCall, list[Any], dict[str, Any]], out: Any) -> None:
        call, hi_args, hi_kwargs = prepared
        call.module, call.phase, call.place, call.backward = self.locator.locate()
        call.result = out
        how = info.how
        if how is How.READ:
            self.shadowed += 1
            if self.observer is not None and (call.inputs or call.decisions):
                self.observer.read(call, out)
            return
        los = tensors_of(out)
        if not info.mutated and not call.inputs and not call.decisions and not any(t.dtype in UNIT_ROUNDOFF for t in los):
            self.shadowed += 1
            return
        inference = torch._C._InferenceMode(False) if torch.is_inference_mode_enabled() else None
        try:
            with torch.no_grad():
                if call.obstacle:
                    raise Unshadowable(call.obstacle)
                hi_out = self._run_twin(info, func, call, hi_args, hi_kwargs, out)
                self._tie(info, call, los, hi_out)
            self.shadowed += 1
            if not info.rule.explicit:
                self.default_rule[info.name] += 1
        except (RuntimeError, NotImplementedError, TypeError, ValueError, IndexError, MemoryError, Unshadowable, KeyError) as error:
            self._give_up(info, call, los, error)
            return
        finally:
            del inference
        if self.observer is not None:
            if call.outputs:
                self.observer.op(call)
            if call.decisions:
                self.observer.used(call)

    def _run_twin(self, info: OpInfo, func: Any, call: OpCall, hi_args: list[Any], hi_kwargs: dict[str, Any], out: Any) -> Any:
        special = SPECIAL.get(func._overloadpacket)
        if special is not None:
            return special(self.memory, func, call, hi_args, hi_kwargs, out)
        if info.how is How.REAL or info.how is How.UNINITIALISED:
            return _REAL
        if info.is_out:
            for _, name in info.mutated:
                target = call.kwargs.get(name)
                if isinstance(target, Tensor):
                    hi_kwargs[name] = torch.empty(0, dtype=WIDE.get(target.dtype, target.dtype), device=target.device)
                elif target is not None:
                    hi_kwargs[name] = [torch.empty(0, dtype=WIDE.get(t.dtype, t.dtype), device=t.device) for t in target]
        elif info.factory_dtype and hi_kwargs.get("dtype") is None and isinstance(out, Tensor) and out.dtype in UNIT_ROUNDOFF:
            hi_kwargs["dtype"] = WIDE.get(out.dtype, out.dtype)
        if info.rule.reference is not None:
            if info.mutated and not info.listed:
                self._write_reference(info, func, call, hi_args, hi_kwargs)
                return _IN_PLACE
            return info.rule.reference(func, hi_args, hi_kwargs)
        return func(*hi_args, **hi_kwargs)

    def _write_reference(self, info: OpInfo, func: Any, call: OpCall, hi_args: list[Any], hi_kwargs: dict[str, Any]) -> None:
        """A functional reference for an in-place or ``out=`` overload: its results are copied into the mutated twins."""
        assert info.rule.reference is not None
        targets = [n for _, n in info.mutated]
        names = [a.name for a in func._schema.arguments]
        results = info.rule.reference(func, hi_args, {k: v for k, v in hi_kwargs.items() if not (info.is_out and k in targets)})
        results = results if isinstance(results, (tuple, list)) else (results,)
        for (index, name), result in zip(info.mutated, results, strict=False):
            if info.is_out:
                hi_kwargs[name] = result
            elif isinstance(result, Tensor):
                (hi_args[index] if index < len(hi_args) else hi_kwargs[names[index]]).copy_(result)

    def _tie(self, info: OpInfo, call: OpCall, los: list[Tensor], hi_out: Any) -> None:
        """Bind twins to fresh results; note writes; split decisions off."""
        memory = self.memory
        if hi_out is _REAL:
            self._take_real(info, call)
            return
        if info.mutated:
            self._tie_mutated(info, call, hi_out)
            if not info.func._schema.returns or info.is_out or info.in_place and len(info.func._schema.returns) <= len(info.mutated):
                return
        for index in info.hidden_writes:
            self._note_write(call, call.args[index] if index < len(call.args) else None)
        his = tensors_of(hi_out)
        if len(his) != len(los):
            raise Unshadowable("the fp64 run returned another number of tensors")
        by_lo = {id(p.lo) for p in call.outputs}
        sources = {p.lo.untyped_storage()._cdata for p in call.inputs}
        for lo, hi in zip(los, his, strict=True):
            if id(lo) in by_lo:
                continue
            if lo.dtype in UNIT_ROUNDOFF:
                if lo.layout != torch.strided:
                    raise Unshadowable(f"result without a strided storage ({lo.layout})")
                if lo.untyped_storage()._cdata in sources:
                    continue
                if hi.shape != lo.shape:
                    raise Unshadowable(f"the fp64 run returned shape {tuple(hi.shape)} for {tuple(lo.shape)}")
                if hi.dtype not in _WIDES:
                    hi = hi.to(WIDE.get(lo.dtype, lo.dtype) if lo.is_complex() == hi.is_complex() else torch.float64)
                owned = hi.untyped_storage()
                shared = next((p.twin for p in call.inputs if p.twin.hi.untyped_storage()._cdata == owned._cdata), None)
                if shared is not None:
                    shared.cow = True
                twin = memory.bind(lo, hi, shared=shared is not None)
                call.outputs.append(Pair(lo, memory.window(lo, twin), twin))
            elif self.observer is not None and (call.inputs or call.decisions):
                self.observer.decision(call, lo, hi)

    def _tie_mutated(self, info: OpInfo, call: OpCall, hi_out: Any) -> None:
        memory = self.memory
        names = [a.name for a in info.func._schema.arguments]
        hi_results = iter(tensors_of(hi_out)) if info.is_out and hi_out is not _IN_PLACE else None
        for index, name in info.mutated:
            operand = call.args[index] if index < len(call.args) else call.kwargs.get(names[index])
            for t in operand if isinstance(operand, (list, tuple)) else (operand,):
                if not isinstance(t, Tensor):
                    continue
                result = next(hi_results, None) if hi_results is not None else None
                if t.dtype not in UNIT_ROUNDOFF:
                    if info.is_out and isinstance(result, Tensor) and self.observer is not None and call.inputs:
                        self.observer.decision(call, t, result)
                    continue
                if result is not None:
                    twin = memory.state(t)
                    if result.shape != t.shape:
                        raise Unshadowable("out= was resized differently")
                    memory.window(t, twin, write=True).copy_(result)
                self._note_write(call, t)

    def _note_write(self, call: OpCall, t: Any) -> None:
        if isinstance(t, Tensor) and t.dtype in UNIT_ROUNDOFF:
            twin = next((p.twin for p in call.inputs if p.lo is t), None) or self.memory.state(t)
            call.events_before[id(t)] = twin.events
            self.memory.wrote(t, twin)
            call.outputs.append(Pair(t, self.memory.window(t, twin), twin))

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
        for lo in los:
            if lo.dtype in UNIT_ROUNDOFF and lo.layout == torch.strided:
                self.memory.forget(lo)
                if carried:
                    self.memory.state(lo).events = carried


def _decided(x: Any, own: dict[int, Tensor]) -> Any:
    """An argument with the twin's decisions in place of the program's."""
    if isinstance(x, Tensor):
        return own.get(id(x), x)
    return [_decided(e, own) for e in x] if isinstance(x, (list, tuple)) else x


class _Marker:
    """A result that is no tensor."""


_REAL = _Marker()
_IN_PLACE = _Marker()
_WIDES = (torch.float64, torch.complex128)
_NO_PLACE = Place("", 0, "")


def tensors_of(x: Any) -> list[Tensor]:
    """Tensors of a result in order, through nested sequences."""
    if isinstance(x, Tensor):
        return [x]
    if isinstance(x, (list, tuple)):
        return [t for e in x for t in tensors_of(e)]
    return []


def _decompose(mode: ShadowMode, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Composite ops reach a mode whole under inference mode; take them apart so that their parts are seen."""
    if not func._can_decompose() or not torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"):
        return NotImplemented
    with mode:
        return func.decompose(*args, **kwargs)
