"""Gradients that autograd computes by another formula as soon as any dispatch mode is active.

A few backward functions (``isTensorSubclassLike`` in torch/csrc/autograd/FunctionsManual.cpp) take a slower, composite path when a mode
is on, which rounds differently in half precision, or returns -0 for 0. The audit must not change a bit, so when such a node runs, its
result is replaced by what the same forward op gives without a mode; the twin stays that of the composite path, which in fp64 is the
same function. Not under ``create_graph``: there the composite path is what is differentiated again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from precisionlab.shadow.memory import ShadowMemory

Tensor = torch.Tensor
aten = torch.ops.aten

FORWARD: dict[str, Callable[[Tensor], Tensor]] = {
    "ProdBackward0": lambda x: x.prod(),
    "MaxBackward1": lambda x: x.max(),
    "MinBackward1": lambda x: x.min(),
    "MedianBackward0": lambda x: x.median(),
    "NanmedianBackward0": lambda x: x.nanmedian(),
}
"""Autograd node -> the op whose backward it is."""

FIRST_OPS = frozenset((aten.eq.Tensor, aten.cumprod.default, aten.isnan.default))
"""What the composite paths run: where to look which node is running."""


def keep_native(memory: ShadowMemory) -> None:
    """If the running autograd node is one of ``FORWARD``, see to it that its result is the one without a mode."""
    node = torch._C._current_autograd_node()
    if node is None or torch.is_grad_enabled():
        return
    forward = FORWARD.get(node.name())
    if forward is None or "precisionlab" in node.metadata:
        return
    node.metadata["precisionlab"] = True
    # the hook must not hold the node that holds it
    operand, metadata = node._saved_self.detach(), node.metadata

    def replace(gradients: tuple[Any, ...], incoming: tuple[Any, ...]) -> tuple[Any, ...] | None:
        handle.remove()
        del metadata["precisionlab"]
        (composite,) = gradients
        if composite is None or incoming[0] is None:
            return None
        with torch._C._DisableTorchDispatch():
            with torch.enable_grad():
                x = operand.clone().requires_grad_()
                (plain,) = torch.autograd.grad(forward(x), x, incoming[0])
            memory.move(composite, plain)
        return (plain,)

    handle = node.register_hook(replace)
