"""The profile of the machine at hand, as an audit uses it: the shipped one where it fits, else probed op by op as ops are met."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from pathlib import Path

import torch

from precisionlab.backends.cases import DTYPES, all_cases
from precisionlab.backends.probe import hardware, probe
from precisionlab.backends.profile import Entry, Origin, Profile, SizeClass
from precisionlab.backends.store import load_profile, shipped_names
from precisionlab.errors import SettingsError
from precisionlab.formats.catalogue import get_format

SHIPPED_CPU = "cpu"
"""The CPU that was probed for the package."""


class LiveProfile:
    """Answers like a ``Profile`` and probes an op in a dtype when it is first asked about it, at the short length.

    That takes some ten milliseconds, on one thread: threads decide the order of a sum, not what it is kept in.
    """

    def __init__(self, device: str = "cpu") -> None:
        self.name, self.device, self.torch, self.origin = f"this {device}", device, torch.__version__, Origin.PROBED
        self._ops = {case.op for case in all_cases()}
        self._dtypes = {get_format(dtype).name: dtype for dtype in DTYPES}
        self._known: dict[tuple[str, str], Profile] = {}

    def accumulation_of(self, op: str, dtype: str, length: int | None = None, case: str | None = None) -> Entry | None:
        """See ``Profile.accumulation_of``; every class of lengths gets what was found for the short one."""
        op = op.rstrip("_")
        if op not in self._ops or dtype not in self._dtypes:
            return None
        if (op, dtype) not in self._known:
            with one_thread():
                self._known[op, dtype] = probe([op], [self._dtypes[dtype]], self.device, [SizeClass.SHORT])
        return self._known[op, dtype].accumulation_of(op, dtype, length, case)

    def mismatch(self, torch_version: str) -> str | None:
        """Never: it is this machine under this torch."""
        return None


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """torch computes on one thread: for sums this short, barriers on a busy machine cost more than the work."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@functools.cache
def current() -> Profile | LiveProfile:
    """The CPU at hand: the shipped profile if it was probed under this release of torch with the same instruction sets, else a live one."""
    if SHIPPED_CPU in shipped_names():
        shipped = load_profile(SHIPPED_CPU)
        if shipped.mismatch(torch.__version__) is None and _extensions(shipped.hardware) == _extensions(hardware()):
            return shipped
    return LiveProfile()


def target_profile(target: str | Path | Profile | None) -> Profile | None:
    """What ``target=`` of an audit means: a profile, its file, the name of a shipped one, or None.

    Raises ``ProfileError`` for one that cannot be loaded, ``SettingsError`` for anything else.
    """
    if target is None or isinstance(target, Profile):
        return target
    if not isinstance(target, (str, Path)):
        raise SettingsError(f"target must be a profile, not {type(target).__name__}", hint=f"{' or '.join(shipped_names())}, or a file")
    return load_profile(target)


def _extensions(description: str) -> set[str]:
    """The instruction sets in a hardware description: kernels follow them, not the model."""
    return {word.lower() for word in description.split()} & {"default", "avx2", "avx512", "avx512_bf16", "amx", "amx_fp16"}
