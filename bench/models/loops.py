"""Healthy training loops of many kinds: two optimizers, EMA, hand-written scaling, accumulation, ratios near 1, differences near 0."""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bench.models.data import digit_images, digits
from bench.models.language import GPT, next_byte_loss
from bench.models.plan import PLANS, Plan, Step, Trainer, adamw, healthy
from bench.models.vision import classify, mlp

FP16_AMP = (PLANS[0],)
AMP = (PLANS[0], PLANS[2])


@healthy("gan", steps=3)
def gan(plan: Plan) -> Step:
    """Generator and discriminator with their own optimizers; the generator's backward also fills the discriminator's gradients."""
    generator, critic = plan.model(mlp(64, 16)), plan.model(mlp(1, 64))
    make, judge = Trainer(plan, generator), Trainer(plan, critic)

    def step(i: int) -> Tensor:
        real, _ = digits(i, 32)
        noise = plan.data(torch.randn(32, 16))

        def critic_loss() -> Tensor:
            true, false = critic(plan.data(real)).float(), critic(generator(noise).detach()).float()
            return F.softplus(-true).mean() + F.softplus(false).mean()

        judge.step(critic_loss)
        return make.step(lambda: F.softplus(-critic(generator(noise)).float()).mean())

    return step


@healthy("vae", steps=3)
def vae(plan: Plan) -> Step:
    """Variational auto-encoder on digits."""
    model = plan.model(nn.ModuleDict({"encode": mlp(16, 64), "decode": mlp(64, 8)}))
    trainer = Trainer(plan, model)

    def loss(i: int) -> Tensor:
        images, _ = digits(i)
        mean, log_variance = model["encode"](plan.data(images)).float().chunk(2, -1)  # type: ignore[index]
        code = mean + torch.exp(0.5 * log_variance) * torch.randn_like(mean)
        back = model["decode"](plan.data(code))  # type: ignore[index]
        divergence = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum(-1).mean()
        return F.binary_cross_entropy_with_logits(back.float(), images, reduction="sum") / len(images) + divergence

    return lambda i: trainer.step(lambda: loss(i))


@healthy("contrastive", steps=3)
def contrastive(plan: Plan) -> Step:
    """CLIP-like: two towers, normalised features, a learned temperature, symmetric cross entropy."""

    class Towers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left, self.right = mlp(32, 32), mlp(32, 32)
            self.log_scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))

        def forward(self, x: Tensor) -> Tensor:
            left, right = F.normalize(self.left(x[:, :32]), dim=-1), F.normalize(self.right(x[:, 32:]), dim=-1)
            return self.log_scale.exp() * left @ right.T

    model = plan.model(Towers())
    trainer = Trainer(plan, model)

    def loss(i: int) -> Tensor:
        logits = model(plan.data(digits(i, 32)[0])).float()
        target = torch.arange(32)
        return (F.cross_entropy(logits, target) + F.cross_entropy(logits.T, target)) / 2

    return lambda i: trainer.step(lambda: loss(i))


@healthy("ppo", steps=4)
def ppo(plan: Plan) -> Step:
    """PPO: clipped ratio to the policy of the last round, normalised advantages, entropy bonus, a KL estimate that is 0 at first."""
    model = plan.model(nn.ModuleDict({"policy": mlp(10), "value": mlp(1)}))
    trainer = Trainer(plan, model)
    memory: dict[str, Tensor] = {}

    def log_policy(states: Tensor) -> Tensor:
        return F.log_softmax(model["policy"](plan.data(states)).float(), -1)  # type: ignore[index]

    def loss() -> Tensor:
        new = log_policy(memory["states"])
        chosen = new.gather(-1, memory["action"])[:, 0]
        ratio = (chosen - memory["old"]).exp()
        gain = torch.minimum(ratio * memory["advantage"], ratio.clamp(0.8, 1.2) * memory["advantage"]).mean()
        value = model["value"](plan.data(memory["states"]))[:, 0].float()  # type: ignore[index]
        entropy = -(new.exp() * new).sum(-1).mean()
        memory["kl"] = (memory["old"] - chosen.detach()).mean()
        return -gain + 0.5 * F.mse_loss(value, memory["reward"]) - 0.01 * entropy

    def step(i: int) -> Tensor:
        if i % 2 == 0:
            memory["states"], labels = digits(i, 64)
            with torch.no_grad(), plan.autocast():
                policy = log_policy(memory["states"])
                value = model["value"](plan.data(memory["states"]))[:, 0].float()  # type: ignore[index]
            memory["action"] = torch.multinomial(policy.exp(), 1)
            memory["old"] = policy.gather(-1, memory["action"])[:, 0]
            memory["reward"] = (memory["action"][:, 0] == labels).float()
            advantage = memory["reward"] - value
            memory["advantage"] = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        result = trainer.step(loss)
        if memory["kl"].item() > 0.1:
            print("stop early")
        return result

    return step


@healthy("diffusion", steps=3)
def diffusion(plan: Plan) -> Step:
    """Denoiser: predicts the noise that a cosine schedule mixed into digits."""
    model = plan.model(mlp(64, 64 + 16, 96))
    trainer = Trainer(plan, model)
    signal = torch.cos(torch.linspace(0.01, 1.56, 100)).square()

    def loss(i: int) -> Tensor:
        images, _ = digits(i)
        time, noise = torch.randint(0, 100, (64,)), torch.randn(64, 64)
        noisy = signal[time, None].sqrt() * (2 * images - 1) + (1 - signal[time, None]).sqrt() * noise
        angle = time[:, None] * torch.exp(-torch.arange(8) * math.log(1e4) / 8)
        features = torch.cat([noisy, angle.sin(), angle.cos()], -1)
        return F.mse_loss(model(plan.data(features)).float(), noise)

    return lambda i: trainer.step(lambda: loss(i))


@healthy("ema-fp32", steps=10)
def ema_fp32(plan: Plan) -> Step:
    """An fp32 moving average of the weights, decay 0.999."""
    model = plan.model(mlp())
    trainer = Trainer(plan, model)
    average = [p.detach().float().clone() for p in model.parameters()]

    def step(i: int) -> Tensor:
        value = trainer.step(lambda: classify(plan, model, *digits(i, 32)))
        with torch.no_grad():
            for kept, p in zip(average, model.parameters(), strict=True):
                kept.lerp_(p.float(), 0.001)
        return value

    return step


@healthy("hand-written-scaler", steps=8, plans=FP16_AMP)
def hand_written_scaler(plan: Plan) -> Step:
    """Dynamic loss scaling by hand, from a scale that is too large: the first steps are skipped, as intended."""
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    state = {"scale": 2.0**22}

    def step(i: int) -> Tensor:
        optimizer.zero_grad()
        with plan.autocast():
            value = classify(plan, model, *digits(i, 32))
        (value * state["scale"]).backward()
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        if all(bool(torch.isfinite(g).all()) for g in grads):
            for g in grads:
                g.div_(state["scale"])
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        else:
            state["scale"] /= 2
        return value.detach()

    return step


@healthy("scaler-calibrates", steps=8, plans=FP16_AMP)
def scaler_calibrates(plan: Plan) -> Step:
    """GradScaler from 2^22: it skips a few steps while it finds its scale."""
    model = mlp()
    trainer = Trainer(plan, model, init_scale=2.0**22)
    return lambda i: trainer.step(lambda: classify(plan, model, *digits(i, 32)))


@healthy("accumulation-8")
def accumulation(plan: Plan) -> Step:
    """Eight micro-batches a step, each loss divided by 8."""
    model = plan.model(mlp())
    trainer = Trainer(plan, model)
    count = iter(range(10**6))
    return lambda i: trainer.step(lambda: classify(plan, model, *digits(next(count), 16)), micro_batches=8)


@healthy("accuracy-metric", steps=3)
def accuracy_metric(plan: Plan) -> Step:
    """Training with a running accuracy and a running loss, read by item() each step."""
    model = plan.model(mlp())
    trainer = Trainer(plan, model)
    seen = {"right": 0.0, "loss": 0.0}

    def loss(i: int) -> Tensor:
        images, labels = digits(i)
        logits = model(plan.data(images))
        seen["right"] += (logits.argmax(-1) == labels).float().mean().item()
        return F.cross_entropy(logits.float(), labels)

    def step(i: int) -> Tensor:
        value = trainer.step(lambda: loss(i))
        seen["loss"] += value.item()
        return value

    return step


@healthy("distillation", steps=3)
def distillation(plan: Plan) -> Step:
    """A student that starts as a copy of its teacher: the KL term is exactly 0 at step 0 and tiny afterwards."""
    teacher = plan.model(mlp())
    student = plan.model(copy.deepcopy(teacher))
    trainer = Trainer(plan, student)

    def loss(i: int) -> Tensor:
        images, labels = digits(i)
        with torch.no_grad():
            target = F.log_softmax(teacher(plan.data(images)).float(), -1)
        logits = student(plan.data(images)).float()
        away = F.kl_div(F.log_softmax(logits, -1), target, log_target=True, reduction="batchmean")
        away.item()
        return F.cross_entropy(logits, labels) + 0.1 * away

    return lambda i: trainer.step(lambda: loss(i))


@healthy("kl-only", steps=3)
def kl_only(plan: Plan) -> Step:
    """Nothing but the KL to a frozen copy: loss and gradients are 0 at step 0, and weight decay alone moves the weights."""
    teacher = plan.model(mlp())
    student = plan.model(copy.deepcopy(teacher))
    trainer = Trainer(plan, student, clip=None)

    def loss(i: int) -> Tensor:
        images, _ = digits(i)
        with torch.no_grad():
            target = F.log_softmax(teacher(plan.data(images)).float(), -1)
        return F.kl_div(F.log_softmax(student(plan.data(images)).float(), -1), target, log_target=True, reduction="batchmean")

    return lambda i: trainer.step(lambda: loss(i))


@healthy("convergence", steps=3)
def convergence(plan: Plan) -> Step:
    """A network that has learnt its batch by heart: losses and gradients are tiny, and mostly rounding noise."""
    model = mlp()
    images, labels = digits(0, 32)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(400):
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()
    model = plan.model(model)
    trainer = Trainer(plan, model, adamw(1e-4))
    return lambda i: trainer.step(lambda: classify(plan, model, images, labels))


@healthy("trained-minus-initial", steps=4)
def trained_minus_initial(plan: Plan) -> Step:
    """The distance that the weights have moved: a small difference of nearly equal numbers, kept and read."""
    model = plan.model(mlp())
    trainer = Trainer(plan, model)
    initial = [p.detach().clone() for p in model.parameters()]
    moved: list[Tensor] = []

    def step(i: int) -> Tensor:
        value = trainer.step(lambda: classify(plan, model, *digits(i)))
        moved[:] = [p.detach() - start for p, start in zip(model.parameters(), initial, strict=True)]
        sum(float(m.float().norm()) for m in moved)
        return value

    return step


@healthy("frozen-backbone", steps=2)
def frozen_backbone(plan: Plan) -> Step:
    """Only a small head is trained; the rest is frozen, and one layer is never used."""
    model = GPT()
    model.unused = nn.Linear(64, 64)  # type: ignore[assignment]
    for name, p in model.named_parameters():
        p.requires_grad_(name.startswith(("norm", "unused")))
    model = plan.model(model)  # type: ignore[assignment]
    trainer = Trainer(plan, model)
    return lambda i: trainer.step(lambda: next_byte_loss(model, i))


@healthy("conv-autoencoder", steps=2, plans=AMP)
def conv_autoencoder(plan: Plan) -> Step:
    """A convolutional auto-encoder with transposed convolutions and group normalisation, SGD."""
    encode = (nn.Conv2d(1, 8, 3, 2, 1), nn.GroupNorm(2, 8), nn.SiLU())
    model = nn.Sequential(*encode, nn.ConvTranspose2d(8, 8, 4, 2, 1), nn.SiLU(), nn.Conv2d(8, 1, 3, padding=1))
    trainer = Trainer(plan, model, lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9), clip=None)

    def loss(i: int) -> Tensor:
        images, _ = digit_images(i, 16)
        return F.mse_loss(model(images).float(), images)

    return lambda i: trainer.step(lambda: loss(i))
