"""Tensors inside whatever a batch is made of: dicts, tuples, dataclasses, nested."""

from __future__ import annotations

import copy
import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from precisionlab.errors import SubjectError, UntrustworthyError
from precisionlab.subjects.subject import Subject


def tensors(value: Any, path: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """``(path, tensor)`` of every tensor in ``value``; the path reads like Python (``["x"][0]``)."""
    if isinstance(value, torch.Tensor):
        yield path, value
    elif isinstance(value, Mapping):
        for key in value:
            yield from tensors(value[key], f"{path}[{key!r}]")
    elif isinstance(value, (list, tuple)):
        for position, item in enumerate(value):
            yield from tensors(item, f"{path}[{position}]")
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for item in dataclasses.fields(value):
            yield from tensors(getattr(value, item.name), f"{path}.{item.name}")


def map_tensors(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """``value`` rebuilt with every tensor replaced; containers of other types are returned as they are."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, dict) and type(value) is dict:
        return {key: map_tensors(item, change) for key, item in value.items()}
    if isinstance(value, Mapping) and hasattr(value, "__setitem__"):
        rebuilt = copy.copy(value)
        for key in value:
            rebuilt[key] = map_tensors(value[key], change)
        return rebuilt
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(map_tensors(item, change) for item in value))
    if type(value) in (list, tuple):
        return type(value)(map_tensors(item, change) for item in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        changed = {item.name: map_tensors(getattr(value, item.name), change) for item in dataclasses.fields(value) if item.init}
        return dataclasses.replace(value, **changed)
    return value


def make_batch(subject: Subject, step: int) -> Any:
    """The batch of one step: the subject's own, or what its function returns for ``step`` and those sizes that it names."""
    if not callable(subject.batch) or isinstance(subject.batch, torch.nn.Module):
        if hasattr(subject.batch, "__iter__") and hasattr(subject.batch, "dataset"):
            raise SubjectError(
                f"batch is a {type(subject.batch).__name__}", hint="export a function batch(step) that returns one batch of it"
            )
        return subject.batch
    sizes = subject.sizes or {}
    try:
        parameters = inspect.signature(subject.batch).parameters.values()
    except (TypeError, ValueError):
        return subject.batch(step)
    takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters)
    named = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    chosen = {axis: size for axis, size in sizes.items() if takes_all or axis in named}
    takes_step = any(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD, p.VAR_POSITIONAL) and p.name not in chosen for p in parameters)
    return subject.batch(step, **chosen) if takes_step else subject.batch(**chosen)


def check_batch(batch: Any, step: int) -> list[str]:
    """Notes about what is odd in a batch (NaN, empty parts). Raises ``UntrustworthyError`` when every tensor in it is empty."""
    found = list(tensors(batch, "batch"))
    empty = [(path, tensor) for path, tensor in found if tensor.numel() == 0]
    if found and len(empty) == len(found):
        shapes = ", ".join(f"{path} {tuple(tensor.shape)}" for path, tensor in empty[:3])
        raise UntrustworthyError(
            f"the batch of step {step + 1} is empty ({shapes}): nothing can be judged", hint="a batch with at least one example"
        )
    notes = [f"{path} of step {step + 1} is empty, shape {tuple(tensor.shape)}" for path, tensor in empty]
    for path, tensor in found:
        count = count_nan(tensor)
        if count:
            notes.append(
                f"{path} of step {step + 1} already holds {count} NaN before any op ran: what inherits them is not blamed on an op"
            )
    return notes


def count_nan(tensor: torch.Tensor) -> int:
    """NaN elements; 0 for integers and layouts without ``isnan``."""
    if not (tensor.is_floating_point() or tensor.is_complex()) or tensor.layout is not torch.strided or tensor.is_meta:
        return 0
    return int(torch.isnan(tensor).sum())
