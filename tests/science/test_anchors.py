"""Published numbers of low-precision arithmetic, measured by the audit and by the emulators. The table: ``./dev bench science``."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from bench.anchors import ANCHORS, Check
from bench.science import main


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Kernels split long sums over threads, and round otherwise then."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def assert_holds(name: str) -> None:
    """Every value of an anchor lies in its range."""
    checks = list(ANCHORS[name].run())
    outside = [f"{c.claim}: {c.measured:.6g}, not in {c.low:.6g} .. {c.high:.6g}" for c in checks if not c.holds]
    assert checks
    assert not outside, "\n".join(outside)


def test_running_sums_of_ones_stop_at_2048_in_fp16_and_256_in_bf16() -> None:
    assert_holds("A1")


def test_errors_of_running_sums_grow_like_the_square_root_of_n() -> None:
    assert_holds("A2")


def test_errors_of_sums_with_mean_zero_do_not_grow() -> None:
    assert_holds("A3")


def test_stalled_sums_are_wrong_by_one_minus_plateau_over_sum() -> None:
    assert_holds("A4")


def test_blocks_and_trees_beat_running_sums() -> None:
    assert_holds("A5")


def test_block_fma_errors_are_those_of_its_accumulator() -> None:
    assert_holds("A6")


def test_truncation_in_tensor_cores_is_a_bias_linear_in_n() -> None:
    assert_holds("A7")


def test_a_14_bit_accumulator_loses_percents_and_promotion_repairs_it() -> None:
    assert_holds("A8")


def test_the_audit_counts_the_published_shares_of_swamped_updates() -> None:
    assert_holds("A9")


def test_the_audit_counts_the_gradients_that_a_loss_scale_leaves_at_zero() -> None:
    assert_holds("A11")


def test_the_audit_finds_where_adam_breaks_in_half_precision() -> None:
    assert_holds("A12")


def test_the_audit_finds_the_overflow_of_a_hand_written_norm() -> None:
    assert_holds("A13")


def test_bf16_positions_ruin_rotary_embeddings() -> None:
    assert_holds("A14")


def test_bf16_accumulators_make_blockwise_attention_worse_with_every_block() -> None:
    assert_holds("A15")


def test_weights_of_one_and_values_of_one_sign_bias_the_rounding() -> None:
    assert_holds("A16")


def test_drift_grows_with_micro_batches_and_not_with_width_or_length() -> None:
    assert_holds("A20")


def test_formulas_fail_from_the_published_inputs_on() -> None:
    assert_holds("onsets")


def test_the_audit_finds_long_fp32_norms_that_clip_wrongly() -> None:
    assert_holds("norms")


@pytest.mark.slow
def test_nearest_rounding_stalls_where_stochastic_rounding_and_kahan_go_on() -> None:
    assert_holds("A10")


def test_a_value_outside_its_range_is_an_exit_code(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = Check("ones", 1.0, "2", 2.0, 2.0, "emulation")
    monkeypatch.setitem(ANCHORS, "A1", type(ANCHORS["A1"])("A1", "title", lambda: iter([wrong])))
    assert main(["A1"]) == 1
    assert "OUTSIDE" in capsys.readouterr().out
    assert main(["A4"]) == 0
    assert main(["B7"]) == 2


def test_nan_is_outside_every_range() -> None:
    assert not Check("nothing", float("nan"), "0", float("-inf"), float("inf"), "torch").holds
