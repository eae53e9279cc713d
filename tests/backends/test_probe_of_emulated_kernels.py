"""The probe against kernels whose accumulation is known."""

from __future__ import annotations

import numpy as np
import pytest
from emulated import emulated

from precisionlab.backends.additions import Additions, ask_additions, flushes_subnormals, term_bits
from precisionlab.backends.probe import order_of
from precisionlab.backends.profile import Order, Rounding
from precisionlab.backends.trees import Masks, NotASumError, Tree, summation_tree
from precisionlab.formats.accumulate_plan import AccumulationOrder, AccumulationPlan, SumRounding
from precisionlab.formats.catalogue import BF16, FP16, FP32, FP64
from precisionlab.formats.format import Format
from precisionlab.formats.rounding import round_to

N = 128
SEQUENTIAL, PAIRWISE, BLOCKED = AccumulationOrder.SEQUENTIAL, AccumulationOrder.PAIRWISE, AccumulationOrder.BLOCKED


def ask(plan: AccumulationPlan, storage: Format, n: int = N) -> tuple[Tree, Additions]:
    sums = emulated(plan, storage)
    tree = summation_tree(sums, n, range(n), Masks.of(storage, n, False))
    found = ask_additions(sums, n, tree, storage, False)
    assert found is not None
    return tree, found


ACCUMULATORS = [(FP32, FP32), (FP32, FP64), (FP32, BF16), (BF16, BF16), (BF16, FP32), (BF16, FP64), (FP16, FP16), (FP16, FP32)]
"""(storage, accumulator). fp16 has too little range to show 53 bits, which is a test of its own."""


@pytest.mark.parametrize(("storage", "accumulator"), ACCUMULATORS, ids=str)
@pytest.mark.parametrize("order", [SEQUENTIAL, PAIRWISE], ids=str)
def test_the_accumulator_of_a_sum_is_found(order: AccumulationOrder, accumulator: Format, storage: Format) -> None:
    tree, found = ask(AccumulationPlan(order, accumulator), storage)
    assert (found.bits_min, found.bits_max) == (accumulator.precision, accumulator.precision)
    assert found.accumulation(storage) == accumulator.name
    assert order_of(tree) is (Order.SEQUENTIAL if order is SEQUENTIAL else Order.PAIRWISE)
    assert tree.height == (N - 1 if order is SEQUENTIAL else 7)


@pytest.mark.parametrize("block", [4, 16, 32])
def test_the_length_of_blocks_is_found(block: int) -> None:
    tree, found = ask(AccumulationPlan(BLOCKED, FP32, block=block), BF16)
    assert (order_of(tree), tree.longest_run()) == (Order.BLOCKED, block)
    assert tree.height == block - 1 + N // block - 1
    assert found.accumulation(BF16) == "fp32"


def test_an_inner_sum_in_fp32_written_back_in_half_is_seen_as_half() -> None:
    _, found = ask(AccumulationPlan(BLOCKED, FP32, block=16, outer=FP16), FP16)
    assert (found.bits_min, found.bits_max, found.accumulation(FP16)) == (11, 24, "fp16")


@pytest.mark.parametrize("bits", [9, 14, 20])
def test_a_significand_that_belongs_to_no_format_is_counted(bits: int) -> None:
    odd = Format(f"p{bits}", bits, FP32.exponent_bits, FP32.bias, FP32.specials, FP32.overflow)
    _, found = ask(AccumulationPlan(SEQUENTIAL, odd), BF16)
    assert found.accumulation(BF16) == f"{bits}-bit"


@pytest.mark.parametrize(
    ("rounding", "expected"), [(SumRounding.NEAREST_EVEN, Rounding.NEAREST_EVEN), (SumRounding.TOWARD_ZERO, Rounding.TOWARD_ZERO)]
)
@pytest.mark.parametrize("storage", [FP32, BF16, FP16], ids=str)
def test_truncation_is_told_from_rounding_to_nearest(rounding: SumRounding, expected: Rounding, storage: Format) -> None:
    _, found = ask(AccumulationPlan(SEQUENTIAL, FP32, rounding=rounding), storage)
    assert found.rounding is expected


@pytest.mark.parametrize(("floor", "expected"), [(np.floor, Rounding.DOWN), (np.ceil, Rounding.UP)])
def test_directed_rounding_is_recognised(floor: np.ufunc, expected: Rounding) -> None:
    def sums(terms: np.ndarray) -> np.ndarray:
        total = np.zeros(len(terms))
        for column in terms.T:
            exact = total + column  # exact enough: the masks keep at most 12 bits apart here
            spacing = BF16.ulp(exact)
            total = floor(exact / spacing) * spacing
        return total

    tree = summation_tree(emulated(AccumulationPlan(SEQUENTIAL, BF16), FP32), N, range(N), Masks.of(FP32, N, False))
    found = ask_additions(sums, N, tree, FP32, False)
    assert found is not None and found.rounding is expected


@pytest.mark.parametrize("block", [4, 8, 16])
def test_a_tensor_core_shows_fused_additions_that_truncate(block: int) -> None:
    plan = AccumulationPlan(AccumulationOrder.BLOCK_FMA, FP32, block=block, bits=24, rounding=SumRounding.TOWARD_ZERO)
    tree, found = ask(plan, FP16)
    assert tree.widest() == block + 1
    assert order_of(tree) is Order.SEQUENTIAL and tree.height == N // block
    assert (found.bits_min, found.rounding) == (24, Rounding.TOWARD_ZERO)


def test_half_terms_cannot_tell_accumulators_beyond_39_bits_apart_and_say_so() -> None:
    sums = emulated(AccumulationPlan(SEQUENTIAL, FP64), FP16)
    with pytest.raises(NotASumError):
        summation_tree(sums, N, range(N), Masks.of(FP16, N, False))


def test_partial_sums_in_fp16_overflow_where_fp32_ones_do_not() -> None:
    assert ask(AccumulationPlan(PAIRWISE, FP16), FP16)[1].overflows
    assert not ask(AccumulationPlan(PAIRWISE, FP32), FP16)[1].overflows


@pytest.mark.parametrize("storage", [FP32, BF16, FP16], ids=str)
def test_flushed_terms_and_flushed_results_are_told_apart(storage: Format) -> None:
    exact = emulated(AccumulationPlan(SEQUENTIAL, FP64), storage)

    def flushed(values: np.ndarray) -> np.ndarray:
        return np.where(np.abs(values) < storage.min_normal, 0.0, values)

    assert flushes_subnormals(exact, N, storage, False) == (False, False)
    assert flushes_subnormals(lambda x: exact(flushed(x)), N, storage, False) == (True, False)
    assert flushes_subnormals(lambda x: flushed(exact(x)), N, storage, False) == (True, True)


@pytest.mark.parametrize("operands", [BF16, FP16, FP32], ids=str)
def test_operands_that_are_rounded_first_show_fewer_bits(operands: Format) -> None:
    exact = emulated(AccumulationPlan(SEQUENTIAL, FP32), FP32)
    assert term_bits(lambda x: exact(round_to(x, operands)), N, FP32) == operands.precision


def test_any_tree_is_read_back() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        n = int(rng.integers(3, 40))
        merges = [(int(a), int(b)) for k in range(n - 1) for a, b in [rng.choice(n - k, 2, replace=False)]]

        def sums(terms: np.ndarray, merges: list[tuple[int, int]] = merges) -> np.ndarray:
            parts = list(terms.T)
            for a, b in merges:
                right, left = parts.pop(max(a, b)), parts.pop(min(a, b))
                parts.append(left + right)
            return parts[0]

        def leaves(merges: list[tuple[int, int]] = merges, n: int = n) -> set[frozenset[int]]:
            parts, found = [frozenset([i]) for i in range(n)], set()
            for a, b in merges:
                right, left = parts.pop(max(a, b)), parts.pop(min(a, b))
                parts.append(left | right)
                found.add(left | right)
            return found

        tree = summation_tree(sums, n, range(n), Masks.of(FP32, n, False))
        under: list[frozenset[int]] = [frozenset([i]) for i in range(n)]
        for below in tree.children:
            under.append(frozenset().union(*(under[c] for c in below)))
        assert set(under[n:]) == leaves()


def test_what_is_no_sum_is_refused() -> None:
    with pytest.raises(NotASumError):
        summation_tree(lambda x: x.max(1), N, range(N), Masks.of(FP32, N, False))
    with pytest.raises(NotASumError):  # compensated: nothing is lost, so no count fits
        summation_tree(emulated(AccumulationPlan(AccumulationOrder.KAHAN, FP64), FP32), N, range(N), Masks.of(FP16, N, False))
