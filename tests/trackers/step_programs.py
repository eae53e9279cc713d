"""Small training programs that go wrong around the step, each with its sound twin: ``program(wrong)``, and the codes that may name it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

PROGRAMS: dict[str, tuple[Callable[[bool], Any], frozenset[str]]] = {}
_Program = Callable[[bool], Any]


def _named_by(*codes: str) -> Callable[[_Program], _Program]:
    def register(program: _Program) -> _Program:
        PROGRAMS[program.__name__.replace("_", " ")] = (program, frozenset(codes))
        return program

    return register


class _Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm, self.b = nn.Linear(32, 64), nn.LayerNorm(64), nn.Linear(64, 8)

    def hidden(self, x: Tensor) -> Tensor:
        return self.norm(F.gelu(self.a(x)))

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.hidden(x))


def _start(seed: int = 0) -> tuple[_Net, Tensor, Tensor, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    net = _Net()
    return net, torch.randn(64, 32), torch.randn(64, 8), torch.optim.SGD(net.parameters(), lr=1e-2)


def _half_loss(net: _Net, x: Tensor, y: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.float16):
        out = net(x)
    return F.mse_loss(out.float(), y)


def _between_scaling_and_step(change: Callable[[_Net], None]) -> Callable[[bool], None]:
    def program(wrong: bool) -> None:
        net, x, y, optimizer = _start()
        scaler = torch.amp.GradScaler("cpu", init_scale=4096.0)
        for _ in range(3):
            optimizer.zero_grad()
            scaler.scale(_half_loss(net, x, y)).backward()
            if not wrong:
                scaler.unscale_(optimizer)
            with torch.no_grad():
                change(net)
            scaler.step(optimizer)
            scaler.update()

    return program


@_named_by("PL403")
def weight_decay_added_to_scaled_gradients(wrong: bool) -> None:
    def decay(net: _Net) -> None:
        for p in net.parameters():
            assert p.grad is not None
            p.grad.add_(p, alpha=1e-2)

    _between_scaling_and_step(decay)(wrong)


@_named_by("PL403")
def noise_added_to_scaled_gradients(wrong: bool) -> None:
    def noise(net: _Net) -> None:
        for p in net.parameters():
            assert p.grad is not None
            p.grad += 0.1 * torch.randn_like(p)

    _between_scaling_and_step(noise)(wrong)


@_named_by("PL402", "PL403")
def scaled_gradients_clipped_one_by_one(wrong: bool) -> None:
    def clip(net: _Net) -> None:
        for p in net.parameters():
            assert p.grad is not None
            limit, norm = 0.05 * p.norm().clamp(min=1e-3), p.grad.norm()
            p.grad.copy_(torch.where(norm > limit, p.grad * (limit / norm), p.grad))

    _between_scaling_and_step(clip)(wrong)


@_named_by("PL403")
def divided_by_the_scale_of_the_next_step(wrong: bool) -> None:
    net, x, y, optimizer = _start()
    scale = 1024.0
    for step in range(7):
        optimizer.zero_grad()
        (_half_loss(net, x, y) * scale).backward()
        used = scale
        scale = scale * 2 if step % 3 == 2 else scale
        for p in net.parameters():
            assert p.grad is not None
            p.grad.div_(scale if wrong else used)
        optimizer.step()


@_named_by("PL408")
def gradients_never_zeroed(wrong: bool) -> None:
    net, x, y, optimizer = _start()
    for _ in range(5):
        if not wrong:
            optimizer.zero_grad(set_to_none=False)
        F.mse_loss(net(x), y).backward()
        optimizer.step()


@_named_by("PL406")
def a_rate_that_follows_the_iterations(wrong: bool) -> None:
    net, x, y, optimizer = _start()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**30)
    taken = 0
    for iteration in range(20):
        for group in optimizer.param_groups:
            group["lr"] = 1e-2 * max(0.0, 1 - (iteration if wrong else taken) / 12)
        optimizer.zero_grad()
        scaler.scale(_half_loss(net, x, y)).backward()
        before = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        taken += scaler.get_scale() >= before


class _Recomputed(torch.autograd.Function):
    """Checkpointing by hand."""

    @staticmethod
    def forward(ctx: Any, run: Any, repeat: Any, x: Tensor, *weights: Tensor) -> Any:
        ctx.repeat, ctx.weights = repeat, weights
        ctx.save_for_backward(x)
        with torch.no_grad():
            return run(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        x = x.detach().requires_grad_()
        with torch.enable_grad():
            out = ctx.repeat(x)
        return (None, None, *torch.autograd.grad(out, (x, *ctx.weights), grad.to(out.dtype)))


@_named_by("PL508")
def recomputed_outside_of_autocast(wrong: bool) -> None:
    net, x, y, optimizer = _start()

    def again(x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=not wrong):
            return net(x)

    for _ in range(2):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            out = _Recomputed.apply(net, again, x, *net.parameters())
        F.mse_loss(out.float(), y).backward()
        optimizer.step()


def _dropout_recomputed(wrong: bool, *, reentrant: bool) -> None:
    net, x, y, optimizer = _start()
    x = x.requires_grad_()
    for _ in range(2):
        optimizer.zero_grad()
        hidden = checkpoint(lambda t: F.dropout(net.hidden(t), 0.5), x, use_reentrant=reentrant, preserve_rng_state=not wrong)
        F.mse_loss(net.b(hidden), y).backward()
        optimizer.step()


@_named_by("PL508")
def recomputed_with_fresh_random_numbers(wrong: bool) -> None:
    _dropout_recomputed(wrong, reentrant=False)


@_named_by("PL508")
def recomputed_reentrantly_with_fresh_random_numbers(wrong: bool) -> None:
    _dropout_recomputed(wrong, reentrant=True)


@_named_by("PL301")
def a_step_by_hand_on_bf16_weights(wrong: bool) -> None:
    torch.manual_seed(0)
    w = (1 + torch.rand(64)).to(torch.bfloat16 if wrong else torch.float32).requires_grad_()
    x = torch.randn(256, 64)
    for _ in range(4):
        loss = (x.to(w.dtype) @ w).float().square().mean()
        (gradient,) = torch.autograd.grad(loss, w)
        with torch.no_grad():
            w -= 1e-5 * gradient


@_named_by("PL105", "PL303")
def a_second_moment_by_hand_in_fp16(wrong: bool) -> None:
    torch.manual_seed(0)
    w, x = nn.Parameter(torch.randn(64)), torch.randn(256, 64)
    v = torch.zeros(64, dtype=torch.float16 if wrong else torch.float32)
    for _ in range(5):
        (gradient,) = torch.autograd.grad((x @ w).square().mean() * 1e-3, w)
        narrow = gradient.to(v.dtype)
        with torch.no_grad():
            v.mul_(0.999).addcmul_(narrow, narrow, value=1e-3)
            w -= 1e-3 * (narrow / (v.sqrt() + 1e-8)).float()


@_named_by("PL302")
def an_average_rebuilt_in_bf16(wrong: bool) -> None:
    net, x, y, optimizer = _start()
    dtype = torch.bfloat16 if wrong else torch.float32
    average = {key: torch.full_like(value, 0.5, dtype=dtype) for key, value in net.state_dict().items()}
    for _ in range(10):
        optimizer.zero_grad()
        F.mse_loss(net(x), y).backward()
        optimizer.step()
        with torch.no_grad():
            for key, value in net.state_dict().items():
                average[key] = 0.999 * average[key] + (1 - 0.999) * value.to(dtype)


@_named_by("PL302")
def batch_norm_statistics_in_bf16(wrong: bool) -> None:
    torch.manual_seed(0)
    dtype = torch.bfloat16 if wrong else torch.float32
    norm = nn.BatchNorm1d(16, momentum=0.001).to(dtype)
    assert norm.running_mean is not None
    norm.running_mean.fill_(3.0)
    for _ in range(16):
        norm((torch.randn(32, 16) + 3.5).to(dtype))


@_named_by("PL302")
def a_counter_in_fp16(wrong: bool) -> None:
    seen = torch.full((), 2040.0, dtype=torch.float16 if wrong else torch.float32)
    for _ in range(40):
        seen += 1


@_named_by("PL302", "PL502", "PL503")
def expert_counts_in_bf16(wrong: bool) -> None:
    torch.manual_seed(0)
    load = torch.zeros(4, dtype=torch.bfloat16 if wrong else torch.float32)
    for _ in range(20):
        chosen = torch.randint(0, 4, (256,))
        load.index_add_(0, chosen, torch.ones(256, dtype=load.dtype))
    load.tolist()


@_named_by("PL303")
def a_second_moment_that_cannot_decay(wrong: bool) -> None:
    torch.manual_seed(0)
    layer = nn.Linear(32, 8).to(torch.bfloat16 if wrong else torch.float32)
    optimizer = torch.optim.Adam(layer.parameters(), lr=1e-2, betas=(0.9, 0.999))
    x, y = torch.randn(64, 32).to(layer.weight.dtype), torch.randn(64, 8)
    for step in range(66):
        optimizer.zero_grad()
        (F.mse_loss(layer(x).float(), y) * (100.0 if step == 0 else 0.1)).backward()
        optimizer.step()


@_named_by("PL301")
def masters_made_anew_in_every_step(wrong: bool) -> None:
    net, x, y, _ = _start()
    net = net.bfloat16()
    masters = [p.detach().float() for p in net.parameters()]
    for _ in range(5):
        F.mse_loss(net(x.bfloat16()).float(), y).backward()
        with torch.no_grad():
            for i, p in enumerate(net.parameters()):
                if wrong:
                    masters[i] = p.detach().float()
                assert p.grad is not None
                masters[i] -= 1e-4 * p.grad.float()
                p.copy_(masters[i])
                p.grad = None


@_named_by("PL107")
def a_rate_below_the_range_of_its_format(wrong: bool) -> None:
    net, x, y, _ = _start()
    rate = torch.tensor(2e-8, dtype=torch.float16 if wrong else torch.float32)
    for _ in range(4):
        net.zero_grad()
        (F.mse_loss(net(x), y) * 1e5).backward()
        with torch.no_grad():
            for p in net.parameters():
                assert p.grad is not None
                p -= rate * p.grad


@_named_by("PL403")
def divided_by_the_square_of_the_scale(wrong: bool) -> None:
    net, x, y, optimizer = _start()
    scale = 1024.0
    for _ in range(3):
        optimizer.zero_grad()
        (_half_loss(net, x, y) * scale).backward()
        for p in net.parameters():
            assert p.grad is not None
            p.grad /= scale * scale if wrong else scale
        optimizer.step()


@_named_by("PL508")
def layers_of_torch_recomputed_outside_of_autocast(wrong: bool) -> None:
    torch.manual_seed(0)
    net, x, y = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 8)), torch.randn(16, 32), torch.randn(16, 8)

    def again(x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=not wrong):
            return net(x)

    with torch.autocast("cpu", torch.bfloat16):
        out = _Recomputed.apply(net, again, x, *net.parameters())
    F.mse_loss(out.float(), y).backward()


@_named_by("PL402", "PL403")
def fused_steps_on_gradients_clipped_while_scaled(wrong: bool) -> None:
    net, x, y, _ = _start()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=4096.0)
    for _ in range(3):
        optimizer.zero_grad()
        scaler.scale(_half_loss(net, x, y)).backward()
        if not wrong:
            scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()


@_named_by("PL405")
def infinities_replaced_in_a_new_gradient(wrong: bool) -> None:
    net, x, y, optimizer = _start()
    scale = 2.0**22 if wrong else 256.0
    for _ in range(3):
        optimizer.zero_grad()
        (_half_loss(net, x, y) * scale).backward()
        for p in net.parameters():
            assert p.grad is not None
            p.grad = torch.where(torch.isfinite(p.grad), p.grad, torch.zeros_like(p.grad)) / scale
        optimizer.step()
