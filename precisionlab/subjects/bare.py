"""A subject made of a bare module: random inputs of a given size, and a stand-in for the loss."""

from __future__ import annotations

from typing import Any

import torch

from precisionlab.errors import SettingsError, SubjectError
from precisionlab.subjects.batches import tensors
from precisionlab.subjects.inputs import InputSpec
from precisionlab.subjects.subject import Subject
from precisionlab.subjects.words import parse_dtype


def bare_subject(model: Any, inputs: InputSpec) -> Subject:
    """Raises ``SettingsError`` when integers are asked for without ``--input-high``."""
    dtype = _torch_dtype(inputs.dtype)
    integral = not (dtype.is_floating_point or dtype.is_complex)
    if integral and dtype is not torch.bool and inputs.high is None:
        raise SettingsError(
            f"random inputs of dtype {inputs.dtype} need an upper limit", hint="--input-high 50257 (the size of the vocabulary)"
        )

    def batch(step: int) -> torch.Tensor:
        if integral:
            return torch.randint(0, inputs.high or 2, inputs.size).to(dtype)
        return torch.randn(inputs.size).to(dtype)

    note = "the loss is a stand-in, the mean square of the outputs on random inputs: export loss(model, batch) to judge the real gradients"
    return Subject(model, batch, stand_in_loss, notes=(note,))


def stand_in_loss(model: torch.nn.Module, batch: Any) -> torch.Tensor:
    """The mean square of every floating output, in fp32 so that it adds no fault of its own."""
    outputs = [tensor for _, tensor in tensors(model(batch)) if tensor.is_floating_point()]
    if not outputs:
        raise SubjectError("the model returns no floating tensor", hint="export loss(model, batch)")
    return torch.stack([tensor.float().square().mean() for tensor in outputs]).sum()


def _torch_dtype(name: str) -> torch.dtype:
    found = getattr(torch, name.removeprefix("torch."), None)
    return found if isinstance(found, torch.dtype) else getattr(torch, parse_dtype(name).torch_name)
