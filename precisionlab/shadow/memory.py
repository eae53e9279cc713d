"""Shadow memory: storage -> fp64 twin.

Invariants (each is a property test):
1. Two tensors on one storage read one twin; a view's twin is the same strided window on the twin's buffer.
2. A write through any view is seen by all of them.
3. A write that did not go through the audit (the version counter moved further than our own writes) invalidates the twin: it restarts
   from the real value and is counted as a resync. It never lies.
4. A freed storage frees its twin (weak reference); a reused address never revives it.
5. Bytes held never exceed the cap: the oldest twins are evicted, restart from the real value at their next use, and are counted.

Twins are fp64 for real tensors; complex tensors read the same buffer as complex128. Integer and bool tensors have no twin unless the
fp64 side decided otherwise (``decision``).
"""

from __future__ import annotations

import math
import weakref
from collections import Counter
from typing import Any

import torch

from precisionlab.shadow.measure import measure

NO_EVENTS: frozenset[int] = frozenset()

REAL_DTYPE = {
    torch.complex32: torch.float16,
    torch.complex64: torch.float32,
    torch.complex128: torch.float64,
}

UNIT_ROUNDOFF = {
    torch.float64: 2.0**-53,
    torch.float32: 2.0**-24,
    torch.bfloat16: 2.0**-8,
    torch.float16: 2.0**-11,
    torch.complex128: 2.0**-53,
    torch.complex64: 2.0**-24,
    torch.complex32: 2.0**-11,
    torch.float8_e5m2: 2.0**-3,
    torch.float8_e4m3fn: 2.0**-4,
    torch.float8_e5m2fnuz: 2.0**-3,
    torch.float8_e4m3fnuz: 2.0**-4,
}
"""u = 2^-p for a significand of p bits, the hidden one included (IEEE 754; OCP OFP8 for the 8-bit formats)."""


class Twin:
    """The fp64 side of one storage, and what is known of how it differs from the real one."""

    __slots__ = (
        "hi", "dtype", "cow", "version", "writes", "events", "u", "nonfinite", "drift", "lo_rms", "ref", "nbytes", "narrow", "pending",
        "site", "decision", "share", "tags", "error_rms", "birth", "power", "marks", "__weakref__",
    )  # fmt: skip

    def __init__(self, hi: torch.Tensor, dtype: torch.dtype, version: int) -> None:
        self.hi = hi
        self.dtype = dtype
        self.cow = False
        """The buffer is shared with another twin: clone before writing."""
        self.version = version
        self.writes = 0
        self.events: frozenset[int] = NO_EVENTS
        self.u = UNIT_ROUNDOFF.get(dtype, 0.0)
        """Coarsest unit roundoff the values went through: an fp32 copy of bf16 data still has bf16's."""
        self.nonfinite = False
        """The real storage holds Inf or NaN where the twin is finite."""
        self.drift = 0.0
        self.lo_rms = -1.0
        """Root mean square of the real values at the last measurement; -1 when unknown."""
        self.error_rms = 0.0
        self.ref: weakref.ref[Any] | None = None
        self.nbytes = hi.untyped_storage().nbytes() if hi.layout == torch.strided else 0
        self.narrow: torch.dtype | None = None
        """The half format this wide tensor is an exact copy of (a cast up, unmodified)."""
        self.pending: tuple[torch.dtype, Any] | None = None
        """(narrow format, lost-addend numbers): what rounding this wide sum back to the narrow format would lose."""
        self.site: Any = None
        self.decision = False
        self.share = 0.0
        """For decisions: the share of elements that the twin decides otherwise."""
        self.tags: frozenset[str] = frozenset()
        self.birth = 0
        self.power = 0.0
        """Power of the loss scale that the values carry (``trackers.units``)."""
        self.marks: dict[str, Any] | None = None
        """What trackers note of a tensor that only few tensors have."""


class ShadowMemory:
    """All twins of one audit."""

    def __init__(self, max_bytes: int | None = None) -> None:
        self._twins: dict[int, Twin] = {}
        self.max_bytes = max_bytes
        self.bytes = 0
        self.peak_bytes = 0
        self.evicted_bytes = 0
        self.resyncs: Counter[str] = Counter()
        self.decisions = 0
        """How many integer or bool tensors the twin decided otherwise, ever: 0 spares every lookup."""
        self._clock = 0

    def __len__(self) -> int:
        return len(self._twins)

    def get(self, t: torch.Tensor) -> Twin | None:
        """The twin of ``t``'s storage if there is a valid one; never makes one."""
        try:
            twin = self._twins.get(t.untyped_storage()._cdata)
        except (RuntimeError, NotImplementedError):
            return None
        return twin if twin is not None and self._valid(t, twin) else None

    def state(self, t: torch.Tensor) -> Twin:
        """The twin of ``t``'s storage, made from the real value when there is none.

        Raises ``RuntimeError`` or ``NotImplementedError`` for tensors without a strided storage.
        """
        twin = self._twins.get(t.untyped_storage()._cdata)
        if twin is not None and self._valid(t, twin):
            return twin
        return self._adopt_real(t)

    def window(self, t: torch.Tensor, twin: Twin, *, write: bool = False) -> torch.Tensor:
        """The fp64 tensor that corresponds to ``t``: same sizes, strides and offset on the twin's buffer."""
        if write and twin.cow:
            twin.hi = self._clone_buffer(twin.hi)
            twin.cow = False
            self._account(twin, twin.hi.untyped_storage().nbytes())
        hi = twin.hi
        if hi.shape == t.shape and hi.stride() == t.stride() and hi.storage_offset() == t.storage_offset() and hi.is_complex() == t.is_complex():
            return hi
        if t.is_complex():
            buffer = hi if hi.is_complex() else torch.view_as_complex(_flat(hi).view(-1, 2))
            out = buffer.as_strided(t.shape, t.stride(), t.storage_offset())
            return out.conj_physical() if t.is_conj() else out
        if hi.is_complex():
            hi = torch.view_as_real(_flat(hi))
        out = hi.as_strided(t.shape, t.stride(), t.storage_offset())
        return out.neg() if t.is_neg() else out

    def bind(self, t: torch.Tensor, hi: torch.Tensor, *, shared: bool = False) -> Twin:
        """Make ``hi`` the twin of the fresh tensor ``t``. Adopted without a copy when it lies in memory as ``t`` does.

        ``shared``: the buffer belongs to another twin too; both copy before writing.
        """
        storage = t.untyped_storage()
        itemsize = t.element_size()
        numel = storage.nbytes() // itemsize
        fits = (
            hi.shape == t.shape
            and hi.stride() == t.stride()
            and hi.storage_offset() == t.storage_offset()
            and hi.untyped_storage().nbytes() >= numel * hi.element_size()
        )
        if not fits:
            buffer = torch.empty(numel, dtype=hi.dtype, device=hi.device)
            window = buffer.as_strided(t.shape, t.stride(), t.storage_offset())
            window.copy_(hi)
            hi, shared = (window if window.numel() == numel else buffer), False
        twin = Twin(hi, t.dtype, -1 if t.is_inference() else t._version)
        twin.cow = shared
        self._insert(storage, twin, 0 if shared else None)
        return twin

    def wrote(self, t: torch.Tensor, twin: Twin) -> None:
        """Note that the audit saw one write to ``t``. Its version counter may move by one more after the handler returns."""
        if twin.version >= 0 and not t.is_inference():
            twin.version = max(twin.version, t._version)
        twin.writes = 1
        twin.narrow = None
        twin.pending = None

    def forget(self, t: torch.Tensor) -> None:
        """Drop the twin of ``t``'s storage: it restarts from the real value at its next use."""
        try:
            key = t.untyped_storage()._cdata
        except (RuntimeError, NotImplementedError):
            return
        self._drop(key)

    def clear(self) -> None:
        """Drop every twin."""
        self._twins.clear()
        self.bytes = 0

    def _valid(self, t: torch.Tensor, twin: Twin) -> bool:
        if twin.dtype != t.dtype and REAL_DTYPE.get(twin.dtype, twin.dtype) != REAL_DTYPE.get(t.dtype, t.dtype):
            self._resync(t, "storage reinterpreted as another dtype")
            return False
        if t.untyped_storage().nbytes() * 8 > twin.hi.untyped_storage().nbytes() * _real_itemsize(t) and not twin.decision:
            self._resync(t, "storage resized")
            return False
        if twin.version >= 0 and not t.is_inference():
            version = t._version
            if version > twin.version + twin.writes:
                if not self._consistent(t, twin):
                    self._resync(t, "written outside the audit")
                    return False
                twin.version, twin.writes = version, 0
            elif version > twin.version:
                twin.writes -= version - twin.version
                twin.version = version
        return True

    def _consistent(self, t: torch.Tensor, twin: Twin) -> bool:
        """Whether the real values still are what the twin stands for.

        Tensors on one storage need not share a version counter (``p.data = q`` gives q's storage p's counter), so a counter that moved
        too far is only a suspicion. A write that leaves every value within the known drift is one the twin need not know of.
        """
        if twin.decision:
            return bool(t.shape == twin.hi.shape)
        with torch.no_grad():
            stats = measure(t, self.window(t, twin))
        if stats.introduced and not twin.nonfinite:
            return False
        if not stats.hi_sq > 0.0:
            return stats.lo_sq == 0.0 or twin.drift > 0.0
        return math.sqrt(stats.diff_sq / stats.hi_sq) <= 4.0 * (twin.drift + twin.u)

    def _resync(self, t: torch.Tensor, reason: str) -> None:
        self.resyncs[reason] += 1
        self.forget(t)

    def _adopt_real(self, t: torch.Tensor) -> Twin:
        storage = t.untyped_storage()
        numel = storage.nbytes() // t.element_size()
        wide = torch.complex128 if t.is_complex() else torch.float64
        whole = t.is_contiguous() and t.storage_offset() == 0 and t.numel() == numel
        if whole and not t.is_conj() and not t.is_neg():
            hi = t.detach().to(wide, copy=True)
        else:
            plain = torch.empty(0, dtype=t.dtype, device=t.device).set_(storage, 0, (numel,), (1,))
            hi = plain.to(wide, copy=True)
        twin = Twin(hi, t.dtype, -1 if t.is_inference() else t._version)
        self._insert(storage, twin)
        return twin

    def _clone_buffer(self, hi: torch.Tensor) -> torch.Tensor:
        flat = _flat(hi).clone()
        return flat.as_strided(hi.shape, hi.stride(), hi.storage_offset())

    def _insert(self, storage: Any, twin: Twin, nbytes: int | None = None) -> None:
        key = storage._cdata
        self._drop(key)
        if nbytes is not None:
            twin.nbytes = nbytes
        twins = self._twins
        memory = weakref.ref(self)

        def freed(_: Any, key: int = key, memory: Any = memory) -> None:
            owner = memory()
            if owner is not None:
                owner._drop(key)

        twin.ref = weakref.ref(storage, freed)
        self._clock += 1
        twin.birth = self._clock
        twins[key] = twin
        self.bytes += twin.nbytes
        if self.bytes > self.peak_bytes:
            self.peak_bytes = self.bytes
        if self.max_bytes is not None and self.bytes > self.max_bytes:
            self._evict(key)

    def _account(self, twin: Twin, nbytes: int) -> None:
        self.bytes += nbytes - twin.nbytes
        twin.nbytes = nbytes
        self.peak_bytes = max(self.peak_bytes, self.bytes)

    def _drop(self, key: int) -> None:
        twin = self._twins.pop(key, None)
        if twin is not None:
            self.bytes -= twin.nbytes
            twin.ref = None

    def _evict(self, keep: int) -> None:
        # Oldest first: long-lived twins (weights) are cheap to restart, while the newest are about to be used.
        for key in [k for k in self._twins if k != keep]:
            if self.max_bytes is None or self.bytes <= self.max_bytes:
                return
            self.evicted_bytes += self._twins[key].nbytes
            self.resyncs["evicted under the memory cap"] += 1
            self._drop(key)


def _real_itemsize(t: torch.Tensor) -> int:
    return t.element_size() // 2 if t.is_complex() else t.element_size()


def _flat(hi: torch.Tensor) -> torch.Tensor:
    """The whole buffer of ``hi`` as one dimension."""
    return hi.as_strided((hi.untyped_storage().nbytes() // hi.element_size(),), (1,), 0)
