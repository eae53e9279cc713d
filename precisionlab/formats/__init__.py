"""Numbers: floating-point formats, rounding to them, and how rounding errors add up. numpy only, no torch.

Read ``format``, then ``catalogue``, ``rounding``, ``bounds``, ``accumulate_plan``, ``accumulate``.
"""

from __future__ import annotations

from precisionlab.formats.accumulate import Accumulation, accumulate, dot, emulate
from precisionlab.formats.accumulate_plan import (
    A100,
    H100,
    H100_FP8,
    H100_FP8_PROMOTED,
    V100,
    AccumulationOrder,
    AccumulationPlan,
    SumRounding,
)
from precisionlab.formats.bounds import (
    SummationOrder,
    gamma,
    growth_factor,
    probabilistic_bound,
    probabilistic_failure,
    stagnation_point,
    summation_height,
)
from precisionlab.formats.catalogue import (
    BF16,
    FORMATS,
    FP8_E4M3FN,
    FP8_E4M3FNUZ,
    FP8_E5M2,
    FP8_E5M2FNUZ,
    FP16,
    FP32,
    FP64,
    TF32,
    get_format,
)
from precisionlab.formats.format import Format, Overflow, Specials
from precisionlab.formats.rounding import RoundingMode, decode, encode, represents, round_as_torch, round_to

__all__ = [
    "A100",
    "BF16",
    "FORMATS",
    "FP8_E4M3FN",
    "FP8_E4M3FNUZ",
    "FP8_E5M2",
    "FP8_E5M2FNUZ",
    "FP16",
    "FP32",
    "FP64",
    "H100",
    "H100_FP8",
    "H100_FP8_PROMOTED",
    "TF32",
    "V100",
    "Accumulation",
    "AccumulationOrder",
    "AccumulationPlan",
    "Format",
    "Overflow",
    "RoundingMode",
    "Specials",
    "SumRounding",
    "SummationOrder",
    "accumulate",
    "decode",
    "dot",
    "emulate",
    "encode",
    "gamma",
    "get_format",
    "growth_factor",
    "probabilistic_bound",
    "probabilistic_failure",
    "represents",
    "round_as_torch",
    "round_to",
    "stagnation_point",
    "summation_height",
]
