"""Sweeps of tiny subjects: sizes reach the program, what is left out is said, and what makes no sense is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from subjects import Layers, Total, layers, mean, total
from torch import nn

import precisionlab as pl
from precisionlab.errors import SettingsError, SubjectError
from precisionlab.growth.analysis import analysed
from precisionlab.growth.axes import Axis
from precisionlab.growth.confirm import confirmation_size, confirmations
from precisionlab.growth.fits import Fit, Law
from precisionlab.growth.measurement import Quantity
from precisionlab.growth.profile import profiles, repeated
from precisionlab.growth.resize import known_axes, resized
from precisionlab.growth.sweep import Sweeper
from precisionlab.subjects.batches import make_batch


def sweep(subject: pl.Subject, axis: str, *sizes: float, dtype: str = "fp16", **settings: Any) -> Any:
    sweeper = Sweeper(subject, dtype, "pure", **{"seeds": 1, **settings})
    return sweeper, sweeper.along(Axis(axis, tuple(float(size) for size in sizes)))


# -- axes of a subject -----------------------------------------------------------------------------------------------------------------


def test_axes_come_from_sizes_batch_and_builder_and_two_are_always_there() -> None:
    def batch(step: int, seq_len: int = 8, ratio: float = 0.5) -> torch.Tensor:
        return torch.randn(2, seq_len)

    subject = layers(batch=batch, sizes={"vocab": 4})
    assert list(known_axes(subject)) == ["vocab", "seq_len", "depth", "batch_size", "scale"]


def test_an_axis_that_the_subject_does_not_have_lists_those_it_has() -> None:
    with pytest.raises(SubjectError, match=r"layers has no axis 'width'; it has depth \(an argument of the model builder\), batch_size"):
        sweep(layers(), "width", 1, 2)


def test_a_size_reaches_the_model_builder() -> None:
    _, found = sweep(layers(), "depth", 2, 3)
    assert [m.parameters for m in found.measurements] == [2 * 256, 3 * 256]
    assert found.notes == ["512 parameters at depth 2 and 768 at 3: each size is another model, made anew by its builder"]


def test_batches_are_put_together_to_make_larger_ones_and_cut_to_make_smaller_ones() -> None:
    subject = layers(batch=lambda step: {"x": torch.full((4, 16), float(step)), "y": torch.arange(4)})
    for size in (2, 4, 11):
        batch = make_batch(resized(subject, "batch_size", size), 0)
        assert (batch["x"].shape, batch["y"].shape) == ((size, 16), (size,))


def test_a_batch_whose_tensors_share_no_first_dimension_cannot_grow() -> None:
    subject = layers(batch=lambda step: (torch.randn(4, 16), torch.randn(3)))
    with pytest.raises(SubjectError, match="no first dimension in common"):
        sweep(subject, "batch_size", 4, 8)


def test_scale_multiplies_floating_inputs_and_leaves_integers() -> None:
    batch = make_batch(resized(layers(batch={"x": torch.ones(2), "i": torch.ones(2, dtype=torch.int64)}), "scale", 2.5), 0)
    assert batch["x"].tolist() == [2.5, 2.5] and batch["i"].tolist() == [1, 1]


def test_scale_without_floating_inputs_is_refused() -> None:
    with pytest.raises(SubjectError, match="scale has nothing to multiply"):
        sweep(layers(batch=torch.arange(4)), "scale", 1, 2)


# -- what makes no sense ---------------------------------------------------------------------------------------------------------------


def test_a_batch_that_ignores_the_size_is_refused_after_the_second_size() -> None:
    seen = []

    def batch(step: int, seq_len: int = 8) -> torch.Tensor:
        seen.append(seq_len)
        return torch.randn(4, 16)

    with pytest.raises(SubjectError, match=r"seq_len changes nothing: at 8 and 16 the batch \(\(4, 16\)\)"):
        sweep(layers(batch=batch), "seq_len", 8, 16, 32)
    assert set(seen) == {8, 16}


def test_weights_that_change_with_the_batch_are_refused() -> None:
    def model(batch_size: int = 2) -> nn.Module:
        return Layers(batch_size)

    with pytest.raises(SubjectError, match="the model changes with batch_size"):
        sweep(layers(model=model), "batch_size", 2, 3)


def test_fp32_is_refused() -> None:
    with pytest.raises(SettingsError, match="fp32 is the control"):
        Sweeper(layers(), "fp32")


def test_the_first_size_that_raises_is_an_error_and_a_later_one_is_left_out() -> None:
    def batch(step: int, length: int) -> torch.Tensor:
        if length > 16:
            raise ValueError("too long")
        return torch.ones(length, 8)

    _, found = sweep(total(batch=batch), "length", 8, 16, 32)
    assert found.sizes == [8, 16]
    assert "too long" in found.skipped[32]
    with pytest.raises(SubjectError, match=r"raised at length 32.*too long"):
        sweep(total(batch=batch), "length", 32, 64)


# -- cost ------------------------------------------------------------------------------------------------------------------------------


def test_every_size_and_seed_is_audited_once() -> None:
    built = []

    class Counted(Total):
        def __init__(self) -> None:
            super().__init__()
            built.append(torch.initial_seed())

    sweep(total(model=Counted, batch=lambda step, length: torch.rand(length, 8)), "length", 8, 16, 32, seeds=2)
    assert built == [0, 1] * 3


def test_seeds_that_change_nothing_are_run_at_the_smallest_size_only() -> None:
    _, found = sweep(total(), "length", 8, 16, 32, seeds=3)
    assert [len(found.at(size)) for size in found.sizes] == [3, 1, 1]
    assert found.notes == ["3 seeds gave the same numbers: the other sizes are run once"]


def test_sizes_that_would_not_fit_the_budget_are_left_out() -> None:
    _, found = sweep(total(), "length", 8, 16, budget_s=1e-9)
    assert found.sizes == [8.0]
    assert "left of the budget" in found.skipped[16.0]


def test_sizes_that_would_not_fit_the_memory_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("precisionlab.growth.sweep.free_bytes", lambda: 1000)
    _, found = sweep(total(), "length", 8, 16, 32)
    assert found.sizes == [8.0]
    assert set(found.skipped) == {16.0, 32.0}
    assert "GiB are free" in found.skipped[16.0]


def test_an_interrupt_keeps_what_was_measured() -> None:
    def batch(step: int, length: int) -> torch.Tensor:
        if length == 32:
            raise KeyboardInterrupt
        return torch.full((length, 8), 16.0)

    sweeper, found = sweep(total(batch=batch), "length", 8, 16, 32, 64)
    assert sweeper.interrupted and found.interrupted
    assert found.sizes == [8.0, 16.0]


# -- what is measured ------------------------------------------------------------------------------------------------------------------


def test_a_sum_of_sixteens_is_forecast_to_overflow_fp16_at_4094_and_does() -> None:
    sweeper, found = sweep(total(), "length", 128, 256, 512, 1024)
    growth = analysed(found)
    peak = growth.trend(Quantity.PEAK)
    assert peak is not None and isinstance(peak.law, Fit)
    assert (peak.law.law, peak.law.exponent) == (Law.POWER, pytest.approx(1.0, abs=1e-3))
    assert peak.place.startswith("aten.sum (") and "subjects.py:" in peak.place
    assert peak.forecast is not None and peak.forecast.size == pytest.approx(65504 / 16, rel=0.01)
    assert growth.first is peak
    assert not sweeper.measure("length", 4000.0)[0].nonfinite
    assert "aten.sum" in sweeper.measure("length", 4200.0)[0].nonfinite


def test_sizes_that_overflow_are_in_no_law_of_the_drift_and_it_is_said() -> None:
    _, found = sweep(total(), "length", 256, 512, 1024, 2048, 4096, 8192)
    (note,) = found.notes
    assert note.startswith("aten.sum (") and "overflows from length 4096 on" in note
    drift, peak = (analysed(found).trend(quantity) for quantity in (Quantity.DRIFT, Quantity.PEAK))
    assert drift is not None and drift.values[-2:] == (float("inf"), float("inf"))
    assert peak is not None and peak.values[-1] == pytest.approx(16 * 8192)
    assert peak.forecast is not None and peak.forecast.size == pytest.approx(4094, rel=0.01)


def test_what_a_program_does_not_have_is_said() -> None:
    class Silent(nn.Module):
        def forward(self, x: torch.Tensor) -> None:
            self.kept = x.sum()

    def loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        model(batch)
        return model.kept.float()  # type: ignore[union-attr, operator]

    _, found = sweep(total(model=Silent, loss=loss), "length", 8, 16)
    assert found.notes == [
        "the outermost module returned nothing that rounds: there is no output drift",
        "no parameter got a gradient: there is no gradient error",
    ]


def test_bf16_is_forecast_from_a_sweep_in_fp16_to_keep_the_range() -> None:
    _, found = sweep(total(), "length", 128, 256, 512, 1024)
    peak = analysed(found).trend(Quantity.PEAK)
    assert peak is not None and set(peak.forecasts) == {"fp16"}


def test_drift_in_u_is_the_same_in_both_formats() -> None:
    """The one sweep speaks for both: roundings are relative."""
    drifts = []
    for dtype in ("fp16", "bf16"):
        _, found = sweep(layers(), "depth", 2, 4, dtype=dtype, seeds=3, kernels="fast")
        drifts.append(found.series(Quantity.DRIFT)[1][1])
    assert sum(drifts[0]) / sum(drifts[1]) == pytest.approx(1.0, abs=0.3)


def test_a_forecast_is_confirmed_at_the_size_where_it_is_to_happen() -> None:
    sweeper, found = sweep(total(), "length", 128, 256, 512, 1024)
    growth = analysed(found)
    size, reason = confirmation_size(growth, lambda n: "")
    assert (size, reason) == (pytest.approx(4094, abs=5), "")
    confirmed = {c.quantity: c for c in confirmations(growth.trends, sweeper.measure("length", 2048.0))}
    assert confirmed[Quantity.PEAK].measured == pytest.approx(32768)
    assert confirmed[Quantity.PEAK].inside


def test_a_confirmation_that_does_not_fit_is_made_at_half_the_size() -> None:
    _, found = sweep(total(), "length", 128, 256, 512, 1024)
    size, reason = confirmation_size(analysed(found), lambda n: "too much" if n > 3000 else "")
    assert 1024 < size < 3000
    assert "was not run: too much" in reason
    assert confirmation_size(analysed(found), lambda n: "too much")[0] == 0


def test_repeated_blocks_are_known_by_their_structure() -> None:
    """Names differ, a larger block holds a smaller one, and layers of another shape are no block."""

    class Inner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.b(torch.relu(self.a(x)))

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.start, self.one, self.second, self.tail, self.z, self.end = (
                nn.Linear(16, 8), Inner(), Inner(), Inner(), Inner(), nn.Linear(8, 4),
            )  # fmt: skip

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for part in (self.start, self.one, self.second, self.tail, self.z, self.end):
                x = part(x)
            return x

    subject = pl.Subject(Net, lambda step, n: torch.randn(n, 16), mean, sizes={"n": 4})
    _, found = sweep(subject, "n", 4, 8, seeds=2)
    measured = found.at(8.0)
    assert [block.path for block in repeated(measured[0].blocks)] == ["one", "second", "tail", "z"]
    trends = {(t.axis, t.quantity): t for t in profiles(measured, "fp16")}
    forward, backward = trends["block", Quantity.DRIFT], trends["block", Quantity.GRADIENT]
    assert forward.values[0] < forward.values[-1]
    assert len(backward.values) == 4 and all(v > 0 for v in backward.values)


def test_drift_of_weights_kept_in_half_grows_from_step_to_step() -> None:
    def sgd(params: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(params, lr=0.05)

    subject = layers(optimizer=sgd, batch=torch.randn(8, 16, generator=torch.Generator().manual_seed(0)))
    _, found = sweep(subject, "batch_size", 4, 8, dtype="bf16", steps=8, seeds=2)
    (steps,) = (t for t in profiles(found.at(8.0), "bf16") if t.axis == "step")
    assert steps.sizes == tuple(range(1, 9))
    assert steps.values[-1] > 1.5 * steps.values[0]


def test_a_running_sum_along_the_sequence_shows_in_the_drift_of_its_tokens() -> None:
    class Running(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            total, sums = torch.zeros_like(x[:, 0]), []
            for i in range(x.shape[1]):
                total = total + x[:, i]
                sums.append(total)
            return torch.stack(sums, 1)

    subject = pl.Subject(Running, lambda step, seq_len: torch.rand(4, seq_len, 64), mean, sizes={"seq_len": 8})
    _, found = sweep(subject, "seq_len", 32, 64, seeds=2)
    (tokens,) = (t for t in profiles(found.at(64.0), "fp16") if t.axis == "token")
    assert tokens.values[-1] > 3 * tokens.values[0]
    lost = found.measurements[-1].places[Quantity.LOST]
    assert max(lost.values()) > 4
