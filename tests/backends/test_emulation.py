"""A profile's words become the plan that was validated against hardware."""

from __future__ import annotations

from dataclasses import replace

import pytest

from precisionlab import formats as f
from precisionlab.backends.emulation import emulable
from precisionlab.backends.lookup import entries_for
from precisionlab.backends.profile import Entry, Order, Rounding, SizeClass
from precisionlab.backends.store import load_profile


@pytest.mark.parametrize(
    ("name", "op", "dtype", "plan"),
    [
        ("v100", "aten.mm", "fp16", f.V100),
        ("a100", "aten.addmm", "bf16", f.A100),
        ("h100", "aten.bmm", "bf16", f.H100),
        ("h100", "aten.mm", "tf32", replace(f.H100, block=8)),
        ("h100", "aten._scaled_mm", "fp8_e4m3fn", f.H100_FP8),
    ],
)
def test_tensor_cores_of_shipped_profiles_are_the_validated_presets(name: str, op: str, dtype: str, plan: f.AccumulationPlan) -> None:
    entry = load_profile(name).accumulation_of(op, dtype, 256)
    assert entry is not None and emulable(entry) == plan


def test_a_long_product_may_be_split_and_its_partial_sums_stored_in_half() -> None:
    found = load_profile("h100").entries_of("aten.mm", "fp16", 8192)
    assert [emulable(entry) for entry in found] == [
        f.H100,
        f.AccumulationPlan(f.AccumulationOrder.SPLIT_K, f.FP32, splits=8, stored=f.FP16, outer=f.FP16),
    ]


def test_orders_of_probed_kernels_carry_over() -> None:
    entry = Entry("aten.sum", "bf16", SizeClass.SHORT, "bf16", Order.SEQUENTIAL, rounding=Rounding.NEAREST_EVEN)
    assert emulable(entry) == f.AccumulationPlan(f.AccumulationOrder.SEQUENTIAL, f.BF16)
    assert emulable(replace(entry, order=Order.BLOCKED, block=16)) == f.AccumulationPlan(f.AccumulationOrder.BLOCKED, f.BF16, block=16)
    assert emulable(replace(entry, order=Order.PAIRWISE, rounding=Rounding.TOWARD_ZERO)) == f.AccumulationPlan(
        f.AccumulationOrder.PAIRWISE, f.BF16, rounding=f.SumRounding.TOWARD_ZERO
    )


def test_an_index_put_that_overwrites_sums_nothing() -> None:
    cpu = load_profile("cpu")
    assert entries_for(cpu, "aten.index_put_", "fp16", (None, [], None, False), {}) == []
    assert entries_for(cpu, "aten.index_put_", "fp16", (None, [], None, True), {}) != []


def test_an_addition_of_two_terms_is_no_matrix_unit() -> None:
    entry = load_profile("cpu").accumulation_of("aten.index_add", "fp16", 100)
    assert entry is not None and entry.evidence["terms_of_an_addition"] == 2
    assert emulable(entry) == f.AccumulationPlan(f.AccumulationOrder.SEQUENTIAL, f.FP16)
