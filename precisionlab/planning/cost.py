"""What a plan costs: the share of the forward pass's FLOPs, bytes and parameters that leaves the low precision."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from precisionlab.planning.apply import PlanMode
from precisionlab.plans.change import Change


class Meter(TorchDispatchMode):
    """Counts FLOPs (matrix products, convolutions and attention, as torch's own counter does) and bytes of results.

    To be entered after its ``plan``, which applies the changes.
    """

    def __init__(self, changes: Sequence[Change]) -> None:
        super().__init__()
        self.plan = Counting(changes)
        self.flops = [0.0, 0.0]
        self.bytes = [0.0, 0.0]

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if torch._C._current_autograd_node() is None:
            inside = self.plan.inside is not None
            count = flop_registry.get(func._overloadpacket)
            if count is not None:
                self.flops[inside] += float(count(*args, **kwargs, out_val=out))
            results = out if isinstance(out, (tuple, list)) else (out,)
            self.bytes[inside] += sum(t.numel() * t.element_size() for t in results if isinstance(t, Tensor) and t.is_floating_point())
        return out

    def shares(self) -> dict[str, float]:
        """``flops``, ``bytes`` and ``parameters``: shares in [0, 1] that left the low precision."""
        lifted = self.plan.parameters[1]
        rest = {key: count for key, count in self.plan.parameters[0].items() if key not in lifted}
        return {
            "flops": _share(self.flops[1], sum(self.flops)),
            "bytes": _share(self.bytes[1], sum(self.bytes)),
            "parameters": _share(sum(lifted.values()), sum(lifted.values()) + sum(rest.values())),
        }


class Counting(PlanMode):
    """A plan that notes which parameters its regions use."""

    def __init__(self, changes: Sequence[Change]) -> None:
        super().__init__(changes)
        self.parameters: list[dict[int, int]] = [{}, {}]

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        index = self._region()
        for each in (*args, *(kwargs or {}).values()):
            if isinstance(each, nn.Parameter):
                self.parameters[index is not None][id(each)] = each.numel()
        return super().__torch_function__(func, types, args, kwargs)


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
