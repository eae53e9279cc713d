"""PyTorch's own operator database: nothing changes under the audit, and every twin is the op in fp64.

A slice of it runs always, all of it (fp16 and bf16, up to 8 samples an op, in-place and ``out=`` variants) under ``./dev test --all``.
"""

from __future__ import annotations

import functools
import gc
from collections.abc import Iterator
from typing import Any

import opdb
import pytest
import torch
from opdb_exceptions import DECISIONS, DEFAULT_RULE, NOT_FAITHFUL, NOT_REPEATABLE, UNSHADOWED

SLICES = 12
"""The database is cut into so many parts, of every 12th entry each; the first is the one that always runs."""
PARTS = [pytest.param(i, marks=[] if i == 0 else [pytest.mark.slow]) for i in range(SLICES)]


@functools.lru_cache(maxsize=1)
def _cases(part: int) -> list[opdb.Case]:
    return [case for op in _database()[part::SLICES] for dtype in opdb.HALVES for case in opdb.cases(op, dtype)]


@functools.cache
def _database() -> list[Any]:
    return opdb.database()


@pytest.fixture
def batch(part: int) -> Iterator[list[opdb.Case]]:
    cases = _cases(part)
    opdb.quiet_collector()
    yield cases
    gc.unfreeze()


@pytest.mark.parametrize("part", PARTS)
def test_ops_are_bit_identical_under_the_audit(part: int, batch: list[opdb.Case]) -> None:
    survey = opdb.Survey()
    opdb.transparent(batch, survey)
    assert survey.wrong({"identical", "raises"}, NOT_REPEATABLE) == {}
    assert survey.count()["identical"] > 0.8 * len(batch)


@pytest.mark.parametrize("part", PARTS)
def test_twins_of_ops_are_the_op_in_fp64(part: int, batch: list[opdb.Case]) -> None:
    survey = opdb.Survey()
    opdb.faithful(batch, survey)
    assert survey.wrong({"equal", "reference", "raises"}, NOT_FAITHFUL | DECISIONS) == {}
    assert set(survey.unshadowed) <= set(UNSHADOWED)
    assert set(survey.default_rule) <= set(DEFAULT_RULE)
    assert survey.resyncs == {}
    assert survey.count()["equal"] > 0.7 * len(batch)


def test_a_changed_bit_is_seen() -> None:
    """The fingerprint tells -0 from 0 and one NaN from another."""
    zero, nan = torch.zeros(1), torch.tensor([float("nan")])
    other = nan.view(torch.int32).add(1).view(torch.float32)
    assert opdb.bits(zero) != opdb.bits(-zero)
    assert opdb.bits(nan) != opdb.bits(other)
    assert opdb.bits(torch.zeros(2, 3)) != opdb.bits(torch.zeros(3, 2).t())
