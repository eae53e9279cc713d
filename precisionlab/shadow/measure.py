"""What happened between a tensor (lo) and its fp64 twin (hi): the numbers that every op of an audit is judged by.

`measure` runs after every op, so a call on a tiny tensor must cost microseconds and a big one must run at the speed of memory. On the CPU
the work is done by numba (`kernels.py`, imported by the first measurement; its compiled code is cached on disk); elsewhere, or without
numba, by plain torch.

Everything here only reads. No random numbers, no global settings, no autocast (all arithmetic is fp64). Call under `torch.no_grad()`.
The numbers do not depend on how many threads took part: chunks are fixed, and added in order.
"""

from __future__ import annotations

import functools
import math
import os
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import torch
from torch import Tensor

CHUNK = 1 << 16  # elements a thread takes at a time
PARALLEL_FROM = 1 << 18  # elements; below, waking a second thread costs more than it saves (tens of microseconds)

_NAMES = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32", torch.float64: "fp64"}


class Stats(NamedTuple):
    """Of lo against hi. Zeros of either sign are zeros; complex numbers count as two elements."""

    elements: int
    nonfinite: int  # lo is Inf or NaN
    introduced: int  # lo is Inf or NaN where hi is finite
    hi_nonfinite: int  # hi is Inf or NaN
    flushed: int  # lo is 0 where hi is finite and not 0
    flushed_sq: float  # sum of hi^2 over the flushed
    subnormal: int  # lo is subnormal in its own format (not 0)
    diff_sq: float  # sum of (lo - hi)^2, as the next three over the elements of which both are finite
    hi_sq: float  # sum of hi^2
    lo_sq: float  # sum of lo^2
    dot: float  # sum of lo * hi
    max_abs: float  # largest finite |lo|, 0 if there is none
    hi_max_abs: float  # largest finite |hi|, also where lo is Inf or NaN

    @classmethod
    def from_tensor(cls, numbers: Tensor) -> Stats:
        """What `measure_torch` returned, fetched from its device."""
        values = numbers.tolist()
        return cls(*(int(value) if name in _COUNTS else value for name, value in zip(cls._fields, values, strict=True)))


_COUNTS = frozenset({"elements", "nonfinite", "introduced", "hi_nonfinite", "flushed", "subnormal"})


class LostStats(NamedTuple):
    """What `out = base + alpha * addend` lost: d is the exact increment, e = out - base the one that took place. Finite elements only."""

    lost_sq: float  # sum of (e - d)^2
    addend_sq: float  # sum of d^2
    base_sq: float  # sum of base^2
    swamped: int  # d is not 0 and e is 0
    addends: int  # d is not 0


class Displacement(NamedTuple):
    """How lo moved against how hi moved. Elements with an Inf or NaN among the four take no part in anything but `elements`."""

    dot: float  # sum of (lo move) * (hi move)
    lo_sq: float  # sum of (lo move)^2
    hi_sq: float  # sum of (hi move)^2
    stalled: int  # hi moved, lo did not (-0 to 0 is no move)
    moved: int  # hi moved
    elements: int

    @property
    def error(self) -> float:
        """||lo move - hi move|| / ||hi move||: 0 where lo followed, 1 where it stood still; 0 where hi did not move."""
        return math.sqrt(max(0.0, self.lo_sq - 2 * self.dot + self.hi_sq) / self.hi_sq) if self.hi_sq > 0 else 0.0


def measure(lo: Tensor, hi: Tensor) -> Stats:
    """Everything about lo against hi, in one read.

    0 and -0 are the same zero; subnormals are counted, and summed exactly even where the CPU flushes them; Inf and NaN are counted and take
    no part in sums and maxima. A sum of squares above 1.8e308 is Inf. lo: any float or complex dtype; hi: float64 or complex128 of the same
    shape. Any strides; equal dense strides are read without a copy.

    Raises: ValueError if the shapes differ (a twin of another tensor).
    """
    dtype = lo.dtype
    kernel = _LOADED.get(("measure", dtype))
    if (
        kernel is None
        or hi.dtype is not torch.float64
        or lo.shape != hi.shape
        or not (lo.is_cpu and hi.is_cpu and lo.is_contiguous() and hi.is_contiguous())
        or lo.is_neg()
        or hi.is_neg()
    ):
        return _measure_any(lo, hi)
    n = lo.numel()
    if n < PARALLEL_FROM:
        return tuple.__new__(Stats, kernel(lo.data_ptr(), hi.data_ptr(), n))
    return Stats._make(_in_chunks(kernel, (lo, hi), n, maxima=2))


def _measure_any(lo: Tensor, hi: Tensor) -> Stats:
    """`measure` where the shortest way is closed: bring the tensors into a form that it is open for."""
    if lo.shape != hi.shape:
        shapes = f"a tensor of shape {tuple(lo.shape)} against a twin of shape {tuple(hi.shape)}"
        raise ValueError(f"cannot measure {shapes}. Likely the twin of another tensor.")
    if not _on_numba(lo, hi):
        return Stats.from_tensor(measure_torch(lo, hi))
    if lo.is_complex() or hi.is_complex():
        return _measure_any(_real(lo), _real(hi))
    if lo.dtype not in _NAMES:  # fp8 (exact in float32), or an integer
        wide = lo.float() if lo.is_floating_point() else lo.double()
        return _measure_any(wide, hi)._replace(subnormal=int(_subnormals(lo, wide).sum()))
    lo, hi = _side_by_side(lo, hi.double())
    return Stats._make(_in_chunks(_kernel("measure", lo.dtype), (lo, hi), lo.numel(), maxima=2))


def measure_torch(lo: Tensor, hi: Tensor) -> Tensor:
    """The fields of `Stats`, in order, as a float64 tensor on the device of lo, without waiting for the device.

    0, -0, Inf and NaN as in `measure`; subnormals too, unless the device flushes them. Counts are exact below 2^53.
    """
    if lo.is_complex() or hi.is_complex():
        lo, hi = _real(lo), _real(hi)
    if lo.numel() == 0:
        return torch.zeros(len(Stats._fields), dtype=torch.float64, device=lo.device)
    wide, hi = lo.double(), hi.double()
    lo_finite, hi_finite = wide.isfinite(), hi.isfinite()
    both = lo_finite & hi_finite
    x, y = torch.where(both, wide, 0.0), torch.where(both, hi, 0.0)
    flushed = (wide == 0) & (hi != 0) & hi_finite
    numbers = [
        torch.ones_like(lo_finite).sum(),
        (~lo_finite).sum(),
        (~lo_finite & hi_finite).sum(),
        (~hi_finite).sum(),
        flushed.sum(),
        torch.where(flushed, hi, 0.0).square().sum(),
        _subnormals(lo, wide).sum(),
        (x - y).square().sum(),
        y.square().sum(),
        x.square().sum(),
        (x * y).sum(),
        torch.where(lo_finite, wide, 0.0).abs().amax(),
        torch.where(hi_finite, hi, 0.0).abs().amax(),
    ]
    return torch.stack([number.double() for number in numbers])


def count_nonfinite(t: Tensor) -> int:
    """Number of Inf and NaN in a tensor of any dtype (a complex number counts for each of its parts)."""
    if t.is_complex():
        t = _real(t)
    if not t.is_floating_point():
        return 0
    if t.dtype not in _NAMES or not _on_numba(t):
        return int((~(t if t.dtype in _NAMES else t.float()).isfinite()).sum())
    if not _is_dense(t):
        t = t.contiguous()
    count: int = _in_chunks(_kernel("count_nonfinite", t.dtype), (t,), t.numel())[0]  # a negated view has as many
    return count


def lost_addend(base: Tensor, addend: Tensor, out: Tensor, alpha: float = 1.0) -> LostStats:
    """What `out = base + alpha * addend` lost, from the real tensors alone; base and addend are broadcast to out.

    Elements of which one is Inf or NaN take no part, and none does if alpha is; 0 and -0 are the same zero; subnormals count as the numbers
    they are. Increments are exact in float64 for halves, and for float32 up to 29 binades apart. Mixed dtypes are taken in float64.
    """
    kernel = _LOADED.get(("lost_addend", out.dtype))
    if kernel is not None and base.dtype is out.dtype is addend.dtype and _is_plain(base, addend, out) and abs(alpha) < float("inf"):
        return LostStats._make(_in_chunks(kernel, (base, addend, out), out.numel(), float(alpha)))
    parts: tuple[Tensor, ...] = (base.expand_as(out), addend.expand_as(out), out)
    if out.is_complex():
        raise TypeError("lost_addend takes real tensors: pass torch.view_as_real of each.")
    if not abs(alpha) < float("inf"):
        return LostStats(0.0, 0.0, 0.0, 0, 0)
    if not _on_numba(*parts):
        return _lost_addend_torch(parts[0], parts[1], out, alpha)
    if len({part.dtype for part in parts}) > 1 or out.dtype not in _NAMES:
        parts = tuple(part.double() for part in parts)
    parts = _side_by_side(*parts)
    return LostStats._make(_in_chunks(_kernel("lost_addend", parts[0].dtype), parts, out.numel(), float(alpha)))


def _lost_addend_torch(base: Tensor, addend: Tensor, out: Tensor, alpha: float) -> LostStats:
    base, addend, out = base.double(), addend.double(), out.double()
    finite = base.isfinite() & addend.isfinite() & out.isfinite()
    base, exact, effective = (torch.where(finite, part, 0.0) for part in (base, addend * alpha, out - base))
    swamped = ((exact != 0) & (effective == 0)).sum()
    lost_sq, addend_sq, base_sq = (float(part.square().sum()) for part in (effective - exact, exact, base))
    return LostStats(lost_sq, addend_sq, base_sq, int(swamped), int((exact != 0).sum()))


def displacement(lo_new: Tensor, lo_old: Tensor, hi_new: Tensor, hi_old: Tensor) -> Displacement:
    """How far lo and hi moved, and along each other: dot / hi_sq is the share of the exact move that took place.

    Elements of which one is Inf or NaN take no part; a move from -0 to 0 is none. All of one shape; hi float64 or complex128.
    """
    kernel = _LOADED.get(("displacement", lo_new.dtype))
    same = lo_old.dtype is lo_new.dtype and hi_new.dtype is hi_old.dtype is torch.float64
    if kernel is not None and same and _is_plain(lo_new, lo_old, hi_new, hi_old):
        return Displacement._make(_in_chunks(kernel, (lo_new, lo_old, hi_new, hi_old), lo_new.numel()))
    lo, hi = (lo_new, lo_old), (hi_new, hi_old)
    if lo_new.is_complex() or hi_new.is_complex():
        lo, hi = (_real(lo_new), _real(lo_old)), (_real(hi_new), _real(hi_old))
    if not len({part.shape for part in lo + hi}) == 1:
        raise ValueError(f"cannot compare moves of tensors of shapes {[tuple(part.shape) for part in lo + hi]}.")
    if not _on_numba(*lo, *hi):
        return _displacement_torch(*lo, *hi)
    if lo[0].dtype is not lo[1].dtype or lo[0].dtype not in _NAMES:
        lo = (lo[0].double(), lo[1].double())
    parts = _side_by_side(*lo, *(part.double() for part in hi))
    return Displacement._make(_in_chunks(_kernel("displacement", parts[0].dtype), parts, parts[0].numel()))


def _displacement_torch(lo_new: Tensor, lo_old: Tensor, hi_new: Tensor, hi_old: Tensor) -> Displacement:
    lo_move, hi_move = lo_new.double() - lo_old.double(), hi_new.double() - hi_old.double()
    finite = lo_new.isfinite() & lo_old.isfinite() & hi_new.isfinite() & hi_old.isfinite()
    x, y = torch.where(finite, lo_move, 0.0), torch.where(finite, hi_move, 0.0)
    stalled = int(((x == 0) & (y != 0)).sum())
    return Displacement(float((x * y).sum()), float(x.square().sum()), float(y.square().sum()), stalled, int((y != 0).sum()), x.numel())


# Forms of tensors.


def _real(t: Tensor) -> Tensor:
    """A complex tensor as pairs of real numbers; a real one as pairs with 0, to stand beside it."""
    if t.is_complex():
        return torch.view_as_real(t.resolve_conj().resolve_neg())
    return torch.stack((t, torch.zeros_like(t)), dim=-1)


def _subnormals(t: Tensor, wide: Tensor) -> Tensor:
    """Where t, whose values `wide` holds in a wider format, is subnormal in its own."""
    if not t.is_floating_point():
        return torch.zeros_like(wide, dtype=torch.bool)
    return (wide != 0) & (wide.abs() < torch.finfo(t.dtype).smallest_normal)


def _is_plain(*tensors: Tensor) -> bool:
    """Whether the tensors have one shape and lie contiguously in the memory of the CPU, so that kernels can take them as they are."""
    shape = tensors[0].shape
    return all(t.is_cpu and t.is_contiguous() and not t.is_neg() and t.shape == shape for t in tensors)


def _is_dense(t: Tensor) -> bool:
    """Whether the elements fill a stretch of memory, each once, in whatever order."""
    if t.is_contiguous():
        return True
    expected = 1
    for stride, size in sorted((stride, size) for stride, size in zip(t.stride(), t.shape, strict=True) if size != 1):
        if stride != expected:
            return False
        expected *= size
    return True


def _side_by_side(*tensors: Tensor) -> tuple[Tensor, ...]:
    """The tensors with element k of each at the same place in its memory, and lazy negation carried out; copied only if need be."""
    tensors = tuple(t.resolve_neg() for t in tensors)
    if len({t.stride() for t in tensors}) == 1 and _is_dense(tensors[0]):
        return tensors
    return tuple(t.contiguous() for t in tensors)


# Running kernels.

_LOADED: dict[tuple[str, torch.dtype], Callable[..., Any]] = {}  # kernels already in use, by question and dtype of lo


@functools.cache
def _kernels() -> Any:
    """The module of numba kernels, or None where numba cannot be imported (missing, or a user's ``coverage.py`` shadows what it needs)."""
    try:
        from precisionlab.shadow import kernels
    except (ImportError, AttributeError):
        return None
    return kernels


def _on_numba(*tensors: Tensor) -> bool:
    return all(t.is_cpu for t in tensors) and _kernels() is not None


def _kernel(question: str, dtype: torch.dtype) -> Callable[..., Any]:
    """The kernel that answers for lo of this dtype; compiled, or read from the cache, by its first call."""
    if (question, dtype) not in _LOADED:
        _LOADED[question, dtype] = getattr(_kernels(), f"{question}_{_NAMES[dtype]}")
    return _LOADED[question, dtype]


def _in_chunks(kernel: Callable[..., Any], tensors: Sequence[Tensor], n: int, *extra: float, maxima: int = 0) -> tuple[Any, ...]:
    """The kernel over all n elements; of big tensors in chunks, by up to `torch.get_num_threads()` threads.

    The last `maxima` numbers of a chunk are maxima, the others add up.
    """
    addresses = [t.data_ptr() for t in tensors]
    if n < PARALLEL_FROM:
        result: tuple[Any, ...] = kernel(*addresses, n, *extra)
        return result
    sizes = [t.element_size() for t in tensors]
    todo = deque(range(0, n, CHUNK))
    parts: list[Any] = [None] * len(todo)

    def work() -> None:
        while todo:
            try:
                start = todo.popleft()
            except IndexError:  # another thread took the last one
                return
            at = (address + start * size for address, size in zip(addresses, sizes, strict=True))
            parts[start // CHUNK] = kernel(*at, min(CHUNK, n - start), *extra)

    _share(work, min(torch.get_num_threads(), len(todo)) - 1, todo)
    columns = list(zip(*parts, strict=True))
    return tuple(max(column) if k >= len(columns) - maxima else sum(column) for k, column in enumerate(columns))


def _share(work: Callable[[], None], helpers: int, todo: deque[int]) -> None:
    """Do the work on this thread and on helpers, and return when none of them touches the memory any more, whatever happens."""
    try:
        futures = [_pool().submit(work) for _ in range(helpers)]
    except RuntimeError:  # the interpreter is shutting down
        futures = []
    try:
        work()
    finally:
        todo.clear()
        for future in futures:
            if not future.cancel():
                future.result()


@functools.cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=max(1, os.cpu_count() or 1), thread_name_prefix="precisionlab-measure")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)  # threads do not survive a fork
