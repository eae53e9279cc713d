"""From one executed op to its entry in a profile: which of its sums it made, and how long it was."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from precisionlab.backends.profile import Entry, Profile

if TYPE_CHECKING:
    from precisionlab.backends.live import LiveProfile

_INNER = {"aten.mm": 0, "aten.bmm": 0, "aten.mv": 0, "aten.dot": 0, "aten.addmm": 1, "aten.baddbmm": 1, "aten.addmv": 1}
"""Op -> position of the operand whose last dimension is summed over."""


def entry_for(profile: Profile | LiveProfile, op: str, dtype: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Entry | None:
    """The entry for a call of ``op`` (``aten.index_put_``) with these arguments, whose result is of ``dtype`` (``bf16``).

    None where the profile has none, and for calls that sum nothing (``index_put`` that overwrites).
    """
    wanted = _wanted(op, args, kwargs)
    return profile.accumulation_of(wanted[0], dtype, *wanted[1:]) if wanted is not None else None


def entries_for(profile: Profile, op: str, dtype: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Entry]:
    """Every way in which the machine of ``profile`` may carry out that call; ``entry_for`` gives the narrowest."""
    wanted = _wanted(op, args, kwargs)
    return profile.entries_of(wanted[0], dtype, *wanted[1:]) if wanted is not None else []


def _wanted(op: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[str, int | None, str | None] | None:
    """Name, length and case to look up; None for a call that sums nothing."""
    stem = op.rstrip("_").replace("aten._index_put_impl", "aten.index_put")
    if stem == "aten.index_put" and not _argument(args, kwargs, 3, "accumulate", False):
        return None
    return stem, _length(stem, args), _case(stem, args, kwargs)


def _mixed(args: Sequence[Any]) -> bool:
    """Whether a layer norm of half values has fp32 weights: another kernel."""
    values, weight = (args[i] if len(args) > i else None for i in (1, 5))
    return weight is not None and getattr(weight, "dtype", None) != getattr(values, "dtype", None)


def _length(stem: str, args: Sequence[Any]) -> int | None:
    at = _INNER.get(stem)
    shape: Sequence[int] = getattr(args[at], "shape", ()) if at is not None and len(args) > at else ()
    return int(shape[-1]) if len(shape) else None


def _case(stem: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
    """The sum that the arguments choose, for ops that accumulate differently from one to the other (measured, torch 2.13 CPU)."""
    if stem == "aten.native_layer_norm_backward":
        return "weight gradient, fp32 weight" if _mixed(args) else "weight gradient"
    if stem == "aten.nll_loss_forward":
        return {1: "mean over the batch", 2: "sum over the batch"}.get(_argument(args, kwargs, 3, "reduction", 1))
    if stem != "aten.index_add":
        return None
    source = _argument(args, kwargs, 3, "source", None)
    if getattr(source, "ndim", 1) < 2:
        return "elements"
    return "rows" if kwargs.get("alpha", 1) == 1 else "scaled rows"


def _argument(args: Sequence[Any], kwargs: Mapping[str, Any], position: int, name: str, default: Any) -> Any:
    return args[position] if len(args) > position else kwargs.get(name, default)
