"""Which switches of torch change what its kernels do here: each is turned, the short sums are probed again, and it is turned back.

Only for ``precisionlab probe``, in a process of its own: switches act on the whole process.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import torch

from precisionlab.backends.cases import DTYPES, all_cases
from precisionlab.backends.probe import matches, probe
from precisionlab.backends.profile import Entry, FlagEffect, Profile, SizeClass

_PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "mv", "dot", "convolution", "convolution_backward")
_SUMS = ("sum", "mean", "cumsum", "native_layer_norm_backward")
_SCATTERS = ("index_add", "index_put", "scatter_add", "scatter_reduce", "embedding_dense_backward")


@dataclass(frozen=True)
class Flag:
    """A switch, and the ops that it may concern."""

    text: str
    turned: Callable[[], AbstractContextManager[Any]]
    ops: tuple[str, ...]


@contextlib.contextmanager
def _attribute(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


@contextlib.contextmanager
def _matmul_precision(word: str) -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(word)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@contextlib.contextmanager
def _deterministic() -> Iterator[None]:
    before, warn_only = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warn_only)


@contextlib.contextmanager
def _flush_denormal() -> Iterator[None]:
    """torch cannot say what the mode was; that a subnormal survives says so."""
    tiny = torch.full((1,), torch.finfo(torch.float32).smallest_normal)
    before = bool((tiny / 2 == 0).item())
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)


@contextlib.contextmanager
def _without_mkldnn() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of a TF32 switch that nobody touched
        with torch.backends.mkldnn.flags(enabled=False):
            yield


_CUDA = "torch.backends.cuda.matmul."
_MATMUL = torch.backends.cuda.matmul

FLAGS: tuple[Flag, ...] = (
    Flag(
        f"{_CUDA}allow_fp16_reduced_precision_reduction = False",
        lambda: _attribute(_MATMUL, "allow_fp16_reduced_precision_reduction", False),
        _PRODUCTS,
    ),
    Flag(
        f"{_CUDA}allow_bf16_reduced_precision_reduction = False",
        lambda: _attribute(_MATMUL, "allow_bf16_reduced_precision_reduction", False),
        _PRODUCTS,
    ),
    Flag('torch.set_float32_matmul_precision("high")', lambda: _matmul_precision("high"), _PRODUCTS),
    Flag('torch.set_float32_matmul_precision("medium")', lambda: _matmul_precision("medium"), _PRODUCTS),
    Flag("torch.backends.mkldnn.flags(enabled=False)", _without_mkldnn, _PRODUCTS),
    Flag("torch.use_deterministic_algorithms(True)", _deterministic, _SCATTERS + _SUMS),
    Flag("torch.set_flush_denormal(True)", _flush_denormal, _PRODUCTS + _SUMS + _SCATTERS),
)
"""``high`` and ``medium`` are the TF32 switch of CUDA products too."""


def flag_effects(profile: Profile, dtypes: Sequence[torch.dtype] = DTYPES, device: str = "cpu") -> tuple[FlagEffect, ...]:
    """What each flag changes in the short sums of ``profile``, for the ops in it that the flag may concern.

    A flag that changes nothing is recorded once, for the op ``*``.
    """
    base = {_key(entry): entry for entry in profile.entries if entry.size_class is SizeClass.SHORT}
    probed = {entry.op for entry in base.values()}
    found: list[FlagEffect] = []
    for flag in FLAGS:
        ops = sorted(op for op in probed if any(matches(op, pattern) for pattern in flag.ops))
        if not ops:
            continue
        with flag.turned():
            turned = probe(ops, dtypes, device, [SizeClass.SHORT])
        effects = []
        for entry in turned.entries:
            before = base.get(_key(entry))
            changes = {} if before is None else differences(before, entry)
            if changes:
                effects.append(FlagEffect(flag.text, f"{entry.op} ({entry.case})" if entry.case else entry.op, entry.dtype, changes))
        found += effects or [FlagEffect(flag.text, "*", "*")]
    return tuple(found)


def with_flags(profile: Profile, dtypes: Sequence[torch.dtype] = DTYPES, device: str = "cpu") -> Profile:
    """``profile`` with what the flags change in it."""
    return replace(profile, flags=flag_effects(profile, dtypes, device))


def _key(entry: Entry) -> tuple[str, str, str]:
    return entry.op, entry.case, entry.dtype


_WATCHED = ("significand_bits_min", "significand_bits_max", "term_bits", "additions_on_longest_path", "partial_sums_overflow")


def differences(before: Entry, after: Entry) -> dict[str, str]:
    """Field -> "before -> after", for the fields of the entry and the numbers of its evidence that tell kernels apart."""
    pairs = [
        (name, getattr(before, name), getattr(after, name)) for name in ("accumulation", "order", "block", "rounding", "flushes_subnormals")
    ]
    pairs += [(name, before.evidence.get(name), after.evidence.get(name)) for name in _WATCHED]
    return {name: f"{old} -> {new}" for name, old, new in pairs if old != new}


def known_ops() -> list[str]:
    """Ops that the probe has cases for."""
    return sorted({case.op for case in all_cases()})
