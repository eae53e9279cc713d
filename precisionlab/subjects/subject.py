"""``Subject``: a model with what is needed to run training steps of it. No torch in here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from precisionlab.errors import SubjectError


@dataclass(slots=True)
class Subject:
    """What a subject file exports.

    Raises ``SubjectError`` when ``loss`` or ``optimizer`` is not a function, or a size is not a positive integer.
    """

    model: Any
    """An ``nn.Module``, or a function without arguments that builds one. An instance is copied before it is changed."""
    batch: Any
    """One batch used in every step, or a function ``batch(step, **sizes)``; ``step`` counts from 0."""
    loss: Callable[[Any, Any], Any]
    """``loss(model, batch)`` returns a tensor of one element."""
    optimizer: Callable[[Any], Any] | None = None
    """``optimizer(params)`` builds a ``torch.optim.Optimizer`` over a list of parameters."""
    sizes: dict[str, int] | None = None
    """What may grow, with defaults: ``{"seq_len": 128, "depth": 4, "batch_size": 8}``."""
    name: str = ""
    """How reports call it."""
    notes: tuple[str, ...] = ()
    """Things a reader of the report must know about it (``the loss is a stand-in``)."""

    def __post_init__(self) -> None:
        if not callable(self.loss):
            raise SubjectError(
                f"loss must be a function loss(model, batch), got {type(self.loss).__name__}",
                hint="export a function that calls the model and returns a tensor of one element",
            )
        if self.optimizer is not None and (not callable(self.optimizer) or hasattr(self.optimizer, "param_groups")):
            raise SubjectError(
                f"optimizer must be a function optimizer(params), got {type(self.optimizer).__name__}",
                hint="optimizer = lambda params: torch.optim.AdamW(params, lr=1e-3)",
            )
        for axis, size in (self.sizes or {}).items():
            if isinstance(size, bool) or not isinstance(size, int) or size < 1:
                raise SubjectError(f"sizes[{axis!r}] must be a positive integer, got {size!r}", hint="sizes = {'seq_len': 128}")
