"""oneDNN's LSTM layer against the fp64 LSTM torch composes from matrix products, on the very calls nn.LSTM makes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import precisionlab.ops.recurrent  # noqa: F401  registers the rules
from precisionlab.ops.registry import Family, find_rule

aten = torch.ops.aten
FORWARD, BACKWARD = aten.mkldnn_rnn_layer.default, aten.mkldnn_rnn_layer_backward.default


class Calls(TorchDispatchMode):
    """Keeps every call of the two ops: (func, args, results)."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[Any, tuple, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in (FORWARD, BACKWARD):
            self.found.append((func, tuple(a.clone() if isinstance(a, Tensor) else a for a in args), result))
        return result


def wide(args: tuple) -> tuple:
    return tuple(a.double() if isinstance(a, Tensor) and a.is_floating_point() else a for a in args)


def recorded(*, steps: int = 7, use_states: bool = False, train: bool = True, **options: Any) -> list[tuple[Any, tuple, Any]]:
    """The calls of a small fp32 nn.LSTM, forward and backward."""
    torch.manual_seed(0)
    model = nn.LSTM(5, 4, **options).train(train)
    x = torch.randn((3, steps, 5) if options.get("batch_first") else (steps, 3, 5), requires_grad=True)
    with Calls() as calls:
        output, (hy, cy) = model(x)
        loss = (output * torch.randn_like(output)).sum() + ((hy * 2 + cy.square()).sum() if use_states else 0.0)
        loss.backward()
    return calls.found


def oracle(args: tuple, grads: tuple = ()) -> tuple[Tensor, ...]:
    """(output, hy, cy), or with incoming gradients those of input, weights, hx and cx, by torch's composed fp64 LSTM."""
    x, w_ih, w_hh, b_ih, b_hh, hx, cx = (a.clone().requires_grad_() for a in args[:7])
    reverse, biased = (args[7], args[12]) if not grads else (args[13], args[17])
    weights = [w_ih, w_hh, b_ih, b_hh] if biased else [w_ih, w_hh]
    sequence = x.flip(0) if reverse else x
    output, hy, cy = torch.lstm(sequence, (hx.unsqueeze(0), cx.unsqueeze(0)), weights, biased, 1, 0.0, False, False, False)
    output, hy, cy = (output.flip(0) if reverse else output), hy[0], cy[0]
    if not grads:
        return output.detach(), hy.detach(), cy.detach()
    pairs = [(value, grad) for value, grad in zip((output, hy, cy), grads, strict=True) if grad is not None]
    return torch.autograd.grad([p[0] for p in pairs], [x, *weights, hx, cx], [p[1] for p in pairs])


CASES = {
    "plain": {},
    "eval": {"train": False},
    "states used": {"use_states": True},
    "no bias": {"bias": False, "use_states": True},
    "bidirectional, two layers, batch first": {"bidirectional": True, "num_layers": 2, "batch_first": True, "use_states": True},
    "one step": {"steps": 1},
}


@pytest.mark.parametrize("options", CASES.values(), ids=CASES)
def test_reference_equals_the_composed_lstm_in_fp64(options: dict[str, Any]) -> None:
    calls = recorded(**options)
    assert {func for func, *_ in calls} == {FORWARD, BACKWARD}
    for func, args, results in calls:
        rule = find_rule(func)
        assert rule is not None and rule.family is Family.RECURRENT and rule.reference is not None
        args = wide(args)
        found = rule.reference(func, args, {})
        assert len(found) == len(results)
        if func is FORWARD:
            expected = oracle(args)
            assert found[3] is None
            found, results = found[:3], results[:3]
        else:
            expected = oracle(args, args[10:13])
            if not args[17]:
                assert torch.equal(found[3], found[4])
                found, results = (*found[:3], *found[5:]), (*results[:3], *results[5:])
        for ours, theirs, low in zip(found, expected, results, strict=True):
            assert ours.shape == low.shape and ours.stride() == low.stride()
            torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-13)
            torch.testing.assert_close(low.double(), ours, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("options", CASES.values(), ids=CASES)
def test_native_fp32_layers_stay_within_their_rules_bound(options: dict[str, Any]) -> None:
    u = 2.0**-24
    for func, args, results in recorded(**options):
        rule, args = find_rule(func), wide(args)
        assert rule is not None and rule.reference is not None and rule.condition is not None and rule.length is not None
        y = rule.reference(func, args, {})
        scales = rule.condition(func, args, {}, y)
        inner = (0.0,) * len(y) if rule.internal is None else rule.internal(func, args, {}, y, u)
        n = rule.length(func, args, {}, y)
        for low, high, scale, extra in zip(results, y, scales, inner, strict=True):
            if high is None:
                continue
            assert scale.shape == high.shape
            bound = u * high.abs() + 4 * n**0.5 * u * scale + extra
            material = (low.double() - high).abs() > 2.0**-4 * u * high.square().mean().sqrt()
            assert ((low.double() - high).abs() / bound)[material].amax().item() <= 1.5 if bool(material.any()) else True


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("gain", [0.5, 1.0, 2.0])
def test_hidden_states_stored_in_half_stay_within_the_declared_roundings(dtype: torch.dtype, gain: float) -> None:
    """Half layers need AVX512, so they are emulated: h and c go through the dtype after each step, everything else is fp64."""
    torch.manual_seed(0)
    width, steps = 32, 40
    w_ih, w_hh = torch.randn(4 * width, 16).double() * gain / 4, torch.randn(4 * width, width).double() * gain / width**0.5
    x, zero, bias = torch.randn(steps, 8, 16).double(), torch.zeros(8, width).double(), torch.zeros(4 * width).double()
    args = (x, w_ih, w_hh, bias, bias, zero, zero, False, [], 2, width, 1, True, False, False, True)
    rule = find_rule(FORWARD)
    assert rule is not None and rule.reference is not None and rule.internal is not None
    y = rule.reference(FORWARD, args, {})
    h, c, stored = zero, zero, []
    for t in range(steps):
        step = rule.reference(FORWARD, (x[t : t + 1], *args[1:5], h, c, *args[7:]), {})
        h, c = step[1].to(dtype).double(), step[2].to(dtype).double()
        stored.append(h)
    u = torch.finfo(dtype).eps / 2
    error = (torch.stack(stored) - y[0]).abs()
    assert (error.square().mean().sqrt() / u).item() < 2.0
    assert (error / (u * y[0].abs() + rule.internal(FORWARD, args, {}, y, u)[0])).quantile(0.99).item() <= 1.5


def test_no_incoming_gradient_gives_no_gradients() -> None:
    func, args, _ = next(call for call in recorded() if call[0] is BACKWARD)
    rule = find_rule(func)
    assert rule is not None and rule.reference is not None
    assert rule.reference(func, (*wide(args)[:10], None, None, None, *args[13:]), {}) == (None,) * 7


def test_packed_sequences_and_other_cells_are_refused() -> None:
    func, args, _ = recorded()[0]
    rule = find_rule(func)
    assert rule is not None and rule.reference is not None
    with pytest.raises(NotImplementedError, match="packed"):
        rule.reference(func, (*args[:8], [3, 2], *args[9:]), {})
    with pytest.raises(NotImplementedError, match="LSTM"):
        rule.reference(func, (*args[:9], 3, *args[10:]), {})


@pytest.mark.parametrize("cell", [nn.GRU, nn.RNN])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_other_cells_never_reach_the_fused_op(cell: Any, dtype: torch.dtype) -> None:
    model = cell(5, 4).to(dtype)
    with Calls() as calls:
        model(torch.randn(2, 3, 5, dtype=dtype))[0].float().sum().backward()
    assert calls.found == []
