"""``--kernels fast``: fp32 products rounded once look exactly like the native half results, are as accurate, and are quicker."""

from __future__ import annotations

import itertools
import time
from typing import Any

import pytest
import torch
from torch import Tensor

import precisionlab.ops.catalogue  # noqa: F401  registers the rules
from precisionlab.ops.local import local_error
from precisionlab.shadow.fast import fast_low_side, native_half_is_slow
from precisionlab.shadow.memory import ShadowMemory
from precisionlab.shadow.mode import ShadowMode
from precisionlab.shadow.opinfo import OpInfo
from precisionlab.shadow.sites import Locator, ModuleStack

aten = torch.ops.aten
HALVES = [torch.float16, torch.bfloat16]
HEALTHY_RHO = 1.5
FLASH = aten._scaled_dot_product_flash_attention_for_cpu.default
FLASH_BACKWARD = aten._scaled_dot_product_flash_attention_for_cpu_backward.default


def looks(out: Any) -> list[Any]:
    """Dtype, shape, strides and offset of every result; None where there is none. Strides of dimensions of size 1 mean nothing."""
    results = out if isinstance(out, (tuple, list)) else (out,)
    return [t if t is None else (t.dtype, t.shape, _strides(t), t.storage_offset()) for t in results]


def _strides(t: torch.Tensor) -> tuple[int, ...]:
    return tuple(stride if size != 1 else 0 for size, stride in zip(t.shape, t.stride(), strict=True))


def assert_as_native(func: Any, *args: Any, **kwargs: Any) -> None:
    """The fast result looks like the native one, and its local error is that of a healthy kernel (or no worse than the native one's)."""
    info = OpInfo(func)
    fast = fast_low_side(info, args, kwargs)
    assert fast is not NotImplemented, func
    native = func(*args, **kwargs)
    assert looks(fast) == looks(native)
    mine = local_error(func, args, kwargs, fast, info.rule)
    other = local_error(func, args, kwargs, native, info.rule)
    assert mine is not None and other is not None
    if mine.rho_max is not None:
        assert mine.rho_max <= max(HEALTHY_RHO, other.rho_max or 0.0), (func, mine.rho_max, other.rho_max)


@pytest.fixture(params=HALVES, ids=["fp16", "bf16"])
def draw(request: pytest.FixtureRequest) -> Any:
    """``draw(2, 3)``: a random half tensor of that shape, the same ones in every run."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).to(request.param)

    return draw


def layouts(draw: Any, rows: int, columns: int) -> list[Tensor]:
    """A matrix: contiguous, transposed, every second column of another, and one row repeated."""
    return [draw(rows, columns), draw(columns, rows).t(), draw(rows, 2 * columns)[:, ::2], draw(1, columns).expand(rows, columns)]


def test_products_of_every_layout_look_native(draw: Any) -> None:
    for a, b in itertools.product(layouts(draw, 5, 7), layouts(draw, 7, 6)):
        assert_as_native(aten.mm.default, a, b)
        assert_as_native(aten.bmm.default, a.expand(3, 5, 7), b.expand(3, 7, 6))
        for bias in (draw(6), draw(5, 1), draw(6, 5).t()):
            assert_as_native(aten.addmm.default, bias, a, b, beta=0.5, alpha=2)
            assert_as_native(aten.baddbmm.default, bias, a.expand(3, 5, 7), b.expand(3, 7, 6))
        assert_as_native(aten.mv.default, a, b[:, 0])
        assert_as_native(aten.addmv.default, draw(5), a, b[:, 0])
        assert_as_native(aten.dot.default, a[0], b[:, 0])


def test_empty_products_look_native(draw: Any) -> None:
    for rows, inner in ((0, 4), (4, 0), (0, 0)):
        a, b = draw(rows, inner), draw(inner, 3)
        assert looks(fast_low_side(OpInfo(aten.mm.default), (a, b), {})) == looks(torch.mm(a, b))


CONVOLUTIONS = [  # rank, groups, transposed, input and weight with channels last
    case
    for case in itertools.product((1, 2, 3), (1, 8), (False, True), (False, True), (False, True))
    if case[0] > 1 or not (case[3] or case[4])
]


@pytest.mark.parametrize("rank, groups, transposed, x_last, w_last", CONVOLUTIONS)
def test_convolutions_look_native(draw: Any, rank: int, groups: int, transposed: bool, x_last: bool, w_last: bool) -> None:
    last = {1: torch.contiguous_format, 2: torch.channels_last, 3: torch.channels_last_3d}[rank]
    x, w = draw(2, 8, *(4,) * rank), draw(8, 8 // groups, *(3,) * rank)
    x = x.contiguous(memory_format=last) if x_last else x
    w = w.contiguous(memory_format=last) if w_last else w
    shape = ([2] * rank, [1] * rank, [1] * rank, transposed, [0] * rank, groups)
    assert_as_native(aten.convolution.default, x, w, draw(8), *shape)
    out = aten.convolution.default(x, w, None, *shape)
    for grad, mask in ((torch.ones_like(out), [True, True, True]), (draw(*out.shape), [False, True, False])):
        assert_as_native(aten.convolution_backward.default, grad, x, w, [8], *shape, mask)


@pytest.mark.parametrize("inner, outer, kernel, size", [(1, 4, 3, 6), (4, 1, 3, 6), (4, 4, 1, 6), (4, 4, 3, 3), (4, 4, 1, 1)])
def test_convolutions_with_dimensions_of_size_one_look_native(draw: Any, inner: int, outer: int, kernel: int, size: int) -> None:
    for x_last, w_last in itertools.product((torch.contiguous_format, torch.channels_last), repeat=2):
        x = draw(2, inner, size, size).contiguous(memory_format=x_last)
        w = draw(outer, inner, kernel, kernel).contiguous(memory_format=w_last)
        shape = ([1, 1], [0, 0], [1, 1], False, [0, 0], 1)
        assert_as_native(aten.convolution.default, x, w, None, *shape)
        grad = torch.ones_like(aten.convolution.default(x, w, None, *shape))
        assert_as_native(aten.convolution_backward.default, grad, x, w, None, *shape, [True, True, False])


def heads(draw: Any, layout: str) -> Tensor:
    """Queries, keys or values: laid out by head, by token, or as a part of a fused projection."""
    if layout == "by head":
        return draw(2, 3, 10, 8)
    return draw(2, 10, 3, 8).transpose(1, 2) if layout == "by token" else draw(2, 10, 3, 3, 8).permute(3, 0, 2, 1, 4)[1]


@pytest.mark.parametrize("masked", ["no mask", "causal", "half mask"])
@pytest.mark.parametrize("layout", ["by head", "by token", "fused"])
def test_attention_looks_native(draw: Any, layout: str, masked: str) -> None:
    q, k, v = (heads(draw, layout) for _ in range(3))
    settings: dict[str, Any] = {"attn_mask": draw(10, 10) if masked == "half mask" else None, "scale": 0.3}
    causal = masked == "causal"
    assert_as_native(FLASH, q, k, v, 0.0, causal, **settings)
    out, logsumexp = FLASH(q, k, v, 0.0, causal, **settings)
    assert logsumexp.dtype is torch.float32
    assert_as_native(FLASH_BACKWARD, heads(draw, "by token"), q, k, v, out, logsumexp, 0.0, causal, **settings)


def test_a_sum_beyond_the_format_becomes_inf_and_nan_passes() -> None:
    a = torch.full((1, 4), 200.0, dtype=torch.float16)
    b = torch.tensor([[200.0, -200.0, float("nan")]] * 4).half()
    out = fast_low_side(OpInfo(aten.mm.default), (a, b), {})
    assert out[0, :2].tolist() == [float("inf"), float("-inf")] and out[0, 2].isnan()


def test_other_ops_and_dtypes_are_left_alone() -> None:
    half, single = torch.ones(3, 3, dtype=torch.float16), torch.ones(3, 3)
    assert fast_low_side(OpInfo(aten.mm.default), (single, single), {}) is NotImplemented
    assert fast_low_side(OpInfo(aten.add.Tensor), (half, half), {}) is NotImplemented
    assert fast_low_side(OpInfo(aten.mm.out), (half, half), {"out": torch.empty(3, 3, dtype=torch.float16)}) is NotImplemented
    with pytest.raises(RuntimeError):  # mixed operands: the native kernel says what is wrong
        aten.mm.default(half, single)
    assert fast_low_side(OpInfo(aten.mm.default), (half, single), {}) is NotImplemented


@pytest.mark.parametrize("dtype", HALVES)
def test_a_training_step_through_the_mode_stays_within_rounding_of_native(dtype: torch.dtype) -> None:
    def gradients(low_side: Any) -> list[Tensor]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.GELU(), torch.nn.Flatten(), torch.nn.Linear(4 * 36, 5)).to(dtype)
        mode = ShadowMode(ShadowMemory(), Locator(ModuleStack()), None)
        mode.low_side = low_side
        with mode:
            model(torch.randn(2, 3, 8, 8).to(dtype)).square().mean().backward()
        assert not mode.unshadowed
        return [p.grad for p in model.parameters() if p.grad is not None]

    u = torch.finfo(dtype).eps / 2
    for mine, native in zip(gradients(fast_low_side), gradients(None), strict=True):
        assert mine.dtype is dtype and _strides(mine) == _strides(native)
        assert (mine - native).double().norm() <= 4 * u * native.double().norm()


def test_whether_half_is_slow_is_asked_once_and_leaves_the_threads_alone() -> None:
    threads = torch.get_num_threads()
    first = native_half_is_slow(torch.float16)
    assert native_half_is_slow(torch.float16) is first
    assert torch.get_num_threads() == threads


@pytest.mark.skipif(not native_half_is_slow(torch.float16), reason="this CPU multiplies fp16 matrices natively")
def test_fast_fp16_products_beat_slow_native_ones() -> None:
    a, info = torch.ones(128, 128, dtype=torch.float16), OpInfo(aten.mm.default)

    def shortest(run: Any) -> float:
        times = []
        for _ in range(5):
            start = time.thread_time()
            run()
            times.append(time.thread_time() - start)
        return min(times)

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        assert shortest(lambda: fast_low_side(info, (a, a), {})) < shortest(lambda: torch.mm(a, a))
    finally:
        torch.set_num_threads(threads)
