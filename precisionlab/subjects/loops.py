"""The three ways to lower a program, as training loops: ``amp``, ``pure`` and ``master``. One object runs one step after another."""

from __future__ import annotations

import contextlib
import copy
from typing import Any

import torch

from precisionlab.errors import SubjectError, UntrustworthyError
from precisionlab.subjects.batches import count_nan, map_tensors, tensors
from precisionlab.subjects.subject import Subject
from precisionlab.subjects.words import LowDtype, Mode

DEFAULT_LEARNING_RATE = 1e-4
DEFAULT_OPTIMIZER = f"AdamW(lr={DEFAULT_LEARNING_RATE:g})"


class Loop:
    """Forward, backward and optimizer of one subject in one mode. Subclasses say how the model and the optimizer are lowered.

    ``notes`` collects what a reader of the report must know: the optimizer that was assumed, weights that the cast overflowed.
    """

    scaled = True
    """Whether fp16 runs under a ``GradScaler``."""
    default_optimizer = True
    """Whether a subject without an optimizer gets ``DEFAULT_OPTIMIZER``."""
    damaged = False
    """Whether lowering made finite weights infinite: then the run is of another model, and finding nothing does not make it safe."""

    def __init__(self, subject: Subject, dtype: LowDtype, init_scale: float | None = None) -> None:
        self.subject = subject
        self.dtype: torch.dtype = getattr(torch, dtype.torch_name)
        self.notes: list[str] = list(subject.notes)
        self.model = self.lower(_build(subject.model))
        self.device = _device(self.model, subject.batch)
        self._note_nan_weights()
        self.trainable = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer = self._make_optimizer() if self.trainable else None
        scaled = self.scaled and dtype is LowDtype.FP16 and self.optimizer is not None
        self.scaler = torch.amp.GradScaler(self.device.type, init_scale=init_scale or 2.0**16) if scaled else None
        if self.scaler is not None:
            self.notes.append(f"loss scaler: torch.amp.GradScaler({self.device.type!r}), initial scale {self.scaler.get_scale():g}")

    def lower(self, model: torch.nn.Module) -> torch.nn.Module:
        """The model with its parameters as this mode keeps them."""
        raise NotImplementedError

    def optimized(self) -> list[torch.nn.Parameter]:
        """The parameters that the optimizer owns."""
        return self.trainable

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """What the forward pass runs under."""
        return contextlib.nullcontext()

    def cast(self, batch: Any) -> Any:
        """The batch on the model's device, lowered as this mode does. Runs inside the audit, so that what the cast loses is seen."""
        return map_tensors(batch, lambda tensor: tensor.to(self.device))

    def step(self, batch: Any) -> None:
        """One training step; forward and backward only where there is no optimizer, forward only where the loss needs no gradient."""
        for parameter in self.trainable:
            parameter.grad = None
        with self.autocast():
            loss = _checked_loss(self.subject.loss(self.model, self.cast(batch)))
        if not loss.requires_grad:
            self._note_once("the loss depends on no trainable parameter: only the forward pass was judged")
            return
        (loss if self.scaler is None else self.scaler.scale(loss)).backward()  # type: ignore[no-untyped-call]
        if self.optimizer is not None:
            self.update(self.optimizer)

    def update(self, optimizer: torch.optim.Optimizer) -> None:
        """The optimizer step, through the scaler where there is one."""
        if self.scaler is None:
            optimizer.step()
        else:
            self.scaler.step(optimizer)
            self.scaler.update()

    def _make_optimizer(self) -> torch.optim.Optimizer | None:
        if self.subject.optimizer is None:
            if not self.default_optimizer:
                self.notes.append("optimizer: none given, so weight updates were not judged; export optimizer(params) to judge them")
                return None
            self.notes.append(f"optimizer: none given, {DEFAULT_OPTIMIZER} was used; export optimizer(params) to judge your own")
            return torch.optim.AdamW(self.optimized(), lr=DEFAULT_LEARNING_RATE)
        made = self.subject.optimizer(self.optimized())
        if not isinstance(made, torch.optim.Optimizer):
            raise SubjectError(f"optimizer(params) returned {type(made).__name__}", hint="return a torch.optim.Optimizer")
        return made

    def _note_nan_weights(self) -> None:
        for name, parameter in self.model.named_parameters():
            count = count_nan(parameter.detach())
            if count:
                self.notes.append(f"weight {name} already holds {count} NaN before any op ran: what inherits them is not blamed on an op")

    def _note_once(self, note: str) -> None:
        if note not in self.notes:
            self.notes.append(note)


class AmpLoop(Loop):
    """fp32 parameters under ``torch.autocast``; a ``GradScaler`` for fp16. With fp32 as the dtype, a plain fp32 step."""

    def lower(self, model: torch.nn.Module) -> torch.nn.Module:
        return model.float()

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        if self.dtype is torch.float32:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=self.dtype)


class PureLoop(Loop):
    """Everything floating in the low dtype.

    Without an optimizer of the subject none is assumed: its state would be in the low dtype too, and a choice that the user did not
    make would be blamed on the model.
    """

    scaled = False
    default_optimizer = False

    def lower(self, model: torch.nn.Module) -> torch.nn.Module:
        finite_before = {name: _finite(tensor) for name, tensor in _floating_state(model)}
        lowered = model.to(self.dtype)
        for name, tensor in _floating_state(lowered):
            lost = finite_before.get(name, 0) - _finite(tensor)
            if lost > 0:
                self.damaged = True
                self.notes.append(
                    f"{lost} of {tensor.numel()} values of weight {name} are too large for {self.dtype} and became infinite when cast"
                )
        return lowered

    def cast(self, batch: Any) -> Any:
        return map_tensors(
            batch, lambda tensor: tensor.to(self.device, self.dtype) if tensor.is_floating_point() else tensor.to(self.device)
        )


class MasterLoop(PureLoop):
    """Parameters in the low dtype; the optimizer owns fp32 copies, gets their gradients in fp32, and its result is copied back."""

    scaled = True
    default_optimizer = True

    def optimized(self) -> list[torch.nn.Parameter]:
        self.masters = [torch.nn.Parameter(p.detach().float().clone()) for p in self.trainable]
        return self.masters

    def update(self, optimizer: torch.optim.Optimizer) -> None:
        for master, parameter in zip(self.masters, self.trainable, strict=True):
            master.grad = None if parameter.grad is None else parameter.grad.float()
        super().update(optimizer)
        with torch.no_grad():
            for master, parameter in zip(self.masters, self.trainable, strict=True):
                parameter.copy_(master)


LOOPS: dict[Mode, type[Loop]] = {Mode.AMP: AmpLoop, Mode.PURE: PureLoop, Mode.MASTER: MasterLoop}


def _build(model: Any) -> torch.nn.Module:
    """A model to change freely: what the function builds, or a copy of the instance."""
    if isinstance(model, torch.nn.Module):
        try:
            return copy.deepcopy(model)
        except Exception as error:
            raise SubjectError(
                f"the model cannot be copied ({type(error).__name__}: {error})", hint="export a function that builds it"
            ) from error
    if not callable(model):
        raise SubjectError(f"model must be an nn.Module or a function building one, got {type(model).__name__}", hint="model = GPT()")
    built = model()
    if not isinstance(built, torch.nn.Module):
        raise SubjectError(f"model() returned {type(built).__name__}", hint="return an nn.Module")
    return built


def _device(model: torch.nn.Module, batch: Any) -> torch.device:
    placed = next((tensor.device for _, tensor in _state(model)), None) or next((tensor.device for _, tensor in tensors(batch)), None)
    device = placed or torch.device("cpu")
    if device.type == "meta":
        raise SubjectError("the model is on the meta device: it has no values", hint="build it on the device it should run on")
    return device


def _state(model: torch.nn.Module) -> list[tuple[str, torch.Tensor]]:
    return [*model.named_parameters(), *model.named_buffers()]


def _floating_state(model: torch.nn.Module) -> list[tuple[str, torch.Tensor]]:
    return [(name, tensor.detach()) for name, tensor in _state(model) if tensor.is_floating_point() and not tensor.is_meta]


def _finite(tensor: torch.Tensor) -> int:
    return int(torch.isfinite(tensor).sum())


def _checked_loss(loss: Any) -> torch.Tensor:
    if not isinstance(loss, torch.Tensor):
        raise SubjectError(
            f"loss(model, batch) returned {type(loss).__name__}", hint="return the tensor itself, without .item() or float()"
        )
    if not (loss.is_floating_point() or loss.is_complex()):
        raise UntrustworthyError(
            f"the loss is {loss.dtype}: nothing floating was computed, so there is no rounding to judge", hint="a floating loss"
        )
    if loss.numel() != 1:
        raise SubjectError(f"loss(model, batch) returned a tensor of shape {tuple(loss.shape)}", hint="return one element: loss.mean()")
    return loss
