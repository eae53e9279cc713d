"""Shadow memory: storage -> fp64 twin.

Invariants (each is a property test):
1. Two tensors on one storage read one twin; a view's twin is the same strided window on the twin's buffer.
2. A write through any view is seen by all of them.
3. A write that did not go through the audit (the version counter moved further than our own writes) invalidates the twin: it restarts
   from the real value and is counted as a resync. What moves no version counter cannot be seen: a write through numpy, or through a
   tensor put on the same storage by ``set_`` or ``.data``, which has a counter of its own.
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


class Shared:
    """A buffer that serves several twins until one of them is written: how many hold it, and its bytes."""

    __slots__ = ("holders", "nbytes")

    def __init__(self, nbytes: int) -> None:
        self.holders = 1
        self.nbytes = nbytes


class _Watch(weakref.ref):  # type: ignore[type-arg]
    """A weak reference to a storage that knows its key and its memory, so that one callback serves all."""

    __slots__ = ("key", "memory")
    key: int
    memory: weakref.ref[ShadowMemory]


def _freed(watch: _Watch) -> None:
    memory = watch.memory()
    if memory is not None:
        memory._drop(watch.key)


class Twin:
    """The fp64 side of one storage, and what is known of how it differs from the real one."""

    events: frozenset[int] = NO_EVENTS
    nonfinite = False
    """The real storage holds Inf or NaN where the twin is finite."""
    drift = 0.0
    lo_rms = -1.0
    """Root mean square of the real values at the last measurement; -1 when unknown."""
    error_rms = 0.0
    narrow: torch.dtype | None = None
    """The half format this wide tensor is an exact copy of (a cast up, unmodified)."""
    pending: tuple[torch.dtype, Any] | None = None
    """(narrow format, lost-addend numbers): what rounding this wide sum back to the narrow format would lose."""
    site: Any = None
    decision = False
    share = 0.0
    """For decisions: the share of elements that the twin decides otherwise."""
    tags: frozenset[str] = frozenset()
    power = 0.0
    """Power of the loss scale that the values carry (``trackers.units``)."""
    gradient = False
    """Computed from a gradient in a backward pass (noted where no loss scale was seen: ``trackers.window``)."""
    marks: dict[str, Any] | None = None
    """What trackers note of a tensor that only few tensors have."""

    writes = 0
    """Writes of ours after which the version counter has yet to move (autograd bumps it when the op has returned)."""
    shared: Shared | None = None
    nbytes = 0
    ref: Any = None

    def __init__(
        self, hi: torch.Tensor, dtype: torch.dtype, version: int, lo_bytes: int, layout: tuple[Any, ...] | None = None, buffer: int = 0
    ) -> None:
        self.hi = hi
        self.dtype = dtype
        self.version = version
        """The version counter at the last write that we know of; -1 where there is none (inference tensors)."""
        self.lo_bytes = lo_bytes
        self.u = UNIT_ROUNDOFF.get(dtype, 0.0)
        """Coarsest unit roundoff the values went through: an fp32 copy of bf16 data still has bf16's."""
        self.layout = layout if layout is not None else (hi.shape, hi.stride(), hi.storage_offset())
        self.buffer = buffer or hi.untyped_storage()._cdata
        """Identity of the fp64 storage."""


class ShadowMemory:
    """All twins of one audit."""

    def __init__(self, max_bytes: int | None = None) -> None:
        self._twins: dict[int, Twin] = {}
        self._self = weakref.ref(self)
        self.max_bytes = max_bytes
        self.bytes = 0
        self.peak_bytes = 0
        self.evicted_bytes = 0
        self.resyncs: Counter[str] = Counter()
        self.decisions = 0
        """How many integer or bool tensors the twin decided otherwise, ever: 0 spares every lookup."""

    def __len__(self) -> int:
        return len(self._twins)

    def get(self, t: torch.Tensor) -> Twin | None:
        """The twin of ``t``'s storage if there is a valid one; never makes one."""
        try:
            storage = t.untyped_storage()
        except (RuntimeError, NotImplementedError):
            return None
        twin = self._twins.get(storage._cdata)
        return twin if twin is not None and self._valid(t, twin, storage) else None

    def state(self, t: torch.Tensor) -> Twin:
        """The twin of ``t``'s storage, made from the real value when there is none.

        Raises ``RuntimeError`` or ``NotImplementedError`` for tensors without a strided storage.
        """
        storage = t.untyped_storage()
        twin = self._twins.get(storage._cdata)
        if twin is not None:
            if twin.dtype is t.dtype and storage.nbytes() == twin.lo_bytes and twin.version >= 0 and t._version == twin.version:
                return twin
            if self._valid(t, twin, storage):
                return twin
        return self._adopt_real(t)

    def window(self, t: torch.Tensor, twin: Twin, *, write: bool = False) -> torch.Tensor:
        """The fp64 tensor that corresponds to ``t``: same sizes, strides and offset on the twin's buffer, conjugate or negated as ``t``."""
        if write and twin.shared is not None:
            self._unshare(twin)
        hi = twin.hi
        if twin.dtype is t.dtype and twin.layout == (t.shape, t.stride(), t.storage_offset()):
            out = hi
        elif t.is_complex():
            buffer = hi if hi.is_complex() else torch.view_as_complex(_flat(hi).view(-1, 2))
            out = buffer.as_strided(t.shape, t.stride(), t.storage_offset())
        else:
            if hi.is_complex():
                hi = torch.view_as_real(_flat(hi))
            out = hi.as_strided(t.shape, t.stride(), t.storage_offset())
        if t.is_conj():
            out = out.conj()
        return torch._neg_view(out) if t.is_neg() else out

    def bind(self, t: torch.Tensor, hi: torch.Tensor, *, sharing: Twin | None = None) -> Twin:
        """Make ``hi`` the twin of the fresh tensor ``t``. Adopted without a copy when it lies in memory as ``t`` does.

        ``sharing``: the twin that the buffer of ``hi`` belongs to already; whichever is written first gets a copy.
        """
        storage = t.untyped_storage()
        lo_bytes = storage.nbytes()
        numel = lo_bytes // t.element_size()
        layout = (t.shape, t.stride(), t.storage_offset())
        owned = hi.untyped_storage()
        hi_bytes = owned.nbytes()
        if (
            layout == (hi.shape, hi.stride(), hi.storage_offset())
            and hi_bytes >= numel * hi.element_size()
            and not hi.is_conj()
            and not hi.is_neg()
        ):
            twin = Twin(hi, t.dtype, -1 if t.is_inference() else t._version, lo_bytes, layout, owned._cdata)
        else:
            sharing = None
            hi = _laid_out(t, hi, numel)
            hi_bytes = hi.untyped_storage().nbytes()
            twin = Twin(hi, t.dtype, -1 if t.is_inference() else t._version, lo_bytes)
        if sharing is not None and sharing.ref is not None:
            if sharing.shared is None:
                sharing.shared = Shared(sharing.nbytes)
            sharing.shared.holders += 1
            twin.shared = sharing.shared
        else:
            twin.nbytes = hi_bytes
        self._insert(storage, twin)
        return twin

    def move(self, t: torch.Tensor, to: torch.Tensor) -> None:
        """Make the twin of ``t`` that of ``to`` too, with all that is known of it: another rounding of the same numbers."""
        twin = self.get(t)
        if twin is None:
            return
        other = self.bind(to, self.window(t, twin).clone(memory_format=torch.preserve_format))
        for name, value in vars(twin).items():
            if name not in vars(other) and name not in ("ref", "shared", "writes"):
                setattr(other, name, value)
        other.u = twin.u

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

    def _valid(self, t: torch.Tensor, twin: Twin, storage: Any) -> bool:
        if twin.dtype is not t.dtype and REAL_DTYPE.get(twin.dtype, twin.dtype) != REAL_DTYPE.get(t.dtype, t.dtype):
            self._resync(t, "storage reinterpreted as another dtype")
            return False
        if storage.nbytes() != twin.lo_bytes:
            if storage.nbytes() > twin.lo_bytes and not twin.decision:
                self._resync(t, "storage resized")
                return False
            twin.lo_bytes = storage.nbytes()
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
        lo_bytes = storage.nbytes()
        numel = lo_bytes // t.element_size()
        wide = torch.complex128 if t.is_complex() else torch.float64
        whole = t.numel() == numel and t.storage_offset() == 0 and t.is_contiguous()
        if whole and not t.is_conj() and not t.is_neg():
            hi = t.detach().to(wide, copy=True, memory_format=torch.contiguous_format)
        else:
            plain = torch.empty(0, dtype=t.dtype, device=t.device).set_(storage, 0, (numel,), (1,))
            hi = plain.to(wide, copy=True)
        twin = Twin(hi, t.dtype, -1 if t.is_inference() else t._version, lo_bytes)
        twin.nbytes = hi.untyped_storage().nbytes()
        self._insert(storage, twin)
        return twin

    def _unshare(self, twin: Twin) -> None:
        """Give a twin that is about to be written a buffer of its own; the last holder of a shared one keeps it."""
        group = twin.shared
        assert group is not None
        held = twin.ref is not None
        if held:
            self._release(twin)
        twin.shared = None
        if group.holders:
            hi = twin.hi
            twin.hi = _flat(hi).clone().as_strided(hi.shape, hi.stride(), hi.storage_offset())
            twin.buffer = twin.hi.untyped_storage()._cdata
        twin.nbytes = twin.hi.untyped_storage().nbytes()
        if held:
            self.bytes += twin.nbytes
            self._keep_within()

    def _release(self, twin: Twin) -> None:
        """Take a twin's bytes off the account: a shared buffer counts until its last holder goes."""
        group = twin.shared
        if group is None:
            self.bytes -= twin.nbytes
            return
        group.holders -= 1
        if not group.holders:
            self.bytes -= group.nbytes

    def _insert(self, storage: Any, twin: Twin) -> None:
        key = storage._cdata
        twins = self._twins
        if key in twins:
            self._drop(key)
        watch = _Watch(storage, _freed)
        watch.key = key
        watch.memory = self._self
        twin.ref = watch
        twins[key] = twin
        self.bytes += twin.nbytes
        if self.max_bytes is not None:
            self._keep_within()
        elif self.bytes > self.peak_bytes:
            self.peak_bytes = self.bytes

    def _drop(self, key: int) -> None:
        twin = self._twins.pop(key, None)
        if twin is not None:
            twin.ref = None
            self._release(twin)

    def _keep_within(self) -> None:
        """Evict while above the cap, oldest first: long-lived twins (weights) are cheap to restart, the newest are about to be used."""
        limit = self.max_bytes
        while limit is not None and self.bytes > limit and self._twins:
            before = self.bytes
            self._drop(next(iter(self._twins)))
            self.evicted_bytes += before - self.bytes
            self.resyncs["evicted under the memory cap"] += 1
        self.peak_bytes = max(self.peak_bytes, self.bytes)


def _laid_out(t: torch.Tensor, hi: torch.Tensor, numel: int) -> torch.Tensor:
    """``hi`` copied into a buffer as long as the storage of ``t``, at the place of ``t``; the whole buffer where ``t`` is only a part."""
    buffer = torch.empty(numel, dtype=hi.dtype, device=hi.device)
    window = buffer.as_strided(t.shape, t.stride(), t.storage_offset())
    if torch._debug_has_internal_overlap(window) != 1:
        window.copy_(hi)
    else:
        places = torch.arange(numel, device=hi.device).as_strided(t.shape, t.stride(), t.storage_offset())
        buffer[places.reshape(-1)] = hi.reshape(-1)
    return window if window.numel() == numel else buffer


def _flat(hi: torch.Tensor) -> torch.Tensor:
    """The whole buffer of ``hi`` as one dimension."""
    return hi.as_strided((hi.untyped_storage().nbytes() // hi.element_size(),), (1,), 0)
