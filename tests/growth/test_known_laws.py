"""Growth that theory gives in closed form, found by sweeps of small networks."""

from __future__ import annotations

import pytest

from bench.growing import deep
from bench.growing.anchors import chaotic_rate
from precisionlab.growth.analysis import analysed
from precisionlab.growth.axes import Axis
from precisionlab.growth.fits import Fit, Law
from precisionlab.growth.measurement import Quantity
from precisionlab.growth.sweep import Sweeper

DEPTHS = (4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0)


def drift_law(subject: object) -> Fit:
    sweeper = Sweeper(subject, "bf16", "pure", kernels="fast", seeds=2)  # type: ignore[arg-type]
    trend = analysed(sweeper.along(Axis("depth", DEPTHS))).trend(Quantity.DRIFT)
    assert trend is not None and isinstance(trend.law, Fit)
    return trend.law


@pytest.mark.parametrize(("layer", "residual"), [(deep.tanh, False), (deep.post_norm, True)])
def test_chaotic_networks_multiply_roundings_at_the_rate_of_mean_field_theory(layer: object, residual: bool) -> None:
    law = drift_law(deep.deep(layer, 1.5))  # type: ignore[arg-type]
    assert law.law is Law.EXPONENTIAL
    assert law.exponent == pytest.approx(chaotic_rate(1.5, residual=residual), rel=0.25)


def test_at_criticality_errors_grow_like_the_root_of_the_depth_and_slower_in_a_pre_norm_stream() -> None:
    critical, stream = drift_law(deep.deep(deep.tanh, 1.0)), drift_law(deep.deep(deep.pre_norm, 2**0.5, 2**0.5))
    assert critical.law is stream.law is Law.POWER
    assert critical.exponent == pytest.approx(0.5, abs=0.08)
    assert 0.25 < stream.exponent < critical.exponent - 0.05
