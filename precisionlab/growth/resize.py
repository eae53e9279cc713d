"""A subject at another size: through its ``sizes``, the arguments of its batch and its model builder, more examples, or a scale."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from precisionlab.errors import SubjectError
from precisionlab.growth.axes import BATCH, SCALE, Axis
from precisionlab.subjects.batches import make_batch, map_tensors, tensors
from precisionlab.subjects.randomness import seeded
from precisionlab.subjects.subject import Subject

MOST_GATHERED = 4096
"""Batches that are put together to make a larger one."""


def known_axes(subject: Subject) -> dict[str, str]:
    """Axis -> what changes with it. ``sizes``, whole-number arguments of ``batch`` and of the model builder, batch_size and scale."""
    found: dict[str, str] = {}
    for axis in subject.sizes or {}:
        found[axis] = "sizes"
    for axis in _numbers_of(subject.batch):
        found.setdefault(axis, "an argument of batch")
    if not isinstance(subject.model, torch.nn.Module):
        for axis in _numbers_of(subject.model):
            found.setdefault(axis, "an argument of the model builder")
    found.setdefault(BATCH, "more examples")
    found.setdefault(SCALE, "the floating inputs, multiplied")
    return found


def check_axes(subject: Subject, axes: tuple[Axis, ...]) -> None:
    """Raises ``SubjectError`` for an axis that the subject does not have, with those it has, and for ``scale`` with nothing to scale."""
    known = known_axes(subject)
    for axis in axes:
        if axis.name not in known:
            listed = ", ".join(f"{name} ({how})" for name, how in known.items())
            raise SubjectError(
                f"{subject.name or 'the subject'} has no axis {axis.name!r}; it has {listed}",
                hint=f"sizes = {{{axis.name!r}: {axis.sizes[0]:g}}} and batch(step, {axis.name}) or a model builder that takes {axis.name}",
            )
        if axis.name == SCALE:
            with seeded(0):
                resized(subject, SCALE, 1.0).batch(0)


def resized(subject: Subject, axis: str, size: float) -> Subject:
    """``subject`` with one axis at ``size`` and every other at its default."""
    if axis == SCALE:
        return replace(subject, batch=_scaled(subject, size))
    count = int(size)
    in_batch = callable(subject.batch) and not isinstance(subject.batch, torch.nn.Module) and _takes(subject.batch, axis)
    in_model = not isinstance(subject.model, torch.nn.Module) and callable(subject.model) and _takes(subject.model, axis)
    changed = replace(subject, sizes={**(subject.sizes or {}), axis: count})
    if in_model:
        changed = replace(changed, model=functools.partial(subject.model, **{axis: count}))
    if axis == BATCH and not in_batch and not in_model:
        return replace(changed, batch=_gathered(subject, count))
    return changed


def _numbers_of(function: Any) -> list[str]:
    """Names of the arguments whose default is a whole number."""
    if not callable(function):
        return []
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    return [p.name for p in parameters if isinstance(p.default, int) and not isinstance(p.default, bool) and p.name != "step"]


def _takes(function: Any, name: str) -> bool:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    anything = not isinstance(function, type)  # a module class without __init__ seems to take any keyword, and takes none
    return any(p.name == name or (anything and p.kind is p.VAR_KEYWORD) for p in parameters)


def _scaled(subject: Subject, scale: float) -> Callable[[int], Any]:
    def batch(step: int) -> Any:
        made = make_batch(subject, step)
        if not any(t.is_floating_point() for _, t in tensors(made)):
            raise SubjectError("scale has nothing to multiply: the batch holds no floating tensor", hint="another axis")
        return map_tensors(made, lambda t: t * scale if t.is_floating_point() else t)

    return batch


def _gathered(subject: Subject, count: int) -> Callable[[int], Any]:
    """``count`` examples: the batches of several steps put together along their first dimension, and cut."""

    def batch(step: int) -> Any:
        first = make_batch(subject, step)
        rows = _rows(first)
        pieces = [first]
        while rows * len(pieces) < count:
            if len(pieces) >= MOST_GATHERED:
                raise SubjectError(f"batch_size {count} would take more than {MOST_GATHERED} batches", hint="batch(step, batch_size)")
            pieces.append(make_batch(subject, step + 1000 * len(pieces)))
        flat = [[t for _, t in tensors(piece)] for piece in pieces]
        joined = iter([torch.cat(parts)[:count] if parts[0].dim() else parts[0] for parts in zip(*flat, strict=True)])
        return map_tensors(first, lambda _: next(joined))

    return batch


def _rows(batch: Any) -> int:
    rows = {t.shape[0] for _, t in tensors(batch) if t.dim()}
    if len(rows) != 1:
        shapes = ", ".join(str(tuple(t.shape)) for _, t in tensors(batch))
        raise SubjectError(
            f"batch_size cannot grow: the tensors of the batch have no first dimension in common ({shapes or 'no tensors'})",
            hint="a function batch(step, batch_size)",
        )
    return max(rows.pop(), 1)
