"""Byte-level language models written here: with fused attention, separate biased q/k/v, 24 layers, a router, checkpointing."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from bench.models.data import text
from bench.models.plan import Plan, Step, Trainer, adamw, healthy

BYTES, CONTEXT = 256, 32


class FusedAttention(nn.Module):
    """Causal self-attention by ``scaled_dot_product_attention``."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        b, t, w = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, w // self.heads).permute(2, 0, 3, 1, 4)
        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, w))


class PlainAttention(nn.Module):
    """Causal self-attention by hand: separate biased projections, ``-inf`` mask, dropout. The true gradient of the key bias is 0."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        b, t, w = x.shape
        q, k, v = (p(x).view(b, t, self.heads, w // self.heads).transpose(1, 2) for p in (self.q, self.k, self.v))
        scores = q @ k.transpose(-1, -2) / math.sqrt(w // self.heads)
        scores = scores.masked_fill(torch.ones(t, t, dtype=torch.bool).triu(1), -math.inf)
        weights = F.dropout(scores.softmax(-1), 0.1, self.training)
        return self.out((weights.to(v.dtype) @ v).transpose(1, 2).reshape(b, t, w))


class FeedForward(nn.Sequential):
    """Two layers and a GELU."""

    def __init__(self, width: int) -> None:
        super().__init__(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))


class Experts(nn.Module):
    """A router that sends each token to the best two of four experts."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, 4, bias=False)
        self.experts = nn.ModuleList(FeedForward(width) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        flat = x.reshape(-1, x.shape[-1])
        weight, chosen = self.router(flat).float().softmax(-1).topk(2, -1)
        weight = weight / weight.sum(-1, keepdim=True)
        out = torch.zeros_like(flat)
        for i, expert in enumerate(self.experts):
            token, place = (chosen == i).nonzero(as_tuple=True)
            if len(token):
                out = out.index_add(0, token, (expert(flat[token]) * weight[token, place, None]).to(out.dtype))
        return out.view_as(x)


class Block(nn.Module):
    """Attention and a feed-forward part, each on a normalised copy of the residual stream."""

    def __init__(self, width: int, attention: nn.Module, feed_forward: nn.Module) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(width), attention
        self.norm2, self.feed_forward = nn.LayerNorm(width), feed_forward

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.feed_forward(self.norm2(x))


class GPT(nn.Module):
    """Bytes in, logits of the next byte out. The head shares its weight with the token embedding."""

    def __init__(
        self,
        width: int = 64,
        depth: int = 2,
        heads: int = 4,
        attention: Callable[[int, int], nn.Module] = FusedAttention,
        feed_forward: Callable[[int], nn.Module] = FeedForward,
        recompute: bool = False,
    ) -> None:
        super().__init__()
        self.recompute = recompute
        self.token, self.position = nn.Embedding(BYTES, width), nn.Embedding(CONTEXT, width)
        self.blocks = nn.ModuleList(Block(width, attention(width, heads), feed_forward(width)) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, BYTES, bias=False)
        self.head.weight = self.token.weight
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.token(tokens) + self.position.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.recompute else block(x)
        return self.head(self.norm(x))


def next_byte_loss(model: nn.Module, step: int) -> Tensor:
    """Mean cross entropy of the next byte, in fp32."""
    tokens, targets = text(step)
    return F.cross_entropy(model(tokens).flatten(0, 1).float(), targets.flatten())


def train_gpt(plan: Plan, lr: float = 1e-3, **shape: object) -> Step:
    """The step of a GPT trained with AdamW and clipping."""
    model = plan.model(GPT(**shape))  # type: ignore[arg-type]
    trainer = Trainer(plan, model, adamw(lr))
    return lambda i: trainer.step(lambda: next_byte_loss(model, i))


@healthy("gpt-bytes")
def gpt_bytes(plan: Plan) -> Step:
    """Byte-level GPT, fused attention, tied head, AdamW, clipping."""
    return train_gpt(plan)


@healthy("gpt-key-bias", steps=4)
def gpt_key_bias(plan: Plan) -> Step:
    """Separate q/k/v with biases and dropout under Adam: the key bias gets full-size steps of pure noise."""
    model = plan.model(GPT(attention=PlainAttention))
    trainer = Trainer(plan, model, lambda params: torch.optim.Adam(params, lr=1e-3), clip=None)
    return lambda i: trainer.step(lambda: next_byte_loss(model, i))


@healthy("gpt-24-layers")
def gpt_24_layers(plan: Plan) -> Step:
    """24 layers, hand-written attention."""
    return train_gpt(plan, width=32, depth=24, heads=2, attention=PlainAttention)


@healthy("gpt-experts")
def gpt_experts(plan: Plan) -> Step:
    """Mixture of experts, top 2 of 4 by an fp32 router softmax."""
    return train_gpt(plan, feed_forward=Experts)


@healthy("gpt-checkpointing")
def gpt_checkpointing(plan: Plan) -> Step:
    """Activation checkpointing with dropout: the forward pass of each block runs again in backward."""
    return train_gpt(plan, attention=PlainAttention, recompute=True)


@healthy("gpt-warm-up", steps=4)
def gpt_warm_up(plan: Plan) -> Step:
    """Linear warm-up that starts at a learning rate of exactly 0."""
    model = plan.model(GPT())
    trainer = Trainer(plan, model)
    schedule = torch.optim.lr_scheduler.LambdaLR(trainer.optimizer, lambda step: step / 100)

    def step(i: int) -> Tensor:
        value = trainer.step(lambda: next_byte_loss(model, i))
        schedule.step()
        return value

    return step


@healthy("transformer-encoder")
def transformer_encoder(plan: Plan) -> Step:
    """torch.nn.TransformerEncoder with dropout and a padding mask, in training mode."""
    width = 64
    embed = nn.Embedding(BYTES, width)
    layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.1, batch_first=True)
    model = plan.model(nn.ModuleDict({"embed": embed, "encoder": nn.TransformerEncoder(layer, 2), "head": nn.Linear(width, BYTES)}))
    trainer = Trainer(plan, model)

    def loss(i: int) -> Tensor:
        tokens, targets = text(i)
        padding = torch.zeros_like(tokens, dtype=torch.bool)
        padding[:, 28:] = True
        hidden = model["encoder"](model["embed"](tokens), src_key_padding_mask=padding)  # type: ignore[index]
        return F.cross_entropy(model["head"](hidden)[:, :28].flatten(0, 1).float(), targets[:, :28].flatten())  # type: ignore[index]

    return lambda i: trainer.step(lambda: loss(i))
