"""Small training programs, each of which can run as it is (``wide=False``) or as the same program in fp64 (``wide=True``).

In fp64 the weights start from the same rounded values, autocast is off, casts to half do nothing, and the same random numbers are drawn
(dropout on the CPU draws its mask independently of the dtype). A program is first built, then gone through; it returns all that it
leaves behind, by name.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

Tensor = torch.Tensor
STEPS = 2


class Setting:
    """How a program runs: the dtype of its low precision, and whether it is the fp64 one."""

    def __init__(self, wide: bool, half: torch.dtype) -> None:
        self.wide = wide
        self.half = half

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext() if self.wide else torch.autocast("cpu", dtype=self.half)

    def master(self, value: Any) -> Any:
        """fp32 weights or data; fp64 in the wide program."""
        return value.double() if self.wide else value

    def pure(self, value: Any) -> Any:
        """Half weights or data; their values in fp64 in the wide program."""
        value = value.to(self.half)
        return value.double() if self.wide else value

    def narrow(self, value: Tensor) -> Tensor:
        """A cast to half inside the program; none in the wide one."""
        return value if self.wide else value.to(self.half)


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, fused: bool) -> None:
        super().__init__()
        self.heads, self.fused = heads, fused
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        b, t, c = x.shape
        q, k, v = (part.view(b, t, self.heads, c // self.heads).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        if self.fused:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = q @ k.transpose(-2, -1) / (c // self.heads) ** 0.5
            scores = scores.masked_fill(torch.ones(t, t, dtype=torch.bool).triu(1), float("-inf"))
            y = scores.softmax(-1) @ v
        return self.out(y.transpose(1, 2).reshape(b, t, c))


class Block(nn.Module):
    def __init__(self, width: int, fused: bool) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, 2, fused)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width), nn.Dropout(0.1))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Transformer(nn.Module):
    def __init__(self, *, fused: bool = True, tied: bool = False, checkpointed: bool | None = None) -> None:
        super().__init__()
        width, vocabulary = 16, 23
        self.embed, self.positions = nn.Embedding(vocabulary, width), nn.Parameter(torch.randn(12, width) * 0.1)
        self.blocks = nn.ModuleList(Block(width, fused) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        if tied:
            self.head.weight = self.embed.weight
        self.checkpointed = checkpointed

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens) + self.positions[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x) if self.checkpointed is None else checkpoint(block, x, use_reentrant=self.checkpointed)
        return self.head(self.norm(x))


class Lstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(6, 8, num_layers=2, batch_first=True), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x)[0][:, -1])


def _mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 16), nn.SiLU(), nn.Linear(16, 4))


def _cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.AvgPool2d(2), nn.Conv2d(6, 4, 3), nn.BatchNorm2d(4), nn.Tanh(),
        nn.Flatten(), nn.Linear(16, 4),
    )  # fmt: skip


def _left(model: nn.Module, losses: list[Tensor], optimizer: Any = None, scaler: Any = None) -> dict[str, Any]:
    found: dict[str, Any] = {f"loss {i}": loss.detach() for i, loss in enumerate(losses)}
    for name, p in model.named_parameters():
        found[f"weight {name}"] = p
        if p.grad is not None:
            found[f"gradient {name}"] = p.grad
    found.update({f"buffer {name}": b for name, b in model.named_buffers()})
    if optimizer is not None:
        for i, state in enumerate(optimizer.state.values()):
            found.update({f"state {i} {key}": value for key, value in state.items() if isinstance(value, Tensor)})
    if scaler is not None:
        found["scaler"] = sorted(scaler.state_dict().items())
    return found


def _batches(shape: tuple[int, ...], classes: int) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(5)
    return [(torch.randn(8, *shape, generator=generator), torch.randint(0, classes, (8,), generator=generator)) for _ in range(STEPS)]


def _tokens() -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(6)
    return [(torch.randint(0, 23, (3, 12), generator=generator), torch.randint(0, 23, (3, 12), generator=generator)) for _ in range(STEPS)]


def _loss(logits: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, -2), target.flatten())


def _train(
    s: Setting,
    model: nn.Module,
    batches: list[tuple[Tensor, Tensor]],
    make: Callable[[Iterator[nn.Parameter]], Any],
    *,
    mode: str = "autocast",
    scaler: Any = None,
    accumulate: int = 1,
) -> Callable[[], dict[str, Any]]:
    start = s.pure if mode == "pure" else s.master
    model = start(model)
    optimizer = make(model.parameters())
    batches = [(start(x) if x.is_floating_point() else x, target) for x, target in batches]

    def go() -> dict[str, Any]:
        losses = []
        for x, target in batches:
            optimizer.zero_grad(set_to_none=True)
            for _ in range(accumulate):
                with s.autocast() if mode == "autocast" else contextlib.nullcontext():
                    loss = _loss(model(x), target) / accumulate
                (scaler.scale(loss) if scaler is not None else loss).backward()
            losses.append(loss)
            if scaler is not None:
                scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            if scaler is not None:
                scaler.step(optimizer)
                scaler.update()
            else:
                optimizer.step()
        return _left(model, losses, optimizer, scaler)

    return go


def _adamw(**options: Any) -> Callable[[Any], Any]:
    return lambda parameters: torch.optim.AdamW(parameters, lr=1e-3, **options)


def _sgd(parameters: Any) -> Any:
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-4)


def _double_backward(s: Setting) -> Callable[[], dict[str, Any]]:
    model = s.master(nn.Sequential(nn.Linear(12, 16), nn.Softplus(), nn.Linear(16, 1)))
    optimizer = _sgd(model.parameters())
    inputs = [s.master(x).requires_grad_() for x, _ in _batches((12,), 4)]

    def go() -> dict[str, Any]:
        losses = []
        for x in inputs:
            optimizer.zero_grad()
            with s.autocast():
                y = model(x)
            (slope,) = torch.autograd.grad(y.sum(), x, create_graph=True)
            loss = ((slope.norm(dim=1) - 1) ** 2).mean() + y.square().mean()
            loss.backward()
            losses.append(loss)
            optimizer.step()
        return _left(model, losses, optimizer)

    return go


def _master_weights(s: Setting) -> Callable[[], dict[str, Any]]:
    """Hand-written master weights: a half copy computes, fp32 weights are updated, ``copy_`` brings them back."""
    master = s.master(_mlp())
    model = s.pure(_mlp())
    optimizer = _adamw(foreach=True)(master.parameters())
    batches = [(s.pure(x), target) for x, target in _batches((12,), 4)]

    def go() -> dict[str, Any]:
        losses = []
        for x, target in batches:
            with torch.no_grad():
                for p, q in zip(model.parameters(), master.parameters(), strict=True):
                    p.copy_(q)
            loss = _loss(model(x), target)
            loss.backward()
            losses.append(loss)
            for p, q in zip(model.parameters(), master.parameters(), strict=True):
                q.grad, p.grad = p.grad.to(q.dtype), None
            optimizer.step()
        return _left(master, losses, optimizer)

    return go


def _scaler() -> Any:
    return torch.amp.GradScaler("cpu", init_scale=2.0**10)


BF16, FP16 = torch.bfloat16, torch.float16

PROGRAMS: dict[str, tuple[torch.dtype, Callable[[Setting], Callable[[], dict[str, Any]]]]] = {
    "MLP with dropout, bf16 autocast, foreach AdamW": (BF16, lambda s: _train(s, _mlp(), _batches((12,), 4), _adamw(foreach=True))),
    "MLP with dropout, bf16 autocast, fused AdamW": (BF16, lambda s: _train(s, _mlp(), _batches((12,), 4), _adamw(fused=True))),
    "MLP with dropout, bf16 autocast, plain AdamW": (BF16, lambda s: _train(s, _mlp(), _batches((12,), 4), _adamw(foreach=False))),
    "MLP with dropout, bf16 autocast, amsgrad": (BF16, lambda s: _train(s, _mlp(), _batches((12,), 4), _adamw(amsgrad=True))),
    "CNN with BatchNorm, bf16 autocast, SGD momentum": (BF16, lambda s: _train(s, _cnn(), _batches((2, 8, 8), 4), _sgd)),
    "CNN with BatchNorm, pure bf16, SGD momentum": (BF16, lambda s: _train(s, _cnn(), _batches((2, 8, 8), 4), _sgd, mode="pure")),
    "LSTM, pure bf16": (BF16, lambda s: _train(s, Lstm(), _batches((5, 6), 3), _sgd, mode="pure")),
    "LSTM, fp32": (FP16, lambda s: _train(s, Lstm(), _batches((5, 6), 3), _sgd, mode="fp32")),
    "causal transformer, SDPA, bf16 autocast": (BF16, lambda s: _train(s, Transformer(), _tokens(), _adamw())),
    "causal transformer, hand-written attention, bf16 autocast": (BF16, lambda s: _train(s, Transformer(fused=False), _tokens(), _adamw())),
    "causal transformer, SDPA, pure bf16": (BF16, lambda s: _train(s, Transformer(), _tokens(), _adamw(), mode="pure")),
    "causal transformer, hand-written attention, pure fp16": (
        FP16,
        lambda s: _train(s, Transformer(fused=False), _tokens(), _sgd, mode="pure"),
    ),
    "tied weights": (BF16, lambda s: _train(s, Transformer(tied=True), _tokens(), _adamw())),
    "checkpointing, reentrant": (BF16, lambda s: _train(s, Transformer(checkpointed=True), _tokens(), _adamw())),
    "checkpointing, not reentrant": (BF16, lambda s: _train(s, Transformer(checkpointed=False), _tokens(), _adamw())),
    "gradient accumulation": (BF16, lambda s: _train(s, Transformer(), _tokens(), _adamw(), accumulate=3)),
    "fp16 autocast with GradScaler": (FP16, lambda s: _train(s, _mlp(), _batches((12,), 4), _adamw(), scaler=_scaler())),
    "fp16 autocast with GradScaler, transformer": (FP16, lambda s: _train(s, Transformer(), _tokens(), _adamw(), scaler=_scaler())),
    "fp16 autocast with GradScaler, fused AdamW": (
        FP16,
        lambda s: _train(s, _mlp(), _batches((12,), 4), _adamw(fused=True), scaler=_scaler()),
    ),
    "pure fp16": (FP16, lambda s: _train(s, _mlp(), _batches((12,), 4), _sgd, mode="pure")),
    "fp32": (FP16, lambda s: _train(s, Transformer(), _tokens(), _adamw(), mode="fp32")),
    "double backward": (BF16, _double_backward),
    "hand-written master weights": (BF16, _master_weights),
}


def build(name: str, *, wide: bool = False) -> Callable[[], dict[str, Any]]:
    """A program from a fixed seed, ready to go."""
    half, program = PROGRAMS[name]
    torch.manual_seed(0)
    go = program(Setting(wide, half))
    torch.manual_seed(1)
    return go
