"""Dtype plans: a partial order with joins and meets where they exist, and costs."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from precisionlab import formats as f
from precisionlab.errors import SettingsError
from precisionlab.plans import DtypePlan, holds, join_formats, meet_formats
from precisionlab.records import Plan

TRAINING = [f.FP64, f.FP32, f.BF16, f.FP16]
training_plans = st.builds(DtypePlan, *[st.sampled_from(TRAINING)] * 3)
any_plans = st.builds(DtypePlan, *[st.sampled_from(f.FORMATS)] * 3)


@pytest.mark.parametrize("narrow", [fmt for fmt in f.FORMATS if fmt.bits <= 16], ids=str)
@pytest.mark.parametrize("wide", f.FORMATS, ids=str)
def test_a_format_holds_another_iff_all_its_numbers_are_representable(wide: f.Format, narrow: f.Format) -> None:
    numbers = f.decode(np.arange(2**narrow.bits), narrow)
    numbers = np.abs(numbers[np.isfinite(numbers)])
    assert holds(wide, narrow) == bool(f.represents(numbers, wide).all())


def test_fp16_and_bf16_meet_in_nothing_and_join_in_fp32() -> None:
    assert not holds(f.FP16, f.BF16)
    assert not holds(f.BF16, f.FP16)
    assert join_formats(f.FP16, f.BF16) == f.FP32
    assert meet_formats(f.FP16, f.BF16) is None


def test_a_format_and_a_wider_one_join_in_the_wider_and_meet_in_the_narrower() -> None:
    for wide, narrow in product(f.FORMATS, f.FORMATS):
        if holds(wide, narrow) and not holds(narrow, wide):
            assert join_formats(wide, narrow) == join_formats(narrow, wide) == wide
            assert meet_formats(wide, narrow) == meet_formats(narrow, wide) == narrow


def test_the_two_fp8_formats_have_no_narrowest_format_above_them() -> None:
    assert join_formats(f.FP8_E4M3FN, f.FP8_E5M2) is None


@given(any_plans, any_plans, any_plans)
def test_plans_are_partially_ordered(a: DtypePlan, b: DtypePlan, c: DtypePlan) -> None:
    assert a <= a
    assert not a < a
    assert not (a <= b and b <= a) or a == b
    assert not (a <= b and b <= c) or a <= c
    assert (a < b) == (b > a)
    assert (a <= b) == (b >= a)


@given(training_plans, training_plans, training_plans)
def test_joins_of_training_plans_exist_and_are_least(a: DtypePlan, b: DtypePlan, c: DtypePlan) -> None:
    joined = a.join(b)
    assert joined is not None
    assert a <= joined and b <= joined
    assert joined == b.join(a)
    assert not (a <= c and b <= c) or joined <= c


@given(training_plans, training_plans, training_plans)
def test_meets_are_greatest_where_they_exist(a: DtypePlan, b: DtypePlan, c: DtypePlan) -> None:
    met = a.meet(b)
    assert met == b.meet(a)
    if met is None:
        assert any({x, y} == {f.FP16, f.BF16} for x, y in zip(_columns(a), _columns(b), strict=True))
        return
    assert met <= a and met <= b
    assert not (c <= a and c <= b) or c <= met


def _columns(plan: DtypePlan) -> tuple[f.Format, ...]:
    return plan.storage, plan.compute, plan.accumulation


def test_costs_follow_storage_and_the_operands_of_matrix_units() -> None:
    half = DtypePlan(f.BF16, f.FP32, f.FP32)
    assert (half.bytes_per_element, half.matrix_rate) == (2, 16)
    assert DtypePlan.uniform(f.FP32).cost == (4, 1.0)
    assert DtypePlan(f.FP32, f.TF32, f.FP32).cost == (4, 1 / 8)
    assert DtypePlan(f.FP8_E4M3FN, f.FP32, f.FP32).cost == (1, 1 / 32)
    assert DtypePlan.uniform(f.TF32).bytes_per_element == 4
    assert half.cost < DtypePlan(f.FP32, f.TF32, f.FP32).cost < DtypePlan.uniform(f.FP32).cost < DtypePlan.uniform(f.FP64).cost


def test_plans_come_from_records_and_go_back() -> None:
    plan = DtypePlan.of(Plan("fp16", "fp32", "fp32"))
    assert plan == DtypePlan(f.FP16, f.FP32, f.FP32)
    assert plan.record() == Plan("fp16", "fp32", "fp32")
    assert str(plan) == "fp16/fp32/fp32"
    with pytest.raises(SettingsError):
        DtypePlan.of(Plan("int64", "int64", "int64"))
