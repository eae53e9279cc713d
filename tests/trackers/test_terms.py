"""Sampled terms are the terms: added up exactly they give what the op gives in fp64."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import precisionlab.ops.catalogue  # noqa: F401  registers every op rule
from precisionlab.shadow.call import OpCall
from precisionlab.shadow.opinfo import OpInfo
from precisionlab.trackers.terms import MOST_TERMS, NoTerms, Terms, terms_of

aten = torch.ops.aten
EVERYTHING = 10**6


def called(func: Any, *args: Any, **kwargs: Any) -> OpCall:
    call = OpCall(OpInfo(func), args, kwargs)
    call.result = func(*args, **kwargs)
    return call


def taken(call: OpCall, m: int = EVERYTHING) -> Terms:
    return terms_of(call, m, np.random.default_rng(0))


def sums(terms: Terms) -> np.ndarray:
    products = terms.left.astype(np.float64) * (1.0 if terms.right is None else terms.right.astype(np.float64))
    total: np.ndarray = products.sum(1) / terms.divisor
    return np.sqrt(total) if terms.root else total


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).half()


A, B, C = draw(5, 7), draw(7, 6), draw(3, 4, 5)
PLAIN: list[tuple[str, Any, tuple[Any, ...]]] = [
    ("mm", aten.mm.default, (A, B)),
    ("mm of transposed operands", aten.mm.default, (B.t(), A.t())),
    ("bmm", aten.bmm.default, (C, draw(3, 5, 2))),
    ("addmm without bias", aten.addmm.default, (torch.zeros(6).half(), A, B)),
    ("mv", aten.mv.default, (A, draw(7))),
    ("dot", aten.dot.default, (draw(9), draw(9) + 1)),
    ("sum of everything", aten.sum.default, (C,)),
    ("sum over dimensions", aten.sum.dim_IntList, (C, [0, -1])),
    ("sum with a kept dimension", aten.sum.dim_IntList, (C, [1], True)),
    ("mean", aten.mean.dim, (C, [1])),
    ("norm", aten.linalg_vector_norm.default, (C, 2, [2])),
    ("convolution", aten.convolution.default, (draw(2, 4, 6, 5), draw(6, 2, 3, 2), None, [2, 1], [1, 0], [1, 2], False, [0, 0], 2)),
    ("convolution of one dimension", aten.convolution.default, (draw(2, 3, 9), draw(4, 3, 3), None, [1], [1], [1], False, [0], 1)),
]


@pytest.mark.parametrize(("func", "args"), [row[1:] for row in PLAIN], ids=[row[0] for row in PLAIN])
def test_terms_add_up_to_the_result(func: Any, args: tuple[Any, ...]) -> None:
    wide = [a.double() if isinstance(a, torch.Tensor) else a for a in args]
    terms = taken(called(func, *args))
    np.testing.assert_allclose(sums(terms), func(*wide).reshape(-1).numpy(), rtol=1e-6, atol=1e-6)
    assert terms.dtype is torch.float16 and terms.uniform == len(terms.left) and terms.length == terms.left.shape[1]


def test_a_scan_gives_the_last_of_each_running_sum() -> None:
    terms = taken(called(aten.cumsum.default, C, 1))
    np.testing.assert_allclose(sums(terms), C.double().cumsum(1)[:, -1].reshape(-1).numpy(), rtol=1e-6, atol=1e-6)


def test_softmax_gives_its_denominators_to_a_power_of_two() -> None:
    terms = taken(called(aten._softmax.default, C, -1, False))
    mantissas = sums(terms)
    assert ((mantissas >= 1) & (mantissas < 2)).all()
    largest = torch.softmax(C.double(), -1).amax(-1).reshape(-1).numpy()
    np.testing.assert_allclose(mantissas * terms.divisor, 1.0 / largest, rtol=1e-6)


@pytest.mark.parametrize("centred", [True, False], ids=["layer norm", "rms norm"])
def test_normalisations_give_their_sums_of_squares(centred: bool) -> None:
    x = draw(6, 16)
    call = (
        called(aten.native_layer_norm.default, x, [16], None, None, 1e-5)
        if centred
        else called(aten._fused_rms_norm.default, x, [16], None, 1e-5)
    )
    terms = taken(call)
    wide = x.double()
    expected = (wide.var(1, correction=0) if centred else wide.square().mean(1)) * 16
    np.testing.assert_allclose(sums(terms) * terms.divisor, expected.numpy(), rtol=1e-6)


def test_layer_norm_backward_gives_the_terms_of_the_weight_gradient() -> None:
    x, grad, weight = draw(6, 16), draw(6, 16) * 2, torch.ones(16).half()
    _, mean, rstd = aten.native_layer_norm(x.double(), [16], None, None, 1e-5)
    call = called(aten.native_layer_norm_backward.default, grad, x, [16], mean.half(), rstd.half(), weight, weight, [True, True, True])
    expected = (grad.double() * (x.double() - mean.half().double()) * rstd.half().double()).sum(0)
    np.testing.assert_allclose(sums(taken(call)), expected.numpy(), rtol=1e-5, atol=1e-5)


def test_attention_gives_its_scores() -> None:
    q, k = draw(1, 2, 3, 8), draw(1, 2, 4, 8)
    terms = taken(called(aten._scaled_dot_product_flash_attention_for_cpu.default, q, k, k))
    expected = q.double() @ k.double().transpose(-1, -2) / math.sqrt(8)
    np.testing.assert_allclose(sums(terms), expected.reshape(-1).numpy(), rtol=1e-6, atol=1e-6)


IDS = torch.tensor([0, 2, 2, 5, 2, 0])
ROWS = draw(6, 3)
SCATTERS: list[tuple[str, Callable[[], OpCall]]] = [
    ("embedding backward", lambda: called(aten.embedding_dense_backward.default, ROWS, IDS, 7, -1, False)),
    ("index_add", lambda: called(aten.index_add.default, torch.zeros(7, 3).half(), 0, IDS, ROWS)),
    ("index_put", lambda: called(aten.index_put.default, torch.zeros(7, 3).half(), [IDS], ROWS, True)),
    ("scatter_add", lambda: called(aten.scatter_add.default, torch.zeros(7, 3).half(), 0, IDS[:, None].expand(6, 3), ROWS)),
]


@pytest.mark.parametrize("call", [row[1] for row in SCATTERS], ids=[row[0] for row in SCATTERS])
def test_scatters_give_what_meets_in_an_element(call: Callable[[], OpCall]) -> None:
    exact = torch.zeros(7, 3, dtype=torch.float64).index_add_(0, IDS, ROWS.double())[[0, 2, 5]]
    np.testing.assert_allclose(np.sort(sums(taken(call()))), np.sort(exact.reshape(-1).numpy()), rtol=1e-6)
    assert taken(call()).length == 3


def test_padding_of_an_embedding_collects_nothing() -> None:
    terms = taken(called(aten.embedding_dense_backward.default, ROWS, IDS, 7, 2, False))
    assert len(terms.left) == 2 * 3 and terms.length == 2


def test_a_scatter_in_which_nothing_meets_has_no_terms() -> None:
    with pytest.raises(NoTerms, match="no two values meet"):
        taken(called(aten.index_add.default, torch.zeros(7, 3).half(), 0, torch.arange(6), ROWS))


def test_an_index_put_that_overwrites_has_no_terms() -> None:
    with pytest.raises(NoTerms, match="overwrites"):
        taken(called(aten.index_put.default, torch.zeros(7, 3).half(), [torch.arange(6)], ROWS))


def test_a_quarter_of_the_sample_are_the_largest_results() -> None:
    a, b = draw(40, 8), draw(8, 50)
    a[17] *= 100.0
    call = called(aten.mm.default, a, b)
    terms = taken(call, 32)
    assert (len(terms.left), terms.uniform) == (32, 24)
    top = call.result.abs().double().flatten().topk(8).values
    np.testing.assert_allclose(np.sort(np.abs(sums(terms)[24:])), np.sort(top.numpy()), rtol=1e-2)


def test_long_sums_are_cut_and_their_length_is_known() -> None:
    terms = taken(called(aten.sum.default, torch.ones(3 * MOST_TERMS).half()))
    assert terms.left.shape == (1, MOST_TERMS) and terms.length == 3 * MOST_TERMS


def test_sampling_leaves_the_random_state_of_torch_alone() -> None:
    call = called(aten.mm.default, draw(40, 8), draw(8, 50))
    before = torch.get_rng_state()
    taken(call, 32)
    assert torch.equal(before, torch.get_rng_state())


def test_an_op_that_is_not_known_says_so() -> None:
    with pytest.raises(NoTerms, match="aten.relu"):
        taken(called(aten.relu.default, A))
