"""Applying a plan: what runs inside its regions is computed in fp32, and what leaves them goes back to the program's format.

A ``TorchFunctionMode`` sees each call. Inside a region half operands are widened (differentiably, so the backward pass of the region is
fp32 as well), autocast is off, casts to half and half results stay fp32. Each widened tensor is remembered with the format that the
program expects; the first call outside of the region that takes it gets it in that format. No parameter, buffer or state_dict changes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode, resolve_name
from torch.utils import _pytree as pytree
from torch.utils.weak import WeakIdKeyDictionary

from precisionlab.errors import SettingsError
from precisionlab.plans.change import Change, Where, load_plan
from precisionlab.shadow.sites import ModuleStack

HALVES = (torch.float16, torch.bfloat16)
_CASTS = frozenset(("to", "type", "type_as", "half", "bfloat16", "float", "double"))
_MATRIX = frozenset(
    {"linear", "matmul", "__matmul__", "mm", "bmm", "addmm", "baddbmm", "addbmm", "mv", "dot", "einsum", "bilinear"}
    | {"conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d"}
    | {"scaled_dot_product_attention", "multi_head_attention_forward"}
)
"""Functions that autocast lowers: their results would have its format."""
_READS = frozenset(
    {"backward", "grad", "item", "tolist", "numpy", "detach", "requires_grad_", "register_hook", "retain_grad", "isfinite", "isnan"}
    | {"isinf", "size", "dim", "numel", "stride", "storage_offset", "is_floating_point", "is_complex", "data_ptr", "element_size"}
    | {"untyped_storage", "is_contiguous", "__repr__", "__len__", "__bool__", "__float__", "__int__", "__get__", "__set__", "__format__"}
)
"""Calls that look at a tensor or lead away from arithmetic: nothing is cast for them."""


class PlanMode(TorchFunctionMode):
    """Active plan. ``changes``: their regions; those that are none (loss scale, masters) are not its business."""

    def __init__(self, changes: Sequence[Change], root: nn.Module | None = None) -> None:
        super().__init__()
        self.regions = [change for change in changes if change.is_region]
        self.inside: Change | None = None
        """The region of the call that runs now."""
        self.used: set[int] = set()
        """Indices of regions in which something ran."""
        self._modules = ModuleStack()
        self._modules.preferred = root
        self._everything = next((i for i, c in enumerate(self.regions) if c.where is Where.PROGRAM), None)
        self._paths = {c.module: i for i, c in enumerate(self.regions) if c.where is Where.MODULE}
        self._code = [(i, c) for i, c in enumerate(self.regions) if c.where in (Where.FUNCTION, Where.LINE)]
        self._frames: dict[int, tuple[Any, list[tuple[int, Change]]]] = {}
        self._stems: dict[Any, str] = {}
        self._widened: Any = WeakIdKeyDictionary()
        self._hooks: list[Any] = []
        self._stepping = 0
        """Depth of ``Optimizer.step``: optimizers keep their formats."""

    def __enter__(self) -> Any:
        from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

        if self._paths:
            self._modules.install()
        self._hooks = [register_optimizer_step_pre_hook(self._before_step), register_optimizer_step_post_hook(self._after_step)]
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._modules.remove()
        for hook in self._hooks:
            hook.remove()
        self._hooks, self._stepping = [], 0

    def _before_step(self, *given: Any) -> None:
        self._stepping += 1

    def _after_step(self, *given: Any) -> None:
        self._stepping -= 1

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        stem = self._stems.get(func)
        if stem is None:
            stem = self._stems[func] = _stem(func)
        if stem in _READS or self._stepping:
            return func(*args, **kwargs)
        index = self._region()
        if index is None:
            if self._widened and not (stem in _CASTS and not _to_half(stem, args, kwargs)):
                args, kwargs = _map(args, self._back), {k: _map(v, self._back) for k, v in kwargs.items()}
            return func(*args, **kwargs)
        self.used.add(index)
        outer, self.inside = self.inside, self.regions[index]
        try:
            return self._wide_call(func, stem, args, kwargs)
        finally:
            self.inside = outer

    # -- regions --------------------------------------------------------------------------------------------------------------------

    def _region(self) -> int | None:
        if self._everything is not None:
            return self._everything
        if self._paths:
            for path in self._modules.paths:
                found = self._paths.get(path)
                if found is not None:
                    return found
        return self._frame_region() if self._code else None

    def _frame_region(self) -> int | None:
        frame = sys._getframe(3)
        while frame is not None:
            code = frame.f_code
            known = self._frames.get(id(code))
            if known is None:
                known = self._frames[id(code)] = (code, [(i, c) for i, c in self._code if _is_code(code, c)])
            for i, change in known[1]:
                if change.where is Where.FUNCTION or frame.f_lineno == change.line:
                    return i
            frame = frame.f_back  # type: ignore[assignment]
        return None

    # -- calls ----------------------------------------------------------------------------------------------------------------------

    def _wide_call(self, func: Any, stem: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        expected = self._expected(stem, args, kwargs)
        if stem in _CASTS:
            half = _to_half(stem, args, kwargs)
            if half is None:
                return func(*args, **kwargs)
            return self._remember(args[0] if args[0].dtype is torch.float32 else args[0].float(), half)
        if _in_place(stem) and args and isinstance(args[0], Tensor):
            if args[0].dtype in HALVES:  # the program's own half storage is written: it keeps its format
                return func(*args, **kwargs)
            return func(args[0], *_map(args[1:], _widen), **{k: _map(v, _widen) for k, v in kwargs.items()})
        if kwargs.get("out") is not None:
            return func(*_map(args, self._back), **{k: _map(v, self._back) for k, v in kwargs.items()})
        device = next((t.device.type for t in _tensors((args, kwargs))), "cpu")
        with torch.autocast(device, enabled=False):
            out = func(*_map(args, _widen), **{k: _map(v, _widen) for k, v in kwargs.items()})
            return _map(out, lambda t: self._result(t, expected))

    def _result(self, t: Tensor, expected: torch.dtype | None) -> Tensor:
        if t.dtype in HALVES:
            return self._remember(t.float(), t.dtype)
        if t.dtype is torch.float32 and expected is not None:
            return self._remember(t, expected)
        return t

    def _expected(self, stem: str, args: Any, kwargs: Any) -> torch.dtype | None:
        """The half format that the result would have had; None where it would not have been half."""
        tensors = [t for t in _tensors((args, kwargs)) if t.is_floating_point()]
        if stem in _MATRIX and tensors and torch.is_autocast_enabled(tensors[0].device.type):
            return torch.get_autocast_dtype(tensors[0].device.type)
        formats = [self._widened.get(t, t.dtype) for t in tensors if t.dim() > 0] or [self._widened.get(t, t.dtype) for t in tensors]
        if not formats or any(f not in HALVES for f in formats):
            return None
        return formats[0] if all(f is formats[0] for f in formats) else None

    def _remember(self, t: Tensor, half: torch.dtype) -> Tensor:
        self._widened[t] = half
        return t

    def _back(self, t: Tensor) -> Tensor:
        half = self._widened.get(t)
        return t if half is None or t.dtype is not torch.float32 else t.to(half)


class apply_plan:
    """``with pl.apply_plan(model, "plan.json"): ...``, or ``handle = pl.apply_plan(model, changes).start()`` and ``handle.remove()``.

    Modules are those below ``model``. Works under autocast and in training; parameters and state_dict stay as they are.

    Raises ``SettingsError`` for a plan whose modules ``model`` does not have.
    """

    def __init__(self, model: nn.Module, plan: str | Sequence[Change]) -> None:
        if not isinstance(model, nn.Module):
            raise SettingsError(f"a plan is applied to an nn.Module, not {type(model).__name__}", hint="apply_plan(model, 'plan.json')")
        changes, head = load_plan(plan) if isinstance(plan, str) else (list(plan), {})
        names = {name for name, _ in model.named_modules()} | {type(model).__name__}
        for change in changes:
            if change.where is Where.MODULE and change.module not in names:
                made_for = f" (made for {head['model']})" if head.get("model") else ""
                raise SettingsError(
                    f"the plan speaks of module {change.module!r}, which {type(model).__name__} does not have{made_for}",
                    hint="make a plan for this model: precisionlab plan TARGET",
                )
        self.changes = changes
        self._model = model
        self._mode: PlanMode | None = None

    def start(self) -> apply_plan:
        """Switch it on."""
        self._mode = PlanMode(self.changes, self._model)
        self._mode.__enter__()
        return self

    def remove(self) -> None:
        """Switch it off."""
        if self._mode is not None:
            self._mode.__exit__(None, None, None)
            self._mode = None

    def __enter__(self) -> apply_plan:
        return self.start()

    def __exit__(self, *error: Any) -> None:
        self.remove()


def _stem(func: Any) -> str:
    name: str = resolve_name(func) or getattr(func, "__name__", "")
    return name.rpartition(".")[2]


def _in_place(stem: str) -> bool:
    return (stem.endswith("_") and not stem.endswith("__")) or (
        stem.startswith("__i") and stem not in ("__invert__", "__int__", "__index__")
    )


def _is_code(code: Any, change: Change) -> bool:
    name = code.co_qualname if sys.version_info >= (3, 11) else code.co_name
    own: str = code.co_filename
    if own != change.file and not own.endswith(("/" + change.file, "\\" + change.file)):
        return False
    return change.where is Where.LINE or name == change.function


def _to_half(stem: str, args: Any, kwargs: Any) -> torch.dtype | None:
    """The half format that a cast asks for; None for any other."""
    if stem in ("half", "bfloat16"):
        return torch.float16 if stem == "half" else torch.bfloat16
    for a in (*args[1:], *kwargs.values()):
        wanted = a.dtype if isinstance(a, Tensor) and stem in ("to", "type_as") else a
        if isinstance(wanted, torch.dtype):
            return wanted if wanted in HALVES else None
    return None


def _widen(t: Tensor) -> Tensor:
    return t.float() if t.dtype in HALVES else t


def _tensors(x: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(x) if isinstance(leaf, Tensor)]


def _map(x: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """``x`` with each tensor changed, through lists, tuples, dicts and torch's named results."""
    return pytree.tree_map_only(Tensor, change, x)
