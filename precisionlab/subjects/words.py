"""The closed sets a run is described with: dtype, mode, kernels. No torch in here."""

from __future__ import annotations

import difflib
from enum import Enum

from precisionlab.errors import SettingsError


class _Word(str, Enum):
    def __str__(self) -> str:
        return str(self.value)


class LowDtype(_Word):
    """The dtype whose safety is in question. ``fp32`` is the control: nothing is lowered."""

    FP16 = "fp16"
    BF16 = "bf16"
    FP32 = "fp32"

    @property
    def torch_name(self) -> str:
        """Its attribute of the torch module."""
        return _TORCH_NAMES[self]


class Mode(_Word):
    """How the program is lowered."""

    AMP = "amp"
    """fp32 parameters under ``torch.autocast``, with a ``GradScaler`` for fp16."""
    PURE = "pure"
    """Parameters, buffers and floating inputs in the low dtype."""
    MASTER = "master"
    """Parameters in the low dtype, fp32 master copies in the optimizer, with a ``GradScaler`` for fp16."""


class Kernels(_Word):
    """How the low-precision side computes dot products."""

    AUTO = "auto"
    """``fast`` where this machine's native half matmul is slow."""
    NATIVE = "native"
    """The kernels of this machine, bit for bit."""
    FAST = "fast"
    """In fp32, rounded to storage once: what a GPU with fp32 accumulation does, up to the order of the sum."""


_TORCH_NAMES = {LowDtype.FP16: "float16", LowDtype.BF16: "bfloat16", LowDtype.FP32: "float32"}
_SPELLINGS = {
    "fp16": LowDtype.FP16,
    "half": LowDtype.FP16,
    "float16": LowDtype.FP16,
    "bf16": LowDtype.BF16,
    "bfloat16": LowDtype.BF16,
    "fp32": LowDtype.FP32,
    "float": LowDtype.FP32,
    "float32": LowDtype.FP32,
}


def parse_dtype(name: object) -> LowDtype:
    """``fp16``, ``half``, ``float16``, ``torch.float16`` (text or the dtype itself) and so on, in any case.

    Raises ``SettingsError`` for anything else, with the nearest spelling.
    """
    text = str(name).lower().removeprefix("torch.")
    if text in _SPELLINGS:
        return _SPELLINGS[text]
    near = difflib.get_close_matches(text, _SPELLINGS, n=1)
    raise SettingsError(f"there is no dtype {str(name)!r} to audit", hint=f"{near[0]!r}" if near else "fp16, bf16 or fp32")


def parse_mode(name: object) -> Mode:
    """A mode by name. Raises ``SettingsError`` for one that does not exist."""
    try:
        return Mode(str(name))
    except ValueError:
        raise SettingsError(f"there is no mode {str(name)!r}", hint="amp, pure or master") from None


def parse_kernels(name: object) -> Kernels:
    """A choice of kernels by name. Raises ``SettingsError`` for one that does not exist."""
    try:
        return Kernels(str(name))
    except ValueError:
        raise SettingsError(f"there are no kernels {str(name)!r}", hint="auto, native or fast") from None
