"""LSTM layers of oneDNN (``aten.mkldnn_rnn_layer`` and its backward), which have no fp64 kernel: the cell, step by step.

``nn.LSTM`` reaches these ops on CPU for fp32 always, for bf16 and fp16 where the CPU has the instructions (AVX512 and up), and under
autocast; one call a layer and direction, never with packed sequences or projections. Elsewhere LSTM, and GRU and RNN everywhere on
CPU, arrive as addmm, sigmoid, tanh and so on, and are simply run again. On CUDA LSTM, GRU and RNN are ``_cudnn_rnn`` (fp64 exists).

Source: pytorch aten/src/ATen/native/mkldnn/RNN.cpp; gates are ordered i, f, g, o (Hochreiter and Schmidhuber 1997, with forget gate).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from precisionlab.ops.registry import Family, op_rule, optional_ops
from precisionlab.ops.stable import call_arguments

aten = torch.ops.aten

_MODE_LSTM = 2
"""``ideep::rnn_kind``: 0 RNN_RELU, 1 RNN_TANH, 2 LSTM, 3 GRU; the op is only ever called with LSTM."""


@dataclass(frozen=True)
class _Trace:
    """One pass over the sequence. Time is the first axis, in order of computing (already flipped when the op runs in reverse)."""

    inputs: Tensor
    gates: Tensor
    """(T, B, 4H): i, f, g, o after their activation."""
    hidden: Tensor
    """(T + 1, B, H): the state before each step, and the last."""
    cell: Tensor


def _check(named: dict[str, Any]) -> None:
    if named["mode"] != _MODE_LSTM:
        raise NotImplementedError(f"mkldnn_rnn_layer with mode {named['mode']} (only LSTM, {_MODE_LSTM}, is ever dispatched)")
    if len(named["batch_sizes"] or ()) > 0:
        raise NotImplementedError("mkldnn_rnn_layer with packed sequences (the kernel itself refuses them)")


def _in_order(x: Tensor, reverse: bool) -> Tensor:
    return x.flip(0) if reverse else x


def _forward(x: Tensor, w_ih: Tensor, w_hh: Tensor, bias: Tensor | None, hx: Tensor, cx: Tensor, reverse: bool) -> _Trace:
    inputs = _in_order(x, reverse)
    steps, width = inputs.shape[0], w_hh.shape[1]
    from_inputs = inputs @ w_ih.t()
    if bias is not None:
        from_inputs = from_inputs + bias
    gates = x.new_empty((steps, x.shape[1], 4 * width))
    hidden = x.new_empty((steps + 1, x.shape[1], width))
    cell = torch.empty_like(hidden)
    hidden[0], cell[0] = hx.reshape(hidden[0].shape), cx.reshape(cell[0].shape)
    for t in range(steps):
        i, f, g, o = (from_inputs[t] + hidden[t] @ w_hh.t()).chunk(4, 1)
        i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
        torch.cat((i, f, g, o), 1, out=gates[t])
        cell[t + 1] = f * cell[t] + i * g
        hidden[t + 1] = o * cell[t + 1].tanh()
    return _Trace(inputs, gates, hidden, cell)


def _backward(
    trace: _Trace, w_hh: Tensor, grad_output: Tensor | None, grad_hy: Tensor | None, grad_cy: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of the gates' arguments (T, B, 4H) and of the first hidden and cell state."""
    d_gates = torch.empty_like(trace.gates)
    d_hidden = torch.zeros_like(trace.hidden[0]) if grad_hy is None else grad_hy.reshape(trace.hidden[0].shape)
    d_cell = torch.zeros_like(trace.cell[0]) if grad_cy is None else grad_cy.reshape(trace.cell[0].shape)
    for t in reversed(range(trace.gates.shape[0])):
        i, f, g, o = trace.gates[t].chunk(4, 1)
        if grad_output is not None:
            d_hidden = d_hidden + grad_output[t]
        squashed = trace.cell[t + 1].tanh()
        d_cell = d_cell + d_hidden * o * (1 - squashed * squashed)
        parts = (
            d_cell * g * i * (1 - i),
            d_cell * trace.cell[t] * f * (1 - f),
            d_cell * i * (1 - g * g),
            d_hidden * squashed * o * (1 - o),
        )
        torch.cat(parts, 1, out=d_gates[t])
        d_hidden = d_gates[t] @ w_hh
        d_cell = d_cell * f
    return d_gates, d_hidden, d_cell


def _bias(named: dict[str, Any], first: str, second: str) -> Tensor | None:
    """Without biases the op is handed weight-shaped dummies."""
    return named[first] + named[second] if named["has_biases"] else None


def _terms(func: Any, args: Any, kwargs: Any, y: Any) -> int:
    """Each gate sums over the inputs and the hidden state."""
    return int(args[0].shape[-1] + args[2].shape[-1])


@op_rule(*optional_ops(aten, "mkldnn_rnn_layer"), family=Family.RECURRENT)
class LstmLayer:
    """One layer, one direction; the output is in the order of the input even in reverse. Length: terms of one gate's sum.

    Results: output (T, B, H), hy and cy shaped as hx and cx, and None for the workspace, which is opaque bytes.
    Raises ``NotImplementedError`` for packed sequences and for anything that is no LSTM.
    """

    length = staticmethod(_terms)

    @staticmethod
    def reference(func: Any, args: Any, kwargs: Any) -> tuple[Tensor, Tensor, Tensor, None]:
        named = call_arguments(func, args, kwargs)
        _check(named)
        bias = _bias(named, "weight2", "weight3")
        trace = _forward(named["input"], named["weight0"], named["weight1"], bias, named["hx_"], named["cx_"], named["reverse"])
        output = _in_order(trace.hidden[1:], named["reverse"]).contiguous()
        return output, trace.hidden[-1].reshape(named["hx_"].shape).clone(), trace.cell[-1].reshape(named["cx_"].shape).clone(), None

    @staticmethod
    def condition(func: Any, args: Any, kwargs: Any, y: Any) -> tuple[Tensor, Tensor, Tensor, None]:
        """Absolute terms of the gates' sums through slopes of at most 1 (g) and 1/4 (i, f, o), kept up by the cell from then on."""
        named = call_arguments(func, args, kwargs)
        output = _in_order(y[0], named["reverse"])
        previous = torch.cat((named["hx_"].reshape(1, *output.shape[1:]), output[:-1]))
        sums = _in_order(named["input"], named["reverse"]).abs() @ named["weight0"].abs().t() + previous.abs() @ named["weight1"].abs().t()
        if named["has_biases"]:
            sums = sums + named["weight2"].abs() + named["weight3"].abs()
        i, f, g, o = sums.chunk(4, -1)
        scale = (0.25 * (i + f + o) + g).cummax(0).values
        hy = scale[-1].reshape(y[1].shape)
        return _in_order(scale, named["reverse"]), hy, hy + y[2].abs(), None

    @staticmethod
    def internal(func: Any, args: Any, kwargs: Any, y: Any, u: float) -> tuple[Tensor, Tensor, Tensor, None]:
        """The hidden state is stored once a step in the operand's dtype and read back: u max|h| each, damped by the gates."""
        once = 2.0 * u * y[0].abs().amax()
        cell = 2.0 * u * torch.maximum(y[0].abs().amax(), y[2].abs().amax())
        return once.expand(y[0].shape), once.expand(y[1].shape), cell.expand(y[2].shape), None


@op_rule(*optional_ops(aten, "mkldnn_rnn_layer_backward"), family=Family.RECURRENT)
class LstmLayerBackward:
    """Its gradients, from the operands alone: the workspace is opaque, so the forward pass is computed again.

    Results: gradients of input, weight_ih, weight_hh, bias_ih, bias_hh (the same number twice, also without biases), hx, cx; seven
    times None if no gradient comes in. The real op returns them in fp32 whatever the operands' dtype (then autograd casts).
    """

    @staticmethod
    def length(func: Any, args: Any, kwargs: Any, y: Any) -> int:
        """The weight gradients sum over time and batch, the input gradient over the gates."""
        steps, batch, _ = args[0].shape
        return int(max(steps * batch, args[1].shape[0]))

    @staticmethod
    def reference(func: Any, args: Any, kwargs: Any) -> tuple[Tensor | None, ...]:
        named = call_arguments(func, args, kwargs)
        _check(named)
        found = _gradients(named)
        if found is None:
            return (None,) * 7
        trace, (d_gates, d_hidden, d_cell) = found
        return _collect(named, trace, d_gates, d_hidden, d_cell)

    @staticmethod
    def condition(func: Any, args: Any, kwargs: Any, y: Any) -> tuple[Tensor | None, ...]:
        """The same products on absolute values, with every gate's gradient at least as uncertain as the largest of its step."""
        named = call_arguments(func, args, kwargs)
        found = _gradients(named)
        if found is None:
            return (None,) * 7
        trace, (d_gates, _, d_cell) = found
        largest = d_gates.abs().amax(-1, keepdim=True).expand_as(d_gates)
        absolute = _Trace(trace.inputs.abs(), trace.gates, trace.hidden.abs(), trace.cell)
        weights = {name: named[name].abs() for name in ("weight1", "weight2")}
        hidden = largest[0] @ weights["weight2"]
        return _collect({**named, **weights}, absolute, largest, hidden, d_cell.abs() + largest[0].chunk(4, -1)[0])


def _gradients(named: dict[str, Any]) -> tuple[_Trace, tuple[Tensor, Tensor, Tensor]] | None:
    incoming = [named["grad_output"], named["grad_hy"], named["grad_cy"]]
    if all(grad is None for grad in incoming):
        return None
    reverse = named["reverse"]
    bias = _bias(named, "weight3", "weight4")
    trace = _forward(named["input"], named["weight1"], named["weight2"], bias, named["hx_"], named["cx_tmp"], reverse)
    if incoming[0] is not None:
        incoming[0] = _in_order(incoming[0], reverse)
    return trace, _backward(trace, named["weight2"], *incoming)


def _collect(named: dict[str, Any], trace: _Trace, d_gates: Tensor, d_hidden: Tensor, d_cell: Tensor) -> tuple[Tensor, ...]:
    """The seven results from the gates' gradients; no two of them share storage."""
    flat = d_gates.flatten(0, 1)
    d_input = _in_order(d_gates @ named["weight1"], named["reverse"]).contiguous()
    d_bias = flat.sum(0)
    d_w_ih, d_w_hh = flat.t() @ trace.inputs.flatten(0, 1), flat.t() @ trace.hidden[:-1].flatten(0, 1)
    return d_input, d_w_ih, d_w_hh, d_bias, d_bias.clone(), d_hidden.reshape(named["hx_"].shape), d_cell.reshape(named["cx_tmp"].shape)
