"""The low-precision side in a hurry (``--kernels fast``): half dot products run in fp32 and are rounded to storage once.

CPUs without half-precision instructions run native fp16 products 10 to 100 times slower than fp32 ones. Here the half operands are widened
(exactly), products are exact in fp32, sums are fp32, and each result is rounded to the half format once: what a GPU with fp32 accumulation
does. Against the native CPU kernel, which accumulates in fp32 too, only the order of the sum differs. Fused attention keeps its
probabilities in fp32 here, where the native kernel stores them in half once: this side is the more exact of the two.

Inf and NaN pass as natively, and a sum above the format's largest number becomes Inf by the rounding. Results have the dtypes, shapes and
strides of the native ones. Not for ``pl.audit()``, whose program keeps its own bits.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable
from typing import Any

import torch

from precisionlab.ops.registry import optional_ops
from precisionlab.shadow.opinfo import OpInfo

Tensor = torch.Tensor
aten = torch.ops.aten

HALVES = (torch.float16, torch.bfloat16)
SLOW_RATIO = 4.0
"""Half over fp32 time of a matrix product above which native half counts as slow: widening and rounding then cost less than they save."""
_PROBE_SIZE = 128


def fast_low_side(info: OpInfo, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The result of a half dot product, convolution or attention by way of fp32, or ``NotImplemented`` for every other call.

    For ``ShadowMode.low_side``: runs inside the dispatch handler, with dispatch already disabled.
    """
    kernel = _KERNELS.get(info.func)
    if kernel is None:
        return NotImplemented
    half = _half_of(args, kwargs)
    return NotImplemented if half is None else kernel(half, info.func, args, kwargs)


@functools.cache
def native_half_is_slow(dtype: torch.dtype) -> bool:
    """Whether this CPU takes more than ``SLOW_RATIO`` times as long for the matrix products of a training step in a half dtype as in fp32.

    Measured once a process, in milliseconds; call it outside of an audit. For that long torch computes on one thread: a barrier between
    threads on a busy machine would cost both dtypes alike, and hide the ratio.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.no_grad(), torch._C._DisableTorchDispatch():
            ones = torch.ones(_PROBE_SIZE, _PROBE_SIZE, device="cpu")
            return _seconds(ones.to(dtype)) > SLOW_RATIO * _seconds(ones)
    finally:
        torch.set_num_threads(threads)


def _seconds(m: Tensor) -> float:
    """Shortest time for the products of forward, input gradient and weight gradient (kernels differ much between these layouts)."""
    best = math.inf
    for repetition in range(4):
        start = time.perf_counter()
        for a, b in ((m, m.t()), (m, m), (m.t(), m)):
            torch.mm(a, b)
        if repetition:  # the first one warms up
            best = min(best, time.perf_counter() - start)
    return best


def _half_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.dtype | None:
    """The half dtype that all operands share (logsumexp and a mask may be fp32), None where there is none."""
    half = args[0].dtype if isinstance(args[0], Tensor) and args[0].is_cpu and args[0].dtype in HALVES else None
    for operand in (*args[1:3], kwargs.get("out")):
        if isinstance(operand, Tensor) and (operand.dtype is not half or not operand.is_cpu or operand.layout is not torch.strided):
            return None
    return half


def _wide(half: torch.dtype, value: Any) -> Any:
    return value.float() if isinstance(value, Tensor) and value.dtype is half else value


def _run_wide(half: torch.dtype, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return func(*(_wide(half, a) for a in args), **{name: _wide(half, a) for name, a in kwargs.items()})


def _round_all(half: torch.dtype, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Every result is of the half dtype."""
    out = _run_wide(half, func, args, kwargs)
    return out.to(half) if isinstance(out, Tensor) else tuple(t.to(half) for t in out)


def _convolution(half: torch.dtype, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    out = _run_wide(half, func, args, kwargs).to(half)
    return _laid_out(out, _native_layout(args[:9]))


def _convolution_backward(half: torch.dtype, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Gradients that nobody asked for are None, as natively; the fp32 kernel computes some of them all the same."""
    grads = [
        grad.to(half) if wanted and grad is not None else None
        for grad, wanted in zip(_run_wide(half, func, args, kwargs), args[10], strict=True)
    ]
    layout = _native_layout((args[1], args[2], None, *args[4:10], args[3]))
    if grads[0] is not None:
        grads[0] = _laid_out(grads[0], layout)
    if grads[1] is not None and layout is not None and (layout is torch.contiguous_format or grads[1].is_contiguous()):
        grads[1] = _laid_out(grads[1], torch.contiguous_format)
    return tuple(grads)


def _native_layout(problem: tuple[Any, ...]) -> torch.memory_format | None:
    """The memory format that the native kernel gives its results; None where it is the kernel that fp32 has too (oneDNN).

    The two differ for three-dimensional convolutions with channels last, which only oneDNN keeps.
    """
    backend = torch._C._select_conv_backend(*problem)
    return None if "Mkldnn" in str(backend) else torch._C._conv_determine_backend_memory_format(problem[0], problem[1], backend)


def _laid_out(t: Tensor, layout: torch.memory_format | None) -> Tensor:
    """The tensor with exactly the strides of a layout, those of dimensions of size 1 (which address nothing) included."""
    if layout is None:
        return t
    last = layout is not torch.contiguous_format
    strides = torch._prims_common.make_channels_last_strides_for if last else torch._prims_common.make_contiguous_strides_for
    return t.contiguous(memory_format=layout).as_strided(t.shape, strides(t.shape))


def _attention(half: torch.dtype, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The native kernel returns logsumexp in fp32."""
    out, logsumexp = _run_wide(half, func, args, kwargs)
    return out.to(half), logsumexp


_KERNELS: dict[Any, Callable[[torch.dtype, Any, tuple[Any, ...], dict[str, Any]], Any]] = {
    packet.default: _round_all
    for packet in optional_ops(
        aten,
        *("mm", "bmm", "addmm", "baddbmm", "mv", "addmv", "dot"),
        "_scaled_dot_product_flash_attention_for_cpu_backward",
    )
}
_KERNELS |= {packet.default: _convolution_backward for packet in optional_ops(aten, "convolution_backward")}
_KERNELS |= {packet.default: _convolution for packet in optional_ops(aten, "convolution")}
_KERNELS |= {packet.default: _attention for packet in optional_ops(aten, "_scaled_dot_product_flash_attention_for_cpu")}
