"""The spread of magnitudes over binades, from samples."""

from __future__ import annotations

import math

import pytest
import torch

from precisionlab.shadow.exponents import SAMPLE, Spread, _step

LOWEST, BINADES = -140, 181


def counted(*tensors: torch.Tensor, factor: float = 1.0) -> tuple[list[float], list[float]]:
    spread = Spread(LOWEST, BINADES)
    for t in tensors:
        spread.add(t, factor)
    return spread.totals()


def by_frexp(t: torch.Tensor) -> tuple[list[float], list[float]]:
    t = t.flatten()
    t = t[t.isfinite() & (t != 0)]
    slots = (torch.frexp(t).exponent.long() - 1 - LOWEST).clamp(0, BINADES - 1)
    elements = torch.bincount(slots, minlength=BINADES).double()
    energy = torch.zeros(BINADES, dtype=torch.float64).index_add_(0, slots, t.square() / t.square().sum())
    return elements.tolist(), energy.tolist()


def test_small_tensors_are_counted_exactly() -> None:
    torch.manual_seed(0)
    t = torch.exp2(torch.randn(20, 50, dtype=torch.float64) * 20) * torch.randn(20, 50, dtype=torch.float64).sign()
    assert t.numel() <= SAMPLE
    for form in (t, t.t(), t[:, ::2], t[3]):
        elements, energy = counted(form)
        expected = by_frexp(form)
        assert elements == expected[0]
        assert energy == pytest.approx(expected[1], rel=1e-12)


def test_zeros_and_nonfinite_values_are_left_out() -> None:
    t = torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan, 3.0, -3.0], dtype=torch.float64)
    elements, energy = counted(t)
    assert elements[1 - LOWEST] == 2 == sum(elements)
    assert energy[1 - LOWEST] == 1.0 == sum(energy)
    assert sum(counted(torch.zeros(8, dtype=torch.float64))[0]) == 0


def test_a_power_of_two_shifts_the_binades() -> None:
    t = torch.exp2(torch.arange(-30.0, 10.0, dtype=torch.float64))
    assert counted(t, factor=2.0**-16)[0][: BINADES - 20] == counted(t)[0][16 : BINADES - 4]


def test_each_tensor_has_the_same_weight_whatever_its_energy() -> None:
    _, energy = counted(torch.full((4,), 1e-9, dtype=torch.float64), torch.full((900,), 1e9, dtype=torch.float64))
    assert energy[math.floor(math.log2(1e-9)) - LOWEST] == 1.0
    assert energy[math.floor(math.log2(1e9)) - LOWEST] == 1.0


@pytest.mark.parametrize("shape", [(1024, 1024), (3, 5, 7, 1000), (4096, 63)])
def test_a_sample_sees_every_column_in_its_share(shape: tuple[int, ...]) -> None:
    """One column of eight holds other magnitudes than the rest: an even stride would see it always or never."""
    t = torch.ones(shape, dtype=torch.float64)
    t[..., ::8] = 2.0**-30
    elements, _ = counted(t)
    share = elements[-30 - LOWEST] / sum(elements)
    exact = float((t < 1).double().mean())
    assert share == pytest.approx(exact, rel=0.1)
    assert sum(elements) == pytest.approx(t.numel())


@pytest.mark.parametrize("n", [SAMPLE + 1, 65536, 1_000_003, 3 * 5 * 7 * 11 * 13 * 17])
def test_a_sample_takes_no_element_twice(n: int) -> None:
    assert len({k * _step(n) % n for k in range(SAMPLE)}) == SAMPLE


def test_torch_and_numba_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(1)
    tensors = [torch.randn(n, dtype=torch.float64) * 2.0**-k for n, k in ((7, 3), (5000, 60), (1000, 0))]
    tensors.append(torch.tensor([0.0, math.inf, math.nan, 1e-300], dtype=torch.float64))
    by_numba = counted(*tensors)
    monkeypatch.setattr("precisionlab.shadow.exponents._kernels", lambda: None)
    by_torch = counted(*tensors)
    assert by_torch[0] == pytest.approx(by_numba[0])
    assert by_torch[1] == pytest.approx(by_numba[1])
