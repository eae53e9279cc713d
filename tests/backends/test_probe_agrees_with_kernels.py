"""Every CPU entry of the probe against random data: the kernels must do what the crafted inputs said they do."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch

from precisionlab.backends.cases import DTYPES, Case, Method, all_cases
from precisionlab.backends.probe import LENGTHS, kernel, probe_case, quiet
from precisionlab.backends.profile import Entry, Rounding, SizeClass
from precisionlab.backends.trees import FloatArray, Masks, Sums, Tree, summation_tree
from precisionlab.formats.catalogue import FP16, FP32, FP64, get_format
from precisionlab.formats.format import Format
from precisionlab.formats.rounding import round_to

ROWS = 32
SQRT_FACTOR = 4.0
"""Bound of a sum's error: this times sqrt(h) u sum|x| (Higham & Mary 2019; 1 covers 200 random sums, so 4 is out of reach by chance)."""
SIZES = [SizeClass.SHORT, SizeClass.MEDIUM, pytest.param(SizeClass.LONG, marks=pytest.mark.slow)]
CASES = [(case, dtype) for case in all_cases() for dtype in DTYPES]


def named(value: object) -> str:
    return f"{value.op.removeprefix('aten.')}-{value.label}" if isinstance(value, Case) else str(value).removeprefix("torch.")


def masked(method: Method) -> list[tuple[Case, torch.dtype]]:
    return [(case, dtype) for case, dtype in CASES if case.method is method]


@functools.cache
def entry_of(case: Case, dtype: torch.dtype, size: SizeClass) -> Entry:
    return probe_case(case, dtype, size)


def random_terms(n: int, dtype: torch.dtype, positive: bool, rows: int = ROWS) -> FloatArray:
    rng = np.random.default_rng([n, positive])
    values = rng.uniform(0.5, 1.5, (rows, n)) if positive else rng.standard_normal((rows, n))
    return torch.from_numpy(values).to(dtype).double().numpy()


def along(tree: Tree, terms: FloatArray, accumulator: Format) -> FloatArray:
    """The sums of the rows, added along the tree and rounded to nearest after each addition."""
    parts = list(terms.T)
    for below in tree.children:
        total = parts[below[0]]
        for child in below[1:]:
            total = total + parts[child]
        parts.append(round_to(total, accumulator))
    return parts[-1]


@pytest.mark.parametrize(("case", "dtype"), masked(Method.MASKS), ids=named)
def test_random_sums_are_reproduced_bit_by_bit_along_the_tree_that_was_found(case: Case, dtype: torch.dtype) -> None:
    """The whole claim at once: order, accumulator and rounding."""
    entry, n, storage = entry_of(case, dtype, SizeClass.SHORT), LENGTHS[SizeClass.SHORT], get_format(dtype)
    assert entry.rounding is Rounding.NEAREST_EVEN
    if "attention" in case.op and storage != FP32:
        pytest.skip("its sum is divided by one of exponentials that are good to 2^-14 only")
    if entry.evidence["significand_bits_min"] != entry.evidence["significand_bits_max"]:
        pytest.skip("adds in two formats: the next test")
    sums = kernel(case.adapter, dtype, case.rows)
    with quiet():
        tree = summation_tree(sums, n, range(n), Masks.of(storage, n, case.divides))
        for positive in (True, False):
            terms = random_terms(n, dtype, positive)
            found, summed = sums(terms), along(tree, terms, get_format(entry.accumulation))
            stored = round_to(summed, result_of(case, dtype))
            # a stored number as near as the nearest: fbgemm's bf16 rounds ties up, all else to even
            np.testing.assert_array_equal(np.abs(found - summed), np.abs(stored - summed))


def result_of(case: Case, dtype: torch.dtype) -> Format:
    """The format of the result; batch norm gives fp32 gradients to fp32 weights."""
    with quiet():
        return get_format(case.adapter(torch.ones(case.rows, LENGTHS[SizeClass.SHORT], dtype=dtype)).dtype)


def excess(sums: Sums, terms: FloatArray, result: Format, accumulator: Format, additions: int, relative: float = 0.0) -> FloatArray:
    """Error of each row over what one rounding of the result, ``relative``, and accumulating explain: above 1 they do not."""
    exact = terms.sum(1)
    allowed = 0.5 * result.ulp(exact) + relative * np.abs(exact) + SQRT_FACTOR * np.sqrt(additions) * accumulator.u * np.abs(terms).sum(1)
    return np.abs(sums(terms) - exact) / allowed


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize(("case", "dtype"), masked(Method.MASKS), ids=named)
def test_random_sums_are_as_wrong_as_the_accumulator_says_and_no_more(case: Case, dtype: torch.dtype, size: SizeClass) -> None:
    entry, n, storage = entry_of(case, dtype, size), LENGTHS[size], get_format(dtype)
    accumulator, result = get_format(entry.accumulation), result_of(case, dtype)
    sums = kernel(case.adapter, dtype, case.rows)
    rows = 8 if size is SizeClass.LONG else ROWS
    signed, positive = random_terms(n, dtype, False, rows), random_terms(n, dtype, True, rows)
    if storage == FP16:
        positive *= 2.0**-4  # the sums stay in range
    exponentials = 2.0**-13 if "attention" in case.op else 0.0
    with quiet():
        assert excess(sums, signed, result, accumulator, n, exponentials).max() <= 1
        if n * accumulator.u < 1:  # else a sum of positive terms may stagnate, and no bound holds
            assert excess(sums, positive, result, accumulator, n, exponentials).max() <= 1
        if accumulator.precision < FP32.precision and size is not SizeClass.SHORT:
            assert excess(sums, positive, result, FP32, n).max() > 1


@pytest.mark.parametrize(("case", "dtype"), [(c, d) for c, d in masked(Method.MASKS) if d is torch.float32], ids=named)
def test_fp32_sums_said_to_be_kept_in_fp64_round_once_and_the_others_do_not(case: Case, dtype: torch.dtype) -> None:
    size = SizeClass.MEDIUM
    entry, terms = entry_of(case, dtype, size), random_terms(LENGTHS[size], dtype, positive=True)
    with quiet():
        ulps = np.abs(kernel(case.adapter, dtype, case.rows)(terms) - terms.sum(1)) / FP32.ulp(terms.sum(1))
    assert (ulps.max() <= 0.5 + 1e-6) == (entry.accumulation == FP64.name)


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize(("case", "dtype"), masked(Method.ERROR), ids=named)
def test_kernels_judged_by_error_keep_their_word_on_other_data(case: Case, dtype: torch.dtype, size: SizeClass) -> None:
    entry, n = entry_of(case, dtype, size), LENGTHS[size]
    terms = random_terms(n, dtype, positive=True, rows=16)
    with quiet():
        found, exact = kernel(case.adapter, dtype, case.rows)(terms), kernel(case.adapter, torch.float64, case.rows)(terms)
    ulps = (np.abs(found - exact) / get_format(dtype).ulp(exact)).max()
    if dtype is torch.float32:
        assert (ulps <= 0.51) == (entry.accumulation == FP64.name)
    else:
        assert (ulps <= 1.02) == (entry.accumulation == FP32.name)


KNOWN_SURPRISES = [
    ("aten.index_add", "elements"),
    ("aten.index_add", "scaled rows"),
    ("aten.index_put", "accumulate, rows"),
    ("aten.embedding_dense_backward", ""),
    ("aten.native_layer_norm_backward", "weight gradient"),
    ("aten.native_layer_norm_backward", "weight gradient, fp32 weight"),
    ("aten.max_pool2d_with_indices_backward", ""),
    ("aten.segment_reduce", ""),
]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=named)
@pytest.mark.parametrize(("op", "label"), KNOWN_SURPRISES)
def test_ones_stall_where_the_probe_finds_the_storage_dtype(op: str, label: str, dtype: torch.dtype) -> None:
    case = next(case for case in all_cases() if (case.op, case.label) == (op, label))
    storage = get_format(dtype)
    assert entry_of(case, dtype, SizeClass.SHORT).accumulation == storage.name
    with quiet():
        assert kernel(case.adapter, dtype, case.rows)(np.ones((1, 4096)))[0] == storage.largest_exact_integer


def test_the_fp32_norm_of_ten_million_tens_is_as_wrong_as_the_running_sums_that_were_found() -> None:
    """1e7 tens have the norm 31622.8; PyTorch gives 31328.5 (pytorch #169237) where eight running sums share the squares."""
    case = next(case for case in all_cases() if case.op == "aten.linalg_vector_norm")
    entry, n = entry_of(case, torch.float32, SizeClass.LONG), 10_000_000
    assert entry.block is not None
    sums = round(int(entry.evidence["terms"]) / entry.block)
    running = np.add.accumulate(np.full(n // sums, 100.0, dtype=np.float32))[-1]  # one by one, as a lane of the kernel does
    norm = float(torch.linalg.vector_norm(torch.full((n,), 10.0)))
    assert norm == pytest.approx(np.sqrt(float(running) * sums), rel=1e-5)
    assert norm < 31622.0
