"""The plan of a run (which dtype, amp or pure), the training loop that people write for it, and the registry of programs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

Step = Callable[[int], Tensor]
"""Runs step ``i`` of a program; returns its loss."""


@dataclass(frozen=True)
class Plan:
    """``amp``: fp32 parameters under autocast (and GradScaler for fp16). ``pure``: parameters in ``dtype``, fp32 masters beside."""

    dtype: torch.dtype
    mode: str

    def __str__(self) -> str:
        return f"{self.dtype_name} {self.mode}"

    @property
    def dtype_name(self) -> str:
        """``fp16`` or ``bf16``."""
        return "fp16" if self.dtype is torch.float16 else "bf16"

    @property
    def amp(self) -> bool:
        """Whether autocast chooses the dtypes."""
        return self.mode == "amp"

    def model(self, module: nn.Module) -> nn.Module:
        """The module as this plan wants it. Batch normalisation stays in fp32, as every recipe for half networks says."""
        if self.amp:
            return module
        module.to(self.dtype)
        for part in module.modules():
            if isinstance(part, nn.modules.batchnorm._BatchNorm):
                part.float()
        return module

    def data(self, x: Tensor) -> Tensor:
        """Floating inputs as this plan wants them."""
        return x if self.amp or not x.is_floating_point() else x.to(self.dtype)

    def autocast(self) -> Any:
        """The context of a forward pass."""
        return torch.autocast("cpu", dtype=self.dtype) if self.amp else contextlib.nullcontext()


PLANS = tuple(Plan(dtype, mode) for dtype in (torch.float16, torch.bfloat16) for mode in ("amp", "pure"))


def adamw(lr: float = 1e-3) -> Callable[[Iterable[Tensor]], torch.optim.Optimizer]:
    """AdamW with the usual settings."""
    return lambda params: torch.optim.AdamW(params, lr=lr)


class Trainer:
    """The step of a careful training loop: forward under the plan, scaled backward, unscale, clip, optimizer step.

    amp fp16 uses ``GradScaler``; pure modes keep fp32 masters of the parameters, and pure fp16 scales the loss by a fixed 1024.
    """

    def __init__(
        self,
        plan: Plan,
        model: nn.Module,
        optimizer: Callable[[Iterable[Tensor]], torch.optim.Optimizer] | None = None,
        *,
        clip: float | None = 1.0,
        init_scale: float = 2.0**16,
    ) -> None:
        self.plan = plan
        self.clip = clip
        self.params = [p for p in model.parameters() if p.requires_grad]
        self.masters = self.params if plan.amp else [p.detach().float().clone().requires_grad_() for p in self.params]
        self.optimizer = (optimizer or adamw())(self.masters)
        fp16 = plan.dtype is torch.float16
        self.scaler = torch.amp.GradScaler("cpu", init_scale=init_scale, enabled=fp16 and plan.amp)
        self.static_scale = 1024.0 if fp16 and not plan.amp else 1.0

    def step(self, loss: Callable[[], Tensor], micro_batches: int = 1) -> Tensor:
        """One optimizer step; ``loss`` is called once a micro-batch."""
        for p in self.params:
            p.grad = None
        for _ in range(micro_batches):
            with self.plan.autocast():
                value = loss()
            self.backward(value / micro_batches if micro_batches > 1 else value)
        self.update()
        return value.detach()

    def backward(self, value: Tensor) -> None:
        """Backward of the scaled loss."""
        value = self.scaler.scale(value) if self.plan.amp else value * self.static_scale if self.static_scale != 1.0 else value
        value.backward()

    def update(self) -> None:
        """From scaled gradients to new weights."""
        if not self.plan.amp:
            for p, master in zip(self.params, self.masters, strict=True):
                master.grad = None if p.grad is None else p.grad.float() / self.static_scale
        self.scaler.unscale_(self.optimizer)
        if self.clip is not None:
            nn.utils.clip_grad_norm_(self.masters, self.clip)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        if not self.plan.amp:
            with torch.no_grad():
                for p, master in zip(self.params, self.masters, strict=True):
                    p.copy_(master)


@dataclass(frozen=True)
class Program:
    """A healthy program: ``build(plan)`` gives the step function; ``steps`` is how many are run under the audit."""

    name: str
    build: Callable[[Plan], Step]
    steps: int
    plans: tuple[Plan, ...]
    what: str


PROGRAMS: dict[str, Program] = {}


def healthy(name: str, *, steps: int = 2, plans: tuple[Plan, ...] = PLANS) -> Callable[[Callable[[Plan], Step]], Callable[[Plan], Step]]:
    """Register a builder under ``name``; the first line of its docstring says what it is."""

    def register(build: Callable[[Plan], Step]) -> Callable[[Plan], Step]:
        if name in PROGRAMS:
            raise ValueError(f"two healthy programs are called {name!r}")
        PROGRAMS[name] = Program(name, build, steps, plans, (build.__doc__ or "").strip().split("\n")[0])
        return build

    return register
