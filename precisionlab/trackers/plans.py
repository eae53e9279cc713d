"""The plan of an op: what its results are stored in, what its arithmetic is done in, and what its sums are kept in.

Storage and compute dtypes are read from the op. What a sum is kept in is the kernel's own affair: the profile in force says, and where
it knows nothing, a half is taken to be summed in fp32, as PyTorch's kernels mean to.
"""

from __future__ import annotations

import torch

from precisionlab.backends.live import LiveProfile, current
from precisionlab.backends.lookup import entry_for
from precisionlab.backends.profile import Origin, Profile
from precisionlab.ops.registry import Family
from precisionlab.records import Plan
from precisionlab.shadow.call import OpCall
from precisionlab.trackers.pairs import NAMES

HALVES = frozenset((torch.float16, torch.bfloat16, torch.float8_e5m2, torch.float8_e4m3fn, torch.float8_e5m2fnuz, torch.float8_e4m3fnuz))
SUMS = frozenset(
    (Family.DOT, Family.REDUCTION, Family.CONVOLUTION, Family.NORMALISATION, Family.SCAN, Family.SOFTMAX, Family.ATTENTION, Family.LOSS)
)
_FAST = frozenset((Family.DOT, Family.CONVOLUTION, Family.ATTENTION))
"""Families that ``--kernels fast`` runs in fp32, whatever the native kernel does."""


class Plans:
    """Plans of ops, under the profile of a target machine, or of the one at hand where that is None."""

    def __init__(self, target: Profile | None = None, fast: bool = False) -> None:
        self.target = target
        self.fast = fast and target is None

    def of(self, dtype: torch.dtype, call: OpCall) -> Plan:
        """The plan of ``call``, whose first result is of ``dtype``."""
        storage = NAMES.get(dtype, str(dtype).removeprefix("torch."))
        wide = "fp32" if dtype in HALVES else storage
        family = call.info.family
        compute = storage if family is Family.COPY else wide
        accumulation = storage
        if family in SUMS or family is Family.INDEXING:
            accumulation = self._accumulation(storage, call) or wide
        return Plan(storage, compute, accumulation)

    def replaces(self, call: OpCall) -> bool:
        """Whether ``--kernels fast`` ran this op in fp32 in place of the program's kernel."""
        return self.fast and call.info.family in _FAST

    def _accumulation(self, storage: str, call: OpCall) -> str | None:
        profile = self._profile(call)
        if profile is None or (self.replaces(call) and storage in ("fp16", "bf16")):
            return None
        entry = entry_for(profile, call.info.name, storage, call.args, call.kwargs)
        return entry.accumulation if entry is not None else None

    def _profile(self, call: OpCall) -> Profile | LiveProfile | None:
        """The target's, for tensors of any device; else that of this machine, which describes its CPU only."""
        if self.target is not None:
            return self.target
        return current() if call.outputs[0].lo.device.type == "cpu" else None


def notes_on(target: Profile) -> list[str]:
    """What a report under ``target`` must say of it."""
    declared = " (declared from publications, not probed)" if target.origin is Origin.DECLARED else ""
    words = f"accumulation formats are those of the target {target.name!r}, {target.hardware}{declared}; errors were measured here"
    mismatch = target.mismatch(torch.__version__)
    return [words, mismatch] if mismatch else [words]
