"""How the magnitudes of many tensors are spread over binades, from at most ``SAMPLE`` elements of each.

The elements of a tensor are taken a golden section of its length apart (a Weyl sequence: evenly spread whatever its rows are), so that a
tensor costs microseconds however big it is. Each is weighted to stand for all of them.
"""

from __future__ import annotations

import functools
import math

import numpy as np
import torch
from torch import Tensor

from precisionlab.shadow.measure import _is_dense, _kernels

SAMPLE = 1024
"""Elements looked at in one tensor: a share of p is off by sqrt(p / 1024), and hundreds of tensors are averaged."""
_GOLDEN = (math.sqrt(5.0) - 1.0) / 2.0


class Spread:
    """Counts and energies by binade. ``lowest`` is the exponent of the first of ``binades`` entries."""

    def __init__(self, lowest: int, binades: int) -> None:
        self.lowest = lowest
        self.tensors = 0
        self._elements = np.zeros(binades)
        self._energy = np.zeros(binades)
        self._elsewhere: dict[torch.device, Tensor] = {}
        """Of tensors that are not on the CPU: counts and energies, left on their device."""

    def add(self, values: Tensor, factor: float) -> None:
        """Take in a float64 tensor times ``factor``. Zeros, Inf and NaN are left out; the energy of the rest is normalised to 1."""
        n = values.numel()
        if not n:
            return
        if not _is_dense(values):
            values = values.contiguous()
        self.tensors += 1
        kernels = _kernels() if values.is_cpu else None
        seen = min(n, SAMPLE)
        if kernels is None:
            self._add_torch(values, n, seen, factor)
        else:
            kernels.spread(values.data_ptr(), n, seen, _step(n) % n, factor, self.lowest, self._elements, self._energy)

    def totals(self) -> tuple[list[float], list[float]]:
        """Elements and energy by binade."""
        both = np.stack((self._elements, self._energy))
        for part in self._elsewhere.values():
            both = both + part.cpu().numpy()
        return both[0].tolist(), both[1].tolist()

    def _add_torch(self, values: Tensor, n: int, seen: int, factor: float) -> None:
        flat = values.as_strided((n,), (1,), values.storage_offset())
        if seen < n:
            flat = flat[torch.arange(seen, device=flat.device) * _step(n) % n]
        flat = flat * factor
        flat = torch.where(flat.isfinite(), flat, 0.0)
        square = flat.square()
        slots = (torch.frexp(flat).exponent.long() - 1 - self.lowest).clamp_(0, len(self._elements) - 1)
        total = square.sum()
        counted = (square > 0) & (total > 0)
        held = self._elsewhere.get(values.device)
        if held is None:
            held = self._elsewhere[values.device] = torch.zeros(2, len(self._elements), dtype=torch.float64, device=values.device)
        held[0].index_add_(0, slots, counted.double() * (n / seen))
        held[1].index_add_(0, slots, torch.where(counted, square / total, 0.0))


@functools.lru_cache(maxsize=4096)
def _step(n: int) -> int:
    """An increment near n times the golden section that has no divisor in common with n; 1 where every element is taken."""
    if n <= SAMPLE:
        return 1
    step = int(n * _GOLDEN)
    while math.gcd(step, n) > 1:
        step += 1
    return step
