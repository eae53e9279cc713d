"""Block FMA against results of real tensor cores, bit for bit."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from precisionlab import formats as f

SETS: list[dict[str, Any]] = json.loads(Path(__file__).with_name("tensor_core_results.json").read_text())["sets"]
PLANS = {
    ("V100", "fp16"): f.V100,
    ("A100", "fp16"): f.A100,
    ("A100", "bf16"): f.A100,
    ("A100", "tf32"): replace(f.A100, block=4),
    ("H100", "fp16"): f.H100,
    ("H100", "bf16"): f.H100,
    ("H100", "tf32"): replace(f.H100, block=8),
    ("H100", "fp8_e4m3fn"): f.H100_FP8,
    ("H100", "fp8_e5m2"): f.H100_FP8,
}


def operands(words: str, fmt: f.Format) -> np.ndarray:
    if fmt.bits > 16:
        return singles(words)
    digits = fmt.bits // 4
    return f.decode([int(words[i : i + digits], 16) for i in range(0, len(words), digits)], fmt)


def singles(words: str) -> np.ndarray:
    return np.array([int(words[i : i + 8], 16) for i in range(0, len(words), 8)], np.uint32).view(np.float32).astype(np.float64)


def table(measured: dict[str, Any]) -> tuple[f.AccumulationPlan, np.ndarray, np.ndarray, np.ndarray]:
    """Plan, operands a and b with c in a block of its own before them, and the GPU's results."""
    plan = PLANS[measured["gpu"], measured["operands"]]
    assert plan.block is not None
    fmt = f.get_format(measured["operands"])
    left, right, results = [], [], []
    for row in measured["rows"]:
        a, b, c, d = row.split()
        alone = np.zeros(plan.block - 1)
        left.append(np.concatenate([singles(c), alone, operands(a, fmt)]))
        right.append(np.concatenate([[1.0], alone, operands(b, fmt)]))
        results.append(singles(d)[0])
    return plan, np.array(left), np.array(right), np.array(results)


@pytest.mark.parametrize("measured", SETS, ids=lambda s: f"{s['gpu']}-{s['operands']}")
def test_block_fma_is_bit_identical_to_tensor_cores(measured: dict[str, Any]) -> None:
    plan, a, b, results = table(measured)
    assert len(results) == 24
    np.testing.assert_array_equal(f.dot(a, b, plan, operands=f.get_format(measured["operands"])).sums, results)


@pytest.mark.parametrize("measured", SETS, ids=lambda s: f"{s['gpu']}-{s['operands']}")
def test_the_results_tell_plans_apart(measured: dict[str, Any]) -> None:
    plan, a, b, results = table(measured)
    assert plan.bits is not None
    others = [
        replace(plan, bits=plan.bits - 1),
        replace(plan, bits=plan.bits + 1),
        replace(plan, rounding=f.SumRounding.NEAREST_EVEN),
        f.AccumulationPlan(f.AccumulationOrder.SEQUENTIAL, f.FP32),
    ]
    for other in others:
        assert (f.dot(a, b, other).sums != results).any(), other


def test_products_align_by_the_exponents_of_their_operands() -> None:
    """1.5 * 1.5 has exponent 1; the units count it as 0, and so keep one bit more of the small one."""
    small = 2.0**-23
    plan = f.V100
    by_operands = f.dot([1.5, 1.0], [1.5, small], plan)
    by_terms = f.emulate([2.25, small], plan)
    assert by_operands.stagnated == 0
    assert by_terms.stagnated == 1
    assert f.emulate([2.25, small], plan, alignment=[1.0, small]).stagnated == 0
