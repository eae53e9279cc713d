"""Running sums and products."""

from __future__ import annotations

from typing import Any

import torch

from precisionlab.ops.local import named, on_absolute
from precisionlab.ops.registry import Family, op_rule, optional_ops

aten = torch.ops.aten


def _steps(func: Any, args: Any, kwargs: Any, y: Any) -> int:
    given = named(func, args, kwargs)
    x = given["self"]
    return max(1, x.shape[given["dim"]]) if x.dim() else 1


@op_rule(*optional_ops(aten, "cumsum"), family=Family.SCAN)
class CumulativeSum:
    """S = running sum of |x|, n = steps. Source: Higham 2002, (4.4)."""

    length = staticmethod(_steps)

    @staticmethod
    def condition(func: Any, args: Any, kwargs: Any, y: Any) -> Any:
        return on_absolute(func, args, kwargs)


@op_rule(*optional_ops(aten, "cumprod"), family=Family.SCAN)
class CumulativeProduct:
    """n relative roundings: S = |y|, n = steps. Source: Higham 2002, lemma 3.1."""

    length = staticmethod(_steps)


@op_rule(*optional_ops(aten, "logcumsumexp", "_logcumsumexp"), family=Family.SCAN)
class LogCumulativeSumExp:
    """S = |running max| + |y| + 1, n = steps. Source: Blanchard, Higham & Higham 2021, theorem 3.2."""

    length = staticmethod(_steps)

    @staticmethod
    def condition(func: Any, args: Any, kwargs: Any, y: Any) -> Any:
        given = named(func, args, kwargs)
        x = given["self"]
        return torch.cummax(x, given["dim"]).values.abs() + y.abs() + 1.0
