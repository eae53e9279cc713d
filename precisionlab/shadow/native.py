"""Gradients that autograd computes by another formula as soon as any dispatch mode is active.

A few backward functions (``isTensorSubclassLike`` in torch/csrc/autograd/FunctionsManual.cpp) take a slower, composite path when a mode
is on, which rounds differently in half precision, or returns -0 for 0. The audit must not change a bit, so when such a node runs, its
result is replaced by what the same forward op gives without a mode; the twin stays that of the composite path, which in fp64 is the
same function. Not under ``create_graph``: there the composite path is what is differentiated again.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from precisionlab.shadow.memory import ShadowMemory

Tensor = torch.Tensor
aten = torch.ops.aten

_FORWARD: dict[str, tuple[Any, Callable[[Any], Callable[[Tensor], Tensor]]]] = {
    "ProdBackward0": (aten.mul.Tensor, lambda node: torch.prod),
    "ProdBackward1": (aten.mul.Tensor, lambda node: partial(torch.prod, dim=node._saved_dim, keepdim=True)),
    "MaxBackward1": (aten.div.Tensor, lambda node: torch.max),
    "MinBackward1": (aten.div.Tensor, lambda node: torch.min),
    "MedianBackward0": (aten.div.Tensor, lambda node: torch.median),
    "NanmedianBackward0": (aten.div.Tensor, lambda node: torch.nanmedian),
}
"""Autograd node -> (the op of its composite path whose last call has the incoming gradient in front, the forward op)."""

LOOK_AT = frozenset((aten.mul.Tensor, aten.div.Tensor))
"""Ops in front of which to ask which node is running."""


def keep_native(memory: ShadowMemory, func: Any, args: tuple[Any, ...]) -> None:
    """If the running autograd node is one of the above, see to it that its result is the one without a mode."""
    node = torch._C._current_autograd_node()
    if node is None or torch.is_grad_enabled():
        return
    known = _FORWARD.get(node.name())
    if known is None or func is not known[0]:
        return
    state = node.metadata.get("precisionlab")
    if state is not None:
        state["incoming"] = args[0]
        return
    state = node.metadata["precisionlab"] = {"incoming": args[0]}
    # the hook must not hold the node that holds it
    operand, metadata, forward = node._saved_self.detach(), node.metadata, known[1](node)

    def replace(gradients: tuple[Any, ...], _: tuple[Any, ...]) -> tuple[Any, ...] | None:
        handle.remove()
        del metadata["precisionlab"]
        (composite,) = gradients
        if composite is None:
            return None
        with torch._C._DisableTorchDispatch():
            with torch.enable_grad():
                x = operand.clone().requires_grad_()
                (plain,) = torch.autograd.grad(forward(x), x, state["incoming"])
            memory.move(composite, plain)
        return (plain,)

    handle = node.register_hook(replace)
