"""Small training loops, each with one protocol fault, beside the loop done right. All run in fp16 autocast under a scaler, or by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

SCALE = 4096.0


class Loop:
    """Model, data, optimizer and scaler of a small regression."""

    def __init__(self, lr: float = 1e-2, scale: float = SCALE) -> None:
        torch.manual_seed(3)
        self.net = nn.Sequential(nn.Linear(12, 24), nn.GELU(), nn.Linear(24, 2))
        self.opt = torch.optim.SGD(self.net.parameters(), lr=lr)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=scale)
        self.x = torch.randn(32, 12)
        self.y = 3.0 * torch.randn(32, 2) + 5.0

    def loss(self, part: slice = slice(None)) -> torch.Tensor:
        with torch.amp.autocast("cpu", dtype=torch.float16):
            return F.mse_loss(self.net(self.x[part]).float(), self.y[part])

    @property
    def params(self) -> list[torch.Tensor]:
        return list(self.net.parameters())


def _standard(middle: Callable[[Loop], Any], *, steps: int = 4) -> Callable[[], None]:
    def run() -> None:
        loop = Loop()
        for _ in range(steps):
            loop.opt.zero_grad()
            loop.scaler.scale(loop.loss()).backward()
            middle(loop)
            loop.scaler.step(loop.opt)
            loop.scaler.update()

    return run


def _hand_clip_tensor(loop: Loop) -> None:
    total = torch.sqrt(sum(p.grad.square().sum() for p in loop.params))
    coefficient = 1.0 / (total + 1e-6)
    for p in loop.params:
        p.grad.mul_(torch.clamp(coefficient, max=1.0))


def _hand_clip_number(loop: Loop) -> None:
    total = float(torch.linalg.vector_norm(torch.stack([p.grad.norm() for p in loop.params])))
    if total > 1.0:
        for p in loop.params:
            p.grad *= 1.0 / total


def _divide_by_hand(loop: Loop) -> None:
    for p in loop.params:
        p.grad /= loop.scaler.get_scale()


def _unscaled_then(middle: Callable[[Loop], Any]) -> Callable[[Loop], None]:
    def run(loop: Loop) -> None:
        loop.scaler.unscale_(loop.opt)
        middle(loop)

    return run


def _clip(loop: Loop) -> None:
    nn.utils.clip_grad_norm_(loop.params, 1.0)


def _clip_value(loop: Loop) -> None:
    nn.utils.clip_grad_value_(loop.params, 0.05)


def _plain_step() -> None:
    loop = Loop()
    for _ in range(3):
        loop.opt.zero_grad()
        loop.scaler.scale(loop.loss()).backward()
        loop.opt.step()


def _step_twice() -> None:
    loop = Loop()
    for _ in range(3):
        loop.opt.zero_grad()
        loop.scaler.scale(loop.loss()).backward()
        loop.scaler.step(loop.opt)
        loop.opt.step()
        loop.scaler.update()


def _static_clip(clip_before: bool) -> Callable[[], None]:
    def run() -> None:
        loop = Loop()
        for _ in range(4):
            loop.opt.zero_grad()
            (loop.loss() * SCALE).backward()
            if clip_before:
                _clip(loop)
            for p in loop.params:
                p.grad.div_(SCALE)
            if not clip_before:
                _clip(loop)
            loop.opt.step()

    return run


def _microbatches(unscale_each: bool, clip_each: bool) -> Callable[[], None]:
    def run() -> None:
        loop = Loop()
        for _ in range(3):
            loop.opt.zero_grad()
            for k in range(4):
                loop.scaler.scale(loop.loss(slice(8 * k, 8 * k + 8)) / 4).backward()
                if unscale_each and k < 3:
                    for p in loop.params:
                        p.grad.mul_(1.0 / loop.scaler.get_scale())
                if clip_each and k < 3:
                    _clip(loop)
            loop.scaler.unscale_(loop.opt)
            _clip(loop)
            loop.scaler.step(loop.opt)
            loop.scaler.update()

    return run


def _update_between(between: bool) -> Callable[[], None]:
    def run() -> None:
        torch.manual_seed(0)
        a, b = nn.Linear(8, 8), nn.Linear(8, 1)
        one, two = torch.optim.SGD(a.parameters(), lr=1e-3), torch.optim.SGD(b.parameters(), lr=1e-3)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=1)
        x = torch.randn(16, 8)
        for _ in range(3):
            one.zero_grad()
            two.zero_grad()
            with torch.amp.autocast("cpu", dtype=torch.float16):
                loss = (b(torch.tanh(a(x))).float() - 1).square().mean()
            scaler.scale(loss).backward()
            scaler.step(one)
            if between:
                scaler.update()
            scaler.step(two)
            scaler.update()

    return run


def _penalty(divide: bool) -> Callable[[], None]:
    def run() -> None:
        loop = Loop()
        for _ in range(3):
            loop.opt.zero_grad()
            loss = loop.loss()
            grads = torch.autograd.grad(loop.scaler.scale(loss), loop.params, create_graph=True)
            if divide:
                grads = [g * (1.0 / loop.scaler.get_scale()) for g in grads]
            norm = torch.sqrt(sum(g.float().square().sum() for g in grads) + 1e-6)
            loop.scaler.scale(loss + 1e-3 * (norm - 1.0) ** 2).backward()
            loop.scaler.step(loop.opt)
            loop.scaler.update()

    return run


def _replaced(replace: bool) -> Callable[[], None]:
    def run() -> None:
        loop = Loop(scale=2.0**22)
        for _ in range(6):
            loop.opt.zero_grad()
            loop.scaler.scale(loop.loss()).backward()
            if replace:
                for p in loop.params:
                    torch.nan_to_num_(p.grad, nan=0.0, posinf=0.0, neginf=0.0)
            loop.scaler.step(loop.opt)
            loop.scaler.update()

    return run


def _negative(sentinel: float) -> Callable[[], None]:
    def run() -> None:
        loop = Loop()
        for _ in range(3):
            loop.opt.zero_grad()
            loop.loss().backward()
            for p in loop.params:
                p.grad.mul_(1.0 / (sentinel + 1e-6))
            loop.opt.step()

    return run


FAULTY = {
    "torch clip before unscale": (_standard(_clip), "PL402"),
    "clip by value before unscale": (_standard(_clip_value), "PL402"),
    "hand-written clip before unscale, tensor coefficient": (_standard(_hand_clip_tensor), "PL402"),
    "hand-written clip before unscale, Python coefficient": (_standard(_hand_clip_number), "PL402"),
    "static scale, clip before dividing": (_static_clip(True), "PL402"),
    "divided by hand and by the scaler": (_standard(_divide_by_hand), "PL403"),
    "plain step on scaled gradients": (_plain_step, "PL403"),
    "plain step after scaler.step": (_step_twice, "PL403"),
    "unscaled per micro-batch": (_microbatches(True, False), "PL403"),
    "clipped per micro-batch": (_microbatches(False, True), "PL404"),
    "update between two optimizers": (_update_between(True), "PL403"),
    "gradient penalty on scaled gradients": (_penalty(False), "PL403"),
    "non-finite gradients replaced": (_replaced(True), "PL405"),
    "negative factor": (_negative(-1.0), "PL408"),
}

SOUND = {
    "plain scaler loop": _standard(lambda loop: None),
    "clip after unscale": _standard(_unscaled_then(_clip)),
    "clip by value after unscale": _standard(_unscaled_then(_clip_value)),
    "hand-written clip after unscale": _standard(_unscaled_then(_hand_clip_tensor)),
    "hand-written clip after unscale, Python coefficient": _standard(_unscaled_then(_hand_clip_number)),
    "static scale, clip after dividing": _static_clip(False),
    "micro-batches, one unscale and one clip": _microbatches(False, False),
    "two optimizers, one update": _update_between(False),
    "gradient penalty on unscaled gradients": _penalty(True),
    "scaler calibrates from a large scale": _replaced(False),
    "positive factor": _negative(2.0),
}
