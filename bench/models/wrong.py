"""Trainings that are wrong in one place, each with a measure of the fault that owes nothing to the audit.

A ``Wrong`` builds the step function of an ordinary training. Given a ``Probe`` the step also compares what it did with the same thing
done right in fp32 or fp64, and notes the *surviving share*: 1 when everything that should have happened did, 0 when nothing did.
The numbers show the fault at the first step where less than half survives.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from bench.models.data import digit_images, text
from bench.models.language import GPT
from bench.models.plan import PLANS, Step, Trainer, adamw
from bench.models.vision import cnn

BF16_PURE = PLANS[3]
HALF = 0.5
"""Surviving share below which the numbers show the fault."""


@dataclass
class Probe:
    """What each step kept of what it should have done."""

    surviving: list[float] = field(default_factory=list)

    def note(self, share: float) -> None:
        """The surviving share of this step."""
        self.surviving.append(share)

    @property
    def shows(self) -> int | None:
        """The first step at which less than half survives."""
        return next((i for i, share in enumerate(self.surviving) if share < HALF), None)


@dataclass(frozen=True)
class Wrong:
    """A wrong training and what a report must say of it: one of ``codes``, at an op whose name ends in one of ``ops``."""

    name: str
    what: str
    build: Callable[[Probe | None], Step]
    codes: frozenset[str]
    kind: str
    ops: tuple[str, ...]


WRONG: dict[str, Wrong] = {}


def wrong(name: str, *, codes: Iterable[str], kind: str, ops: Iterable[str]) -> Callable[[Callable[[Probe | None], Step]], Wrong]:
    """Register a builder under ``name``; the first line of its docstring says what is wrong."""

    def register(build: Callable[[Probe | None], Step]) -> Wrong:
        what = (build.__doc__ or "").strip().split("\n")[0]
        WRONG[name] = Wrong(name, what, build, frozenset(codes), kind, tuple(ops))
        return WRONG[name]

    return register


def projection(found: Iterable[Tensor], wanted: Iterable[Tensor]) -> float:
    """<found, wanted> / <wanted, wanted> over lists of tensors, in fp64; 1 where nothing was wanted."""
    pairs = [(a.double(), b.double()) for a, b in zip(found, wanted, strict=True)]
    size = sum(float(b.square().sum()) for _, b in pairs)
    return sum(float((a * b).sum()) for a, b in pairs) / size if size > 0 else 1.0


def mean_loss(model: nn.Module, step: int, batch: int = 4) -> Tensor:
    """Mean cross entropy of the next byte over ``batch`` pieces of 32 bytes, in fp32."""
    tokens, targets = text(step, batch)
    return F.cross_entropy(model(tokens).flatten(0, 1).float(), targets.flatten())


@wrong("fp16-without-scaler", codes={"PL201"}, kind="underflow", ops=("backward", "mm", "bmm", "mul", "div", "_to_copy", "sum"))
def fp16_without_scaler(probe: Probe | None) -> Step:
    """fp16 autocast without a GradScaler; one rank's part of a loss that is the mean over a batch of half a million bytes.

    Half a million tokens are the batch of the smallest GPT-3 (Brown et al. 2020, table 2.1); each rank adds up its tokens and divides by
    those of all ranks. The number: the worst projection of a parameter's gradient on the fp32 gradient of the same loss at the same
    weights, over the parameters that hold at least 1e-6 of the energy, a thousandth of the norm.
    """
    share = 128 / 2**19  # of the batch: 4 pieces of 32 bytes
    model = GPT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step(i: int) -> Tensor:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = mean_loss(model, i) * share
        loss.backward()
        if probe is not None:
            mine = [p.grad for p in model.parameters() if p.grad is not None]
            exact = torch.autograd.grad(mean_loss(model, i) * share, list(model.parameters()))
            energy = sum(float(g.square().sum()) for g in exact)
            large = [(a, b) for a, b in zip(mine, exact, strict=True) if float(b.square().sum()) > 1e-6 * energy]
            probe.note(min(projection([a], [b]) for a, b in large))
        optimizer.step()
        return loss.detach()

    return step


def pure_bf16(probe: Probe | None, rate: Callable[[int], float], *, vectors: bool = True) -> Step:
    """A GPT whose weights, gradients and AdamW are bf16, at learning rate ``rate(step)``. ``vectors``: gains and biases are trained.

    The number: the projection of the step that the weights took on the step of an AdamW in fp64 fed with the same gradients.
    """
    model = GPT().bfloat16()
    for p in model.parameters():
        p.requires_grad_(vectors or p.dim() > 1)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1.0, weight_decay=0.0)
    exact = [p.detach().double().requires_grad_() for p in trained]
    judge = torch.optim.AdamW(exact, lr=1.0, weight_decay=0.0)

    def step(i: int) -> Tensor:
        for group in (*optimizer.param_groups, *judge.param_groups):
            group["lr"] = rate(i)
        optimizer.zero_grad()
        loss = mean_loss(model, i)
        loss.backward()
        if probe is None:
            optimizer.step()
            return loss.detach()
        before = [p.detach().double() for p in trained]
        for e, b, p in zip(exact, before, trained, strict=True):
            e.data.copy_(b)
            e.grad = p.grad.double() if p.grad is not None else None
        judge.step()
        optimizer.step()
        moved = [p.detach().double() - b for p, b in zip(trained, before, strict=True)]
        probe.note(projection(moved, [e.detach() - b for e, b in zip(exact, before, strict=True)]))
        return loss.detach()

    return step


_UPDATE_OPS = ("AdamW", "add_", "addcdiv_", "_foreach_addcdiv_")


@wrong("pure-bf16-small-lr", codes={"PL301"}, kind="swamping", ops=_UPDATE_OPS)
def pure_bf16_small_lr(probe: Probe | None) -> Step:
    """Weights, gradients and AdamW in bf16 at lr 1e-5: the updates are smaller than half the spacing of the weights."""
    return pure_bf16(probe, lambda i: 1e-5)


@wrong("pure-bf16-decayed-lr", codes={"PL301"}, kind="swamping", ops=_UPDATE_OPS)
def pure_bf16_decayed_lr(probe: Probe | None) -> Step:
    """Matrices alone, at a learning rate that is sound for them at first, 1e-3, and falls by a tenth each step."""
    return pure_bf16(probe, lambda i: 1e-3 * 0.9**i, vectors=False)


@wrong("bf16-ema", codes={"PL302"}, kind="swamping", ops=("lerp_", "add_", "mul_"))
def bf16_ema(probe: Probe | None) -> Step:
    """An average of the weights kept in bf16 with decay 0.9999, beside a sound training with fp32 masters.

    The number: the projection of the way the average went on the way that the same updates go in fp64.
    """
    model = BF16_PURE.model(GPT())
    trainer = Trainer(BF16_PURE, model, adamw())
    average = [p.detach().clone() for p in model.parameters()]
    start = [a.double() for a in average]
    exact = [a.clone() for a in start]

    def step(i: int) -> Tensor:
        loss = trainer.step(lambda: mean_loss(model, i))
        with torch.no_grad():
            for kept, p in zip(average, model.parameters(), strict=True):
                kept.mul_(0.9999).add_(p, alpha=1e-4)
            if probe is not None:
                for e, p in zip(exact, model.parameters(), strict=True):
                    e.lerp_(p.double(), 1e-4)
                went = [a.double() - s for a, s in zip(average, start, strict=True)]
                probe.note(projection(went, [e - s for e, s in zip(exact, start, strict=True)]))
        return loss

    return step


@wrong("bf16-ema-late", codes={"PL302"}, kind="swamping", ops=("lerp_", "add_", "mul_"))
def bf16_ema_late(probe: Probe | None) -> Step:
    """The average of torch.optim.swa_utils with decay 0.9999, of bf16 weights with fp32 masters, begun at step 20.

    The number: as for bf16-ema, from step 20.
    """
    model = BF16_PURE.model(GPT())
    trainer = Trainer(BF16_PURE, model, adamw())
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9999))
    kept = list(average.module.parameters())
    start: list[Tensor] = []
    exact: list[Tensor] = []

    def step(i: int) -> Tensor:
        loss = trainer.step(lambda: mean_loss(model, i))
        if i < 20:
            if probe is not None:
                probe.note(1.0)
            return loss
        if not start:
            average.update_parameters(model)  # the first call copies
            start.extend(a.detach().double() for a in kept)
            exact.extend(s.clone() for s in start)
        average.update_parameters(model)
        if probe is not None:
            for e, p in zip(exact, model.parameters(), strict=True):
                e.lerp_(p.detach().double(), 1e-4)
            went = [a.detach().double() - s for a, s in zip(kept, start, strict=True)]
            probe.note(projection(went, [e - s for e, s in zip(exact, start, strict=True)]))
        return loss

    return step


@wrong("clip-before-unscale", codes={"PL402"}, kind="scaler", ops=("clip_grad_norm_",))
def clip_before_unscale(probe: Probe | None) -> Step:
    """fp16 autocast with a GradScaler from 2^16, gradients clipped to norm 1 while they are still scaled.

    The number: the norm that the optimizer uses over the norm it would use if the gradients were unscaled before they are clipped.
    """
    model = cnn()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
    used: list[float] = []
    optimizer.register_step_pre_hook(lambda *_: used.append(_norm(model)) if probe is not None else None)

    def step(i: int) -> Tensor:
        images, labels = digit_images(i)
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = F.cross_entropy(model(images), labels)
        scaler.scale(loss).backward()
        right = min(1.0, _norm(model) / scaler.get_scale()) if probe is not None else 0.0
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        used.clear()
        scaler.step(optimizer)
        scaler.update()
        if probe is not None:
            probe.note(used[0] / right if used and math.isfinite(right) else 1.0)
        return loss.detach()

    return step


def _norm(model: nn.Module) -> float:
    return math.sqrt(sum(float(p.grad.double().square().sum()) for p in model.parameters() if p.grad is not None))
