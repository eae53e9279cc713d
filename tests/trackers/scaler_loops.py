"""Training loops whose loss scale goes wrong, with ``GradScaler`` and by hand, beside the same loops done right."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from .loops import Loop


def _finite(loop: Loop) -> bool:
    return all(bool(torch.isfinite(p.grad).all()) for p in loop.params)


def scaler_loop(steps: int, prepare: Callable[[Loop], Any] = lambda loop: None, **scaler: Any) -> Callable[[], None]:
    """``steps`` iterations under a GradScaler made with ``scaler``; ``prepare`` may change the loop before them."""

    def run() -> None:
        loop = Loop(lr=1e-3)
        loop.scaler = torch.amp.GradScaler("cpu", **scaler)
        prepare(loop)
        for _ in range(steps):
            loop.opt.zero_grad()
            loop.scaler.scale(loop.loss()).backward()
            loop.scaler.step(loop.opt)
            loop.scaler.update()

    return run


def hand_loop(
    scales: Callable[[float, bool], float],
    steps: int,
    start: float,
    prepare: Callable[[Loop], Any] = lambda loop: None,
    tensor: bool = False,
) -> Callable[[], None]:
    """Scaling by hand: ``scales`` gives the next scale from the last and from whether the gradients were finite."""

    def run() -> None:
        loop, scale = Loop(lr=1e-3), start
        prepare(loop)
        for _ in range(steps):
            loop.opt.zero_grad()
            loss = loop.loss()
            (loss * torch.tensor(scale) if tensor else loss * scale).backward()
            fine = _finite(loop)
            if fine:
                for p in loop.params:
                    p.grad.div_(scale)
                loop.opt.step()
            scale = scales(scale, fine)

    return run


def _spoil_weights(loop: Loop) -> None:
    with torch.no_grad():
        loop.params[0][0, 0] = float("nan")


def _spoil_batches(which: set[int]) -> Callable[[Loop], None]:
    """Some batches hold a NaN."""

    def prepare(loop: Loop) -> None:
        original, counter = loop.loss, iter(range(10_000))

        def loss(part: slice = slice(None)) -> torch.Tensor:
            whole = original(part)
            return whole * float("nan") if next(counter) in which else whole

        loop.loss = loss  # type: ignore[method-assign]

    return prepare


def _without_gradients(loop: Loop) -> None:
    original = loop.loss
    loop.loss = lambda part=slice(None): original(part) * 0.0  # type: ignore[method-assign]


def _with_a_past(steps: int) -> Callable[[Loop], None]:
    """The optimizer comes from a checkpoint after ``steps`` steps; the scaler is new."""

    def prepare(loop: Loop) -> None:
        loop.opt = torch.optim.Adam(loop.params, lr=1e-4)
        state = loop.opt.state_dict()
        state["state"] = {
            i: {"step": torch.tensor(float(steps)), "exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.ones_like(p)}
            for i, p in enumerate(loop.params)
        }
        loop.opt.load_state_dict(state)

    return prepare


def _with_its_scaler(loop: Loop) -> None:
    _with_a_past(5000)(loop)
    old = torch.amp.GradScaler("cpu", init_scale=2.0**12)
    old.scale(torch.ones(()))
    loop.scaler.load_state_dict(old.state_dict())


def _grown_by_hand() -> None:
    """The scale is set by hand, upwards, although the step was skipped."""
    loop = Loop(lr=1e-3)
    loop.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20)
    for _ in range(4):
        loop.opt.zero_grad()
        loop.scaler.scale(loop.loss()).backward()
        loop.scaler.step(loop.opt)
        loop.scaler.update(loop.scaler.get_scale() * 2.0)


def _two_optimizers(check: Callable[[bool, bool], Iterator[bool]], scale: float) -> Callable[[], None]:
    """One static scale for two networks, of which the second overflows at 2^10; ``check`` says whose step is taken."""

    def run() -> None:
        one, two = Loop(lr=1e-3), Loop(lr=1e-3)
        two.y = two.y * 40.0
        for _ in range(6):
            for loop in (one, two):
                loop.opt.zero_grad()
            (one.loss() * scale + two.loss() * scale).backward()
            for loop, step in zip((one, two), check(_finite(one), _finite(two)), strict=True):
                if step:
                    for p in loop.params:
                        p.grad.div_(scale)
                    loop.opt.step()

    return run


def _two_optimizers_one_scaler() -> None:
    """The second network overflows at first; the shared scale falls, and only the second loses steps."""
    one, two = Loop(lr=1e-3), Loop(lr=1e-6)
    two.y = two.y * 500.0
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**14)
    for _ in range(12):
        for loop in (one, two):
            loop.opt.zero_grad()
        scaler.scale(one.loss() + two.loss()).backward()
        scaler.step(one.opt)
        scaler.step(two.opt)
        scaler.update()


def _wide_gradients(factor: float) -> Callable[[], None]:
    """Two layers without a norm between them, whose gradients are ``factor`` apart, and two losses."""

    def run() -> None:
        torch.manual_seed(0)
        a, b = nn.Linear(16, 16), nn.Linear(16, 16)
        x, scaler = torch.randn(32, 16), torch.amp.GradScaler("cpu", init_scale=2.0**10)
        opt = torch.optim.SGD([*a.parameters(), *b.parameters()], lr=0.0)
        for _ in range(3):
            opt.zero_grad()
            with torch.amp.autocast("cpu", dtype=torch.float16):
                loss = a(x).float().square().mean() + b(x).float().square().mean() * factor
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()

    return run


class DoublesEvery:
    """Doubles after so many clean steps, halves on overflow: what GradScaler does."""

    def __init__(self, interval: int) -> None:
        self.interval = interval
        self.clean = 0

    def __call__(self, scale: float, fine: bool) -> float:
        self.clean = self.clean + 1 if fine else 0
        if not fine:
            return scale / 2.0
        return scale * 2.0 if self.clean % self.interval == 0 else scale


def small_loss(scale: float) -> Callable[[], None]:
    """A loss of 2^-24 times the usual, multiplied by ``scale``: its gradients vanish in fp16 unless that is large."""

    def run() -> None:
        loop = Loop(lr=1e-3)
        for _ in range(3):
            loop.opt.zero_grad()
            (loop.loss() * 2.0**-24 * scale).backward()
            for p in loop.params:
                p.grad.div_(scale)
            loop.opt.step()

    return run


def equal_distributions() -> None:
    """The divergence of a network from its copy is zero, and so is its gradient, up to rounding; then from another network."""
    loop, teacher = Loop(lr=1e-3), Loop()
    for _ in range(2):
        with torch.no_grad(), torch.amp.autocast("cpu", dtype=torch.float16):
            goal = torch.softmax(teacher.net(loop.x).float(), -1)
        loop.opt.zero_grad()
        with torch.amp.autocast("cpu", dtype=torch.float16):
            out = loop.net(loop.x)
        loss = nn.functional.kl_div(torch.log_softmax(out.float(), -1), goal, reduction="batchmean")
        loop.scaler.scale(loss).backward()
        loop.scaler.step(loop.opt)
        loop.scaler.update()
        teacher.x = loop.x = loop.x.flip(1) * 2.0
        with torch.no_grad():
            teacher.params[2].mul_(-1.0)


def halve_and_double(scale: float, fine: bool) -> float:
    return scale * 2.0 if fine else scale / 2.0


def only_back_off(scale: float, fine: bool) -> float:
    return scale if fine else scale / 2.0


BROKEN = {
    "NaN weights": (scaler_loop(3, _spoil_weights), "skips every step"),
    "NaN in every batch": (scaler_loop(3, _spoil_batches(set(range(9)))), "skips every step"),
    "NaN weights, scaled by hand": (hand_loop(only_back_off, 4, 2.0**12, _spoil_weights), "skips every step"),
    "NaN weights, static scale by hand": (hand_loop(lambda scale, fine: scale, 4, 2.0**12, _spoil_weights), "skips every step"),
    "falls below 1 by hand": (hand_loop(only_back_off, 16, 2.0**12, _spoil_weights), "without ever finding one"),
    "update(new_scale) raises it on overflow": (_grown_by_hand, "grow without end"),
    "grown on overflow by hand": (hand_loop(lambda scale, fine: scale * 2.0, 6, 2.0**20), "grow without end"),
    "grows past fp32 by hand": (
        hand_loop(lambda scale, fine: scale * 4.0, 4, 2.0**123, _without_gradients),
        "grow without end",
    ),
    "scaler not resumed, many skips": (scaler_loop(30, _with_a_past(5000), init_scale=2.0**32), "optimizer was resumed"),
}
"""Program and what the finding says."""

RISKY = {
    "scaler not resumed, few skips": (scaler_loop(12, _with_a_past(5000), init_scale=2.0**22), "optimizer was resumed"),
    "grows after every step": (scaler_loop(16, init_scale=2.0**15, growth_interval=1), "keeps overflowing"),
    "grows after every step by hand": (hand_loop(halve_and_double, 12, 2.0**12), "keeps overflowing"),
    "gradients wider than fp16": (_wide_gradients(2.0**45), "No loss scale fits"),
}

SOUND = {
    "from 65536": scaler_loop(6),
    "calibrates from 2^22": scaler_loop(12, init_scale=2.0**22),
    "two steps, both calibration": scaler_loop(2, init_scale=2.0**30),
    "one bad batch": scaler_loop(6, _spoil_batches({3})),
    "two bad batches in a row after a step": scaler_loop(6, _spoil_batches({3, 4})),
    "grows rarely": scaler_loop(30, init_scale=2.0**15, growth_interval=12),
    "resumed with its scaler": scaler_loop(6, _with_its_scaler),
    "optimizer with a past, nothing skipped": scaler_loop(6, _with_a_past(5000), init_scale=2.0**12),
    "dynamic by hand": hand_loop(DoublesEvery(12), 30, 2.0**16),
    "dynamic by hand, a tensor": hand_loop(DoublesEvery(12), 30, 2.0**16, tensor=True),
    "back-off by hand from 2^22": hand_loop(only_back_off, 12, 2.0**22),
    "static by hand": hand_loop(lambda scale, fine: scale, 6, 2.0**12),
    "two optimizers, one scaler": _two_optimizers_one_scaler,
    "two optimizers by hand, one check for both": _two_optimizers(lambda one, two: iter((one and two, one and two)), 2.0**3),
    "gradients of one size": _wide_gradients(1.0),
}

LEAKING = _two_optimizers(lambda one, two: iter((one, one)), 2.0**10)
"""The finite check looks at the gradients of the first optimizer only, and the second steps on Inf."""
