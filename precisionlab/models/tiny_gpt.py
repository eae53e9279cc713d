"""A small byte-level GPT, trained on Python source, with a normalisation that fp16 breaks: the subject of ``./dev demo``.

``precisionlab audit tiny_gpt.py --mode pure`` audits the broken form, ``tiny_gpt.py:repaired`` the repaired one. They differ in one
expression, in ``RMSNorm.forward``.

What is wrong in it happens to real models. Large language models keep a few enormous values in their residual stream, at the first
token above all (up to 1000 and more in Llama-2-7B: Sun et al. 2024, "Massive Activations in Large Language Models"). fp16 ends at
65504, so the square of anything above 255 is infinite. A norm that squares in fp16 then divides by infinity: the token becomes exactly
zero in every layer. Nothing is NaN, the loss is finite, training goes on, and the model is another one. That is why the norms of T5 and
Llama compute in fp32. Here one channel of the first position plays that part: it started at 400 and was trained with all the rest
(``train_tiny_gpt.py``).
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from precisionlab import Subject

WIDTH, HEADS, DEPTH, CONTEXT, BYTES = 64, 4, 2, 64, 256
SINK_CHANNEL, SINK_VALUE = 5, 400.0
WEIGHTS = Path(__file__).with_name("tiny_gpt.pt")
TEXT = Path(argparse.__file__)
"""Real text that every Python has."""


class RMSNorm(nn.Module):
    """Root mean square normalisation, written by hand."""

    def __init__(self, wide: bool) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(WIDTH))
        self.wide = wide

    def forward(self, x: Tensor) -> Tensor:
        if self.wide:  # the repair: square and sum in fp32, round once
            return (x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * self.gain
        mean_square = x.square().mean(-1, keepdim=True)  # overflows in fp16 where |x| > 255
        normalised: Tensor = x * torch.rsqrt(mean_square + 1e-6) * self.gain
        return normalised


class Attention(nn.Module):
    """Causal self-attention."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        joined: Tensor = self.out(mixed.transpose(1, 2).reshape(batch, length, WIDTH))
        return joined


class Block(nn.Module):
    """Attention and a feed-forward part, each on a normalised copy of the residual stream."""

    def __init__(self, wide: bool) -> None:
        super().__init__()
        self.norm1, self.attention = RMSNorm(wide), Attention()
        self.norm2 = RMSNorm(wide)
        self.feed_forward = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        x = x + self.feed_forward(self.norm2(x))
        return x


class TinyGPT(nn.Module):
    """Bytes in, logits of the next byte out."""

    def __init__(self, wide: bool = False) -> None:
        super().__init__()
        self.token = nn.Embedding(BYTES, WIDTH)
        self.position = nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.ModuleList(Block(wide) for _ in range(DEPTH))
        self.norm = RMSNorm(wide)
        self.head = nn.Linear(WIDTH, BYTES, bias=False)
        with torch.no_grad():
            self.position.weight[0, SINK_CHANNEL] = SINK_VALUE

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.token(tokens) + self.position.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x))
        return logits


def trained(wide: bool = False) -> TinyGPT:
    """The model with its trained weights; the two forms share them."""
    gpt = TinyGPT(wide)
    gpt.load_state_dict(torch.load(WEIGHTS, weights_only=True))
    return gpt


def batch(step: int, batch_size: int = 4, seq_len: int = CONTEXT) -> tuple[Tensor, Tensor]:
    """Consecutive pieces of the text, and the same moved on by one byte."""
    text = torch.frombuffer(bytearray(TEXT.read_bytes()), dtype=torch.uint8).long()
    starts = (torch.arange(batch_size) + step * batch_size) * seq_len % (len(text) - seq_len - 1)
    pieces = torch.stack([text[start : start + seq_len + 1] for start in starts.tolist()])
    return pieces[:, :-1], pieces[:, 1:]


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Mean cross entropy of the next byte."""
    tokens, targets = batch
    return F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())


model = trained
sizes = {"batch_size": 4, "seq_len": CONTEXT}
repaired = Subject(lambda: trained(wide=True), batch, loss, sizes=sizes)
