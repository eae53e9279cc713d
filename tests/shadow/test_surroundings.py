"""What else a program may do around its ops: every feature of torch that an audit meets must work as without it."""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import opdb
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.modules import module as module_hooks
from torch.optim import optimizer as optimizer_hooks
from torch.utils._python_dispatch import _get_current_dispatch_mode

import precisionlab as pl

Tensor = torch.Tensor
BF16 = torch.bfloat16


def _bits(value: Any) -> list[Any]:
    return [opdb.bits(t) for t in opdb.flatten(value)]


def same(program: Callable[[], Any], **settings: Any) -> tuple[Any, pl.audit]:
    """Assert that the audit changes no bit of what ``program`` returns, nor the random state; give back result and audit."""
    torch.manual_seed(3)
    plain, state = _bits(program()), torch.get_rng_state()
    torch.manual_seed(3)
    with pl.audit(**settings) as audit:
        left = program()
        with torch._C._DisableTorchDispatch():
            watched = _bits(left)
    assert watched == plain
    assert torch.equal(state, torch.get_rng_state())
    return left, audit


def _net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.LayerNorm(8), nn.Linear(8, 3)).to(BF16)


def _x(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(7)).to(BF16)


# Ways to run.


def test_inference_mode() -> None:
    net, x = _net(), _x(4, 6)

    def program() -> Tensor:
        with torch.inference_mode():
            return net(x).softmax(-1).clone().add_(1.0)

    _, audit = same(program)
    assert audit._mode.reasons == {}
    assert audit._mode.ops >= 5


def test_inference_mode_twins_are_the_fp64_program() -> None:
    net, x = _net(), _x(4, 6)
    with pl.audit() as audit, torch.inference_mode():
        y = F.softmax(net(x), -1).reshape(3, 4).contiguous()
        twin = audit.shadow(y)
    truth = F.softmax(net.double()(x.double()), -1).reshape(3, 4)
    assert opdb.normwise(twin, truth) < 1e-12


def test_no_grad_and_frozen_parameters() -> None:
    net, x = _net(), _x(4, 6)

    def program() -> Any:
        with torch.no_grad():
            first = net(x)
        net[0].weight.requires_grad_(False)
        y = net(x)
        return first, torch.autograd.grad(y.sum(), [p for p in net.parameters() if p.requires_grad])

    same(program)


def test_compiled_module_runs_eagerly_and_unchanged() -> None:
    net, x = _net(), _x(4, 6)
    compiled = torch.compile(net, backend="eager")

    def program() -> Any:
        y = compiled(x)
        return y, torch.autograd.grad(y.square().sum(), list(net.parameters()))

    _, audit = same(program)
    assert audit._mode.ops >= 8
    assert audit._mode.reasons == {}


def test_functorch_grad_and_vmap() -> None:
    net, x = _net(), _x(4, 6)
    parameters = {k: v.detach() for k, v in net.named_parameters()}

    def loss(p: dict[str, Tensor], row: Tensor) -> Tensor:
        return torch.func.functional_call(net, p, (row,)).square().sum()

    def program() -> Any:
        return torch.func.vmap(torch.func.grad(loss), (None, 0))(parameters, x), torch.func.jacrev(lambda t: net(t).sum(0))(x)

    same(program)


def test_forward_mode_derivatives() -> None:
    x = _x(4, 6).float()
    same(lambda: torch.func.jvp(lambda t: torch.tanh(t) * t, (x,), (torch.ones_like(x),)))


def test_complex_numbers() -> None:
    generator = torch.Generator().manual_seed(1)
    z = torch.randn(4, 8, dtype=torch.complex64, generator=generator).requires_grad_()

    def program() -> Any:
        spectrum = torch.fft.fft(z) * torch.exp(1j * z.real)
        y = (spectrum.conj() * spectrum).real.sum() + torch.view_as_real(z).square().sum()
        return spectrum, y, torch.autograd.grad(y, z)

    _, audit = same(program)
    assert audit._mode.reasons == {}


def test_sparse_gradients_are_counted_not_shadowed() -> None:
    table = nn.Embedding(10, 4, sparse=True)
    index = torch.tensor([1, 3, 3, 9])

    def program() -> Any:
        torch.manual_seed(0)
        nn.init.normal_(table.weight)
        optimizer = torch.optim.SGD(table.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            table(index).square().sum().backward()
            optimizer.step()
        return table.weight.detach().clone(), table.weight.grad

    _, audit = same(program)
    assert audit._mode.reasons
    assert all("no strided storage" in reason for reason in audit._mode.reasons.values())


def test_sparse_adam() -> None:
    table = nn.Embedding(10, 4, sparse=True)

    def program() -> Any:
        torch.manual_seed(0)
        nn.init.normal_(table.weight)
        optimizer = torch.optim.SparseAdam(table.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            table(torch.tensor([1, 3, 3, 9])).square().sum().backward()
            optimizer.step()
        return table.weight.detach().clone()

    same(program)


class Tagged(Tensor):
    """A subclass without a dispatch of its own: it keeps its class through ``__torch_function__``."""


class Wrapped(Tensor):
    """A wrapper subclass, as DTensor is one: an outer tensor without memory, and an inner one that ops are run on."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> Wrapped:
        out = Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, requires_grad=inner.requires_grad)
        out.inner = inner
        return out

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def inside(value: Any) -> Any:
            return value.inner if isinstance(value, Wrapped) else value

        out = func(*(inside(a) for a in args), **{k: inside(v) for k, v in (kwargs or {}).items()})
        return cls(out) if isinstance(out, Tensor) else out


def test_a_plain_subclass_keeps_its_class() -> None:
    x = _x(3, 4).as_subclass(Tagged)
    left, _ = same(lambda: (x * 2 + 1).exp())
    assert isinstance(left, Tagged)


def test_a_wrapper_subclass_is_seen_through_its_inner_tensors() -> None:
    x = _x(3, 4)
    _, audit = same(lambda: (Wrapped(x) * 2 + 1).exp().inner)
    assert audit._mode.ops >= 3
    assert audit._mode.reasons == {}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_programs_in_full_precision(dtype: torch.dtype) -> None:
    net = _net().to(dtype)
    x = _x(4, 6).to(dtype)

    def program() -> Any:
        y = net(x)
        return y, torch.autograd.grad(y.square().sum(), list(net.parameters()))

    _, audit = same(program)
    assert audit._mode.reasons == {}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_default_dtype(dtype: torch.dtype) -> None:
    def program() -> Any:
        torch.set_default_dtype(dtype)
        try:
            x = torch.linspace(0, 1, 12).reshape(3, 4) + torch.ones(4) + torch.rand(3, 4)
            return x, x.softmax(-1), torch.tensor([0.1, 0.2]), torch.arange(3.0), torch.eye(2)
        finally:
            torch.set_default_dtype(torch.float32)

    same(program)


@pytest.mark.parametrize("inference", [contextlib.nullcontext, torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("dtype", [torch.float32, BF16])
def test_transformer_encoder_layer_in_eval(inference: Any, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval().to(dtype)
    encoder = nn.TransformerEncoder(layer, 2).eval()
    x = _x(3, 5, 8).to(dtype)
    mask = torch.zeros(3, 5, dtype=torch.bool)
    mask[1, 3:] = True

    def program() -> Any:
        with inference():
            return encoder(x), encoder(x, src_key_padding_mask=mask)

    same(program)


@pytest.mark.parametrize("inference", [contextlib.nullcontext, torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("weights", [True, False])
def test_multi_head_attention_in_eval(inference: Any, weights: bool) -> None:
    torch.manual_seed(0)
    attention = nn.MultiheadAttention(8, 2, batch_first=True).eval().to(BF16)
    x = _x(3, 5, 8)

    def program() -> Any:
        with inference():
            return attention(x, x, x, need_weights=weights)

    same(program)


def test_multi_head_attention_in_training() -> None:
    torch.manual_seed(0)
    attention = nn.MultiheadAttention(8, 2, dropout=0.2, batch_first=True).to(BF16)
    x = _x(3, 5, 8)

    def program() -> Any:
        y, _ = attention(x, x, x)
        return y, torch.autograd.grad(y.square().sum(), list(attention.parameters()))

    same(program)


def test_meta_tensors() -> None:
    with pl.audit() as audit:
        y = torch.ones(3, 4, device="meta", dtype=BF16) @ torch.ones(4, 5, device="meta", dtype=BF16)
    assert y.shape == (3, 5)
    assert set(audit._mode.reasons.values()) <= {"a meta tensor has no values"}


def test_quantised_and_8_bit_tensors() -> None:
    x = _x(4, 4).float()

    def program() -> Any:
        eight_bits = x.to(torch.float8_e4m3fn).to(torch.float32), x.to(torch.float8_e5m2).to(BF16)
        return eight_bits, torch.quantize_per_tensor(x, 0.1, 0, torch.qint8).dequantize()

    same(program)


def test_autograd_functions_and_hooks_of_the_program() -> None:
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            return 2 * x * grad

    def program() -> Any:
        x = _x(3, 4).requires_grad_()
        x.register_hook(lambda g: g * 0.5)
        y = Square.apply(x).exp()
        y.register_hook(lambda g: g.clamp(max=1.0))
        y.sum().backward()
        return y, x.grad

    _, audit = same(program)
    assert audit._mode.reasons == {}


def test_anomaly_detection() -> None:
    net, x = _net(), _x(4, 6)

    def program() -> Any:
        with torch.autograd.detect_anomaly(check_nan=True):
            return torch.autograd.grad(net(x).sum(), list(net.parameters()))

    same(program)


def test_max_and_prod_gradients_keep_the_formula_they_have_without_a_mode() -> None:
    """Autograd takes another formula for them as soon as a mode is on (``shadow/native.py``)."""
    x = _x(5, 4).requires_grad_()
    y = _x(5, 4).requires_grad_()
    with torch.no_grad():
        y[1, 2] = 0.0
        x[0] = x.max()

    def program() -> Any:
        return (
            *(torch.autograd.grad(getattr(x, name)(), x) for name in ("max", "min", "median", "nanmedian", "prod")),
            torch.autograd.grad(y.prod(), y),
            torch.autograd.grad(y.prod(1).sum(), y),
            torch.autograd.grad(y.prod(0, keepdim=True).sum(), y),
        )

    _, audit = same(program)
    assert audit._mode.reasons == {}


# What is left behind.


def _hooks() -> tuple[int, ...]:
    return (
        len(module_hooks._global_forward_hooks),
        len(module_hooks._global_forward_pre_hooks),
        len(optimizer_hooks._global_optimizer_pre_hooks),
        len(optimizer_hooks._global_optimizer_post_hooks),
    )


def test_hooks_and_mode_are_gone_after_an_exception() -> None:
    before = _hooks()
    net = _net()
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"), pl.audit(net):
        net(_x(4, 5))
    assert _hooks() == before
    assert _get_current_dispatch_mode() is None
    net(_x(4, 6))


def test_an_op_that_raises_raises_the_same_and_leaves_the_audit_usable() -> None:
    x = _x(3, 4)
    with pytest.raises(RuntimeError) as plain:
        x @ x
    with pl.audit() as audit:
        with pytest.raises(RuntimeError) as watched:
            x @ x
        y = x + 1
        assert audit.shadow(y).dtype == torch.float64
    assert str(plain.value) == str(watched.value)


@pytest.fixture
def without_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def test_memory_is_freed_at_once_without_the_garbage_collector(without_collector: None) -> None:
    net = _net()
    optimizer = torch.optim.AdamW(net.parameters())
    with pl.audit(net, optimizer) as audit:
        held = []
        for _ in range(4):
            optimizer.zero_grad()
            loss = net(_x(4, 6)).square().mean()
            loss.backward()
            optimizer.step()
            del loss
            held.append(audit.memory.bytes)
    assert held[1] == held[2] == held[3]


def test_nothing_survives_the_audit() -> None:
    net, x = _net(), _x(4, 6)
    with pl.audit(net) as audit:
        y = net(x)
        y.sum().backward()
        alive = [weakref.ref(y), weakref.ref(net[0].weight.grad)]
    memory = weakref.ref(audit.memory)
    report = audit.report
    net.zero_grad()
    del y, audit
    gc.collect()
    assert [r() for r in alive] == [None, None]
    assert memory() is None
    assert report is not None


def test_a_result_outlives_its_audit_unchanged() -> None:
    with pl.audit():
        y = _x(3, 4) * 2
    assert torch.equal(y, _x(3, 4) * 2)
    with pl.audit() as again:
        assert torch.equal(again.shadow(y), y.double())


def test_a_thread_of_the_program_runs_unwatched() -> None:
    """Modes belong to a thread; what another thread writes is found out by its version counter."""
    import threading

    x = torch.ones(4)
    with pl.audit() as audit:
        y = x * (1 / 3)
        thread = threading.Thread(target=lambda: y.add_(1.0).mul_(2.0))
        thread.start()
        thread.join()
        z = y + 0.0
        assert torch.equal(audit.shadow(z), z.double())
    assert audit.memory.resyncs == {"written outside the audit": 1}
