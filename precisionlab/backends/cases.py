"""The cases of the probe: kernels that sum, each with an adapter that makes the kernel sum given terms.

A case is a function from terms X of shape (rows, n), in the storage dtype, to the rows' sums (rows,) as the kernel under test returned
them. It calls one ATen op, directly, and must not round anywhere else: it fills the other operands with ones and zeros. Cases for ops
whose terms cannot be chosen freely (squares, exponentials, running means) return any function of X instead and are judged by error.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

import torch

from precisionlab.backends.error_level import Unfolded
from precisionlab.errors import RegistryError

Tensor = torch.Tensor
Adapter = Callable[[Tensor], Tensor]

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


class Method(Enum):
    """How a case is asked."""

    MASKS = "masks"
    """The terms are free: summation tree, significand, rounding, subnormals, overflow (``trees``, ``additions``)."""
    ERROR = "error"
    """Only results can be compared with the same op in fp64 (``error_level``)."""


@dataclass(frozen=True)
class Case:
    """A sum that an ATen op makes."""

    op: str
    """As reports name it, without a trailing underscore: ``aten.mm``."""
    label: str
    """Which sum of the op: ``weight gradient``; empty where it makes one only."""
    method: Method
    adapter: Adapter
    divides: bool
    """Whether the kernel divides the sum by n before it rounds to storage; the adapter multiplies by n, exactly, for n a power of two."""
    unfolded: Unfolded | None
    """For the method ERROR: how contributions to the sum become terms and the result a sum again; None where that cannot be."""
    rows: int
    """Sums that one call makes. Always as many, so that no kernel changes its order with the number of rows."""


_CASES: dict[tuple[str, str], Case] = {}


def case(
    op: str,
    label: str = "",
    *,
    method: Method = Method.MASKS,
    divides: bool = False,
    unfolded: Unfolded | None = None,
    rows: int = 64,
) -> Callable[[Adapter], Adapter]:
    """Registers the decorated adapter. Raises ``RegistryError`` for a second one of the same op and label."""

    def register(adapter: Adapter) -> Adapter:
        if (op, label) in _CASES:
            raise RegistryError(f"two probe cases for {op} ({label or 'its only sum'})", hint="another label")
        _CASES[op, label] = Case(op, label, method, adapter, divides, unfolded, rows)
        return adapter

    return register


def all_cases() -> tuple[Case, ...]:
    """Every case, by op and label."""
    from precisionlab.backends.kernels import exponentials, normalisations, products, reductions, scatters  # noqa: F401

    return tuple(_CASES[key] for key in sorted(_CASES))
