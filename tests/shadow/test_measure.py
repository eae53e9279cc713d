"""The measuring pass against a straightforward float64 reference (torch, unfused, one line a number)."""

from __future__ import annotations

import math
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from precisionlab.shadow import measure as module
from precisionlab.shadow.measure import Displacement, LostStats, Stats, count_nonfinite, displacement, lost_addend, measure, measure_torch

HALVES = [torch.float16, torch.bfloat16]
DTYPES = [*HALVES, torch.float32, torch.float64]
SPECIAL = [0.0, -0.0, math.inf, -math.inf, math.nan, 1.0, -3.5]


def reference(lo: Tensor, hi: Tensor) -> Stats:
    """The definition of every field. hi must be float64, lo real."""
    x, y = lo.double().flatten(), hi.flatten()
    tiny = torch.finfo(lo.dtype).smallest_normal
    flushed = (x == 0) & (y != 0) & y.isfinite()
    both = x.isfinite() & y.isfinite()
    u, v = x[both], y[both]
    return Stats(
        elements=x.numel(),
        nonfinite=int((~x.isfinite()).sum()),
        introduced=int((~x.isfinite() & y.isfinite()).sum()),
        hi_nonfinite=int((~y.isfinite()).sum()),
        flushed=int(flushed.sum()),
        flushed_sq=math.fsum((y[flushed] ** 2).tolist()),
        subnormal=int(((x != 0) & (x.abs() < tiny)).sum()),
        diff_sq=math.fsum(((u - v) ** 2).tolist()),
        hi_sq=math.fsum((v**2).tolist()),
        lo_sq=math.fsum((u**2).tolist()),
        dot=math.fsum((u * v).tolist()),
        max_abs=max(x[x.isfinite()].abs().tolist(), default=0.0),
        hi_max_abs=max(y[y.isfinite()].abs().tolist(), default=0.0),
    )


def assert_same(found: tuple, expected: tuple) -> None:
    """Counts and maxima equal, sums to rounding: a dot product that cancels is compared at the size of its factors."""
    assert type(found) is type(expected)
    for name, a, b in zip(expected._fields, found, expected, strict=True):
        assert type(a) is type(b), name
        if isinstance(b, int) or name.startswith(("max", "hi_max")):
            assert a == b, (name, a, b)
        else:
            size = math.sqrt(expected.hi_sq * expected.lo_sq) if name == "dot" else abs(b)
            assert a == pytest.approx(b, rel=1e-12, abs=1e-12 * size), (name, a, b)


def sample(n: int, dtype: torch.dtype, seed: int = 0, specials: bool = True) -> tuple[Tensor, Tensor]:
    """A tensor and its twin: rounded normals, subnormals, values that flush and overflow, and every pair of special values."""
    generator = torch.Generator().manual_seed(seed)
    hi = torch.randn(n, dtype=torch.float64, generator=generator)
    if specials:
        part = n // 8
        hi[:part] *= torch.finfo(dtype).smallest_normal
        hi[part : 2 * part] *= torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps
        hi[2 * part : 3 * part] *= math.sqrt(torch.finfo(dtype).max) / 1e5
    lo = hi.to(dtype)
    if specials and n >= 200:
        pairs = torch.tensor([(a, b) for a in SPECIAL for b in SPECIAL], dtype=torch.float64)
        lo[-len(pairs) :], hi[-len(pairs) :] = pairs[:, 0].to(dtype), pairs[:, 1]
    order = torch.randperm(n, generator=generator)
    return lo[order], hi[order]


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("n", [1, 2, 15, 16, 1023, 1024, 1025, 5000])
@pytest.mark.parametrize("specials", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_numbers_agree_with_the_definition(dtype: torch.dtype, specials: bool, n: int) -> None:
    lo, hi = sample(n, dtype, specials=specials)
    assert_same(measure(lo, hi), reference(lo, hi))


@pytest.mark.parametrize("n", [0, 1, 300, 5000])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_torch_path_gives_the_same_numbers(dtype: torch.dtype, n: int) -> None:
    lo, hi = sample(n, dtype)
    assert_same(Stats.from_tensor(measure_torch(lo, hi)), reference(lo, hi))


@pytest.mark.parametrize("dtype", HALVES)
def test_every_bit_pattern_of_a_half_is_read_right(dtype: torch.dtype) -> None:
    lo = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(dtype)
    for block in (lo, lo[lo.isfinite()], lo[lo == lo]):
        hi = block.double()
        assert_same(measure(block, hi), reference(block, hi))
    for one in lo[::7]:
        assert measure(one, one.double()).max_abs == (abs(one.item()) if math.isfinite(one.item()) else 0.0)


def halves_and_twins() -> st.SearchStrategy[tuple[Tensor, Tensor]]:
    twin = st.floats(-1e150, 1e150) | st.sampled_from(SPECIAL)
    elements = st.lists(st.tuples(st.integers(-(1 << 15), (1 << 15) - 1), twin), max_size=40)
    return st.tuples(elements, st.sampled_from(HALVES)).map(
        lambda drawn: (
            torch.tensor([bits for bits, _ in drawn[0]], dtype=torch.int16).view(drawn[1]),
            torch.tensor([value for _, value in drawn[0]], dtype=torch.float64),
        )
    )


@given(halves_and_twins())
@settings(deadline=None, max_examples=200)
def test_any_bits_against_any_twin_agree_with_the_definition(pair: tuple[Tensor, Tensor]) -> None:
    assert_same(measure(*pair), reference(*pair))
    assert_same(Stats.from_tensor(measure_torch(*pair)), reference(*pair))
    assert count_nonfinite(pair[0]) == reference(*pair).nonfinite


@given(st.lists(st.tuples(st.floats(width=32), st.floats(-1e150, 1e150) | st.sampled_from(SPECIAL)), max_size=40), st.booleans())
@settings(deadline=None, max_examples=200)
def test_any_float_against_any_twin_agrees_with_the_definition(drawn: list[tuple[float, float]], double: bool) -> None:
    lo = torch.tensor([a for a, _ in drawn], dtype=torch.float64 if double else torch.float32)
    hi = torch.tensor([b for _, b in drawn], dtype=torch.float64)
    assert_same(measure(lo, hi), reference(lo, hi))


@pytest.mark.parametrize("dtype", DTYPES)
def test_an_empty_tensor_measures_as_all_zeros(dtype: torch.dtype) -> None:
    lo = torch.empty(0, 3, dtype=dtype)
    assert measure(lo, lo.double()) == Stats(*[0] * len(Stats._fields))
    assert count_nonfinite(lo) == 0
    assert lost_addend(lo, lo, lo) == LostStats(*[0] * len(LostStats._fields))
    assert displacement(lo, lo, lo.double(), lo.double()) == Displacement(*[0] * len(Displacement._fields))


@pytest.mark.parametrize("value", SPECIAL)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_scalar_tensor_is_one_element(dtype: torch.dtype, value: float) -> None:
    lo, hi = torch.tensor(value, dtype=dtype), torch.tensor(2.0, dtype=torch.float64)
    assert measure(lo, hi).elements == 1
    assert_same(measure(lo, hi), reference(lo, hi))


LAYOUTS = {
    "transposed": lambda t: t.t(),
    "every second row": lambda t: t[::2],
    "every second column": lambda t: t[:, 1::2],
    "offset": lambda t: t[3:],
    "permuted, dense": lambda t: t.view(8, 5, 5, 12).permute(0, 3, 1, 2),
    "expanded": lambda t: t[:, :1].expand(-1, 7),
    "expanded scalar": lambda t: t[0, 0].expand(5, 6),
    "overlapping": lambda t: t.as_strided((30, 4), (2, 1)),
    "size-1 dimension": lambda t: t[:, None, :],
    "one row": lambda t: t.as_strided((1, 60), (1, 1)),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_any_strides_measure_as_their_copy(dtype: torch.dtype, layout: str) -> None:
    lo, hi = sample(2400, dtype)
    change = LAYOUTS[layout]
    lo, hi = change(lo.view(40, 60)), change(hi.view(40, 60))
    expected = reference(lo, hi)
    assert_same(measure(lo, hi), expected)
    assert_same(measure(lo.contiguous(), hi), expected)
    assert_same(measure(lo, hi.contiguous()), expected)
    assert count_nonfinite(lo) == expected.nonfinite


def test_dense_tensors_with_equal_strides_are_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    lo, hi = (t.view(4, 5, 5, 12).permute(0, 3, 1, 2) for t in sample(1200, torch.bfloat16))
    expected = reference(lo, hi)
    monkeypatch.setattr(Tensor, "contiguous", lambda *args, **kwargs: pytest.fail("copied"))
    assert_same(measure(lo, hi), expected)


@pytest.mark.parametrize("half", [torch.float16, torch.float32, torch.float64])
def test_a_complex_number_counts_as_two(half: torch.dtype) -> None:
    lo, hi = sample(600, half)
    x, y = torch.view_as_complex(lo.view(-1, 2)), torch.view_as_complex(hi.view(-1, 2))
    assert_same(measure(x, y), reference(lo, hi))
    assert_same(Stats.from_tensor(measure_torch(x, y)), reference(lo, hi))
    assert count_nonfinite(x) == reference(lo, hi).nonfinite
    conjugate = torch.tensor([1.0, -1.0], dtype=torch.float64)
    assert_same(measure(x, y.conj()), reference(lo, (hi.view(-1, 2) * conjugate).flatten()))


def test_a_lazily_negated_view_is_negated() -> None:
    z = torch.randn(10, dtype=torch.complex64).conj()
    assert z.imag.is_neg()
    assert_same(measure(z.imag, z.imag.double().clone()), reference(z.imag.clone(), z.imag.double().clone()))
    assert measure(z.imag, z.imag.double()).diff_sq == 0.0


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_subnormals_of_fp8_are_its_own(dtype: torch.dtype) -> None:
    lo = torch.arange(256, dtype=torch.int16).to(torch.uint8).view(dtype)
    hi = torch.linspace(-500, 500, 256, dtype=torch.float64)
    assert_same(measure(lo, hi), reference(lo.float(), hi)._replace(subnormal=2 * (7 if dtype is torch.float8_e4m3fn else 3)))
    assert count_nonfinite(lo) == reference(lo.float(), hi).nonfinite


def test_a_twin_of_another_shape_is_refused() -> None:
    with pytest.raises(ValueError, match=r"shape \(4,\).*shape \(2, 2\)"):
        measure(torch.zeros(4), torch.zeros(2, 2, dtype=torch.float64))


@pytest.mark.parametrize("specials", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.usefixtures("threads")
def test_a_big_tensor_gives_the_same_bits_on_one_and_two_threads(dtype: torch.dtype, specials: bool) -> None:
    lo, hi = sample(1_000_003, dtype, specials=specials)
    found = []
    for count in (1, 2):
        torch.set_num_threads(count)
        found.append((measure(lo, hi), lost_addend(lo, lo.flip(0), lo), displacement(lo, lo.flip(0), hi, hi.flip(0)), count_nonfinite(lo)))
        assert torch.get_num_threads() == count
    assert repr(found[0]) == repr(found[1])
    assert_same(found[0][0], reference(lo, hi))
    assert found[0][3] == found[0][0].nonfinite


@pytest.mark.usefixtures("threads")
def test_one_thread_means_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    monkeypatch.setattr(module, "_pool", lambda: pytest.fail("asked for a helper"))
    assert measure(*sample(1_000_000, torch.bfloat16)).elements == 1_000_000


@pytest.mark.usefixtures("threads")
def test_an_error_in_one_chunk_surfaces_only_when_no_thread_reads_any_more() -> None:
    torch.set_num_threads(2)
    running = threading.Semaphore(0)

    def kernel(address: int, n: int) -> tuple[int]:
        if threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt
        time.sleep(0.05)
        running.release()
        return (n,)

    with pytest.raises(KeyboardInterrupt):
        module._in_chunks(kernel, (torch.zeros(1 << 20),), 1 << 20)
    done = running._value
    time.sleep(0.15)
    assert running._value == done


@pytest.mark.parametrize("dtype", [*HALVES, torch.float32])
def test_subnormals_are_seen_even_where_the_cpu_flushes_them(dtype: torch.dtype) -> None:
    lo, hi = sample(4000, dtype)
    small = torch.full((64,), torch.finfo(dtype).smallest_normal / 4, dtype=dtype)
    expected, twice = reference(lo, hi), small.double() * 2
    still = lost_addend(small, small, small), displacement(small * 2, small, twice, small.double())
    lo_new, hi_old = small * 2, small.double()
    if not torch.set_flush_denormal(True):
        pytest.skip("this CPU cannot flush subnormals")
    try:
        assert_same(measure(lo, hi), expected)
        assert lost_addend(small, small, small) == still[0]
        assert displacement(lo_new, small, twice, hi_old) == still[1]
    finally:
        torch.set_flush_denormal(False)
    assert still[0].swamped == still[0].addends == 64
    assert still[1].stalled == 0 and still[1].moved == 64


def lost_reference(base: Tensor, addend: Tensor, out: Tensor, alpha: float) -> LostStats:
    b, a, o = (part.expand_as(out).double() for part in (base, addend, out))
    keep = b.isfinite() & a.isfinite() & o.isfinite()
    d, e = (alpha * a)[keep], (o - b)[keep]
    swamped = int(((d != 0) & (e == 0)).sum())
    return LostStats(float(((e - d) ** 2).sum()), float((d**2).sum()), float((b[keep] ** 2).sum()), swamped, int((d != 0).sum()))


@pytest.mark.parametrize("alpha", [1.0, -0.001, 0.0])
@pytest.mark.parametrize("dtype", DTYPES)
def test_lost_addend_agrees_with_the_definition(dtype: torch.dtype, alpha: float) -> None:
    base, _ = sample(3000, dtype, seed=1)
    addend = sample(3000, dtype, seed=2)[0] * 1e-3
    for b, a in ((base, addend), (base.view(50, 60), addend[:60]), (base[5], addend.view(60, 50).t())):
        out = torch.add(b, a, alpha=alpha)
        found, expected = lost_addend(b, a, out, alpha), lost_reference(b, a, out, alpha)
        assert found == pytest.approx(expected, rel=1e-12)
        assert module._lost_addend_torch(b.expand_as(out), a.expand_as(out), out, alpha) == pytest.approx(expected, rel=1e-12)


def test_a_running_sum_in_fp16_swamps_ones_at_2048() -> None:
    base = torch.tensor([2047.0, 2048.0], dtype=torch.float16)
    one = torch.ones(2, dtype=torch.float16)
    assert lost_addend(base, one, base + one) == LostStats(lost_sq=1.0, addend_sq=2.0, base_sq=2047.0**2 + 2048.0**2, swamped=1, addends=2)


def test_lost_addend_takes_operands_of_several_dtypes() -> None:
    base, addend = torch.randn(10), torch.randn(10).bfloat16()
    out = base + addend
    assert lost_addend(base, addend, out) == pytest.approx(lost_reference(base, addend, out, 1.0), rel=1e-12)


def test_lost_addend_with_an_infinite_factor_counts_nothing() -> None:
    assert lost_addend(torch.ones(3), torch.ones(3), torch.ones(3), math.inf) == LostStats(0.0, 0.0, 0.0, 0, 0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_displacement_agrees_with_the_definition(dtype: torch.dtype) -> None:
    lo_old, hi_old = sample(3000, dtype, seed=3)
    step = torch.randn(3000, dtype=torch.float64) * 1e-3
    hi_new = hi_old + step
    lo_new = (lo_old.double() + step).to(dtype)
    keep = lo_new.isfinite() & lo_old.isfinite() & hi_new.isfinite() & hi_old.isfinite()
    x, y = (lo_new.double() - lo_old.double())[keep], (hi_new - hi_old)[keep]
    stalled = int(((x == 0) & (y != 0)).sum())
    expected = Displacement(float((x * y).sum()), float((x**2).sum()), float((y**2).sum()), stalled, int((y != 0).sum()), 3000)
    assert displacement(lo_new, lo_old, hi_new, hi_old) == pytest.approx(expected, rel=1e-12)
    assert module._displacement_torch(lo_new, lo_old, hi_new, hi_old) == pytest.approx(expected, rel=1e-12)
    columns = [t.view(50, 60).t() for t in (lo_new, lo_old, hi_new, hi_old)]
    mixed = [columns[0], columns[1].contiguous(), *columns[2:]]
    assert displacement(*columns) == pytest.approx(expected, rel=1e-12)
    assert displacement(*mixed) == pytest.approx(expected, rel=1e-12)


def test_a_bf16_weight_of_one_stalls_under_small_updates() -> None:
    weight, exact = torch.ones(8, dtype=torch.bfloat16), torch.ones(8, dtype=torch.float64)
    found = displacement(weight - 1e-3, weight, exact - 1e-3, exact)
    assert (found.stalled, found.moved, found.lo_sq) == (8, 8, 0.0)


def test_measuring_reads_only() -> None:
    lo, hi = sample(1000, torch.float16)
    lo_bits, hi_bits = lo.view(torch.int16).clone(), hi.view(torch.int64).clone()
    states = random.getstate(), np.random.get_state()[1].tobytes(), torch.get_rng_state()
    measure(lo, hi), lost_addend(lo, lo, lo), displacement(lo, lo, hi, hi), count_nonfinite(lo)
    assert torch.equal(lo.view(torch.int16), lo_bits) and torch.equal(hi.view(torch.int64), hi_bits)
    assert (random.getstate(), np.random.get_state()[1].tobytes()) == states[:2] and torch.equal(torch.get_rng_state(), states[2])


def test_autocast_does_not_touch_the_numbers() -> None:
    lo, hi = sample(1000, torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert_same(measure(lo, hi), reference(lo, hi))
        assert_same(Stats.from_tensor(measure_torch(lo, hi)), reference(lo, hi))


def test_without_numba_the_numbers_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    lo, hi = sample(1000, torch.bfloat16)
    monkeypatch.setattr(module, "_kernels", lambda: None)
    monkeypatch.setattr(module, "_LOADED", {})
    assert_same(measure(lo, hi), reference(lo, hi))
    assert count_nonfinite(lo) == reference(lo, hi).nonfinite
    assert lost_addend(lo, lo, lo) == pytest.approx(lost_reference(lo, lo, lo, 1.0))


def test_numba_is_imported_by_the_first_measurement_only() -> None:
    code = """if True:
        import sys, torch
        from precisionlab.shadow.measure import measure
        assert "numba" not in sys.modules
        measure(torch.zeros(2), torch.zeros(2, dtype=torch.float64))
        assert "numba" in sys.modules"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_forked_child_measures_big_tensors_with_threads_of_its_own() -> None:
    code = """if True:
        import os, torch
        from precisionlab.shadow.measure import measure
        torch.set_num_threads(2)
        lo = torch.ones(1 << 20, dtype=torch.bfloat16); hi = lo.double()
        expected, child = measure(lo, hi), os.fork()
        if child == 0:
            os._exit(0 if measure(lo, hi) == expected else 1)
        assert os.waitpid(child, 0)[1] == 0"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
