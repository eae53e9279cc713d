"""Recurrent networks: torch's own LSTM and GRU, and a cell unrolled in Python."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bench.models.data import text
from bench.models.plan import Plan, Step, Trainer, healthy


class Recurrent(nn.Module):
    """Embedding, a recurrent layer, logits of the next byte."""

    def __init__(self, kind: type[nn.RNNBase], width: int = 32) -> None:
        super().__init__()
        self.embed = nn.Embedding(256, width)
        self.rnn = kind(width, width, batch_first=True)
        self.head = nn.Linear(width, 256)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.rnn(self.embed(tokens))[0])


class Unrolled(nn.Module):
    """An LSTM cell in a Python loop."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.embed = nn.Embedding(256, width)
        self.cell = nn.LSTMCell(width, width)
        self.head = nn.Linear(width, 256)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        state, out = None, []
        for t in range(tokens.shape[1]):
            state = self.cell(x[:, t], state)
            out.append(state[0])
        return self.head(torch.stack(out, 1))


def _train(plan: Plan, model: nn.Module) -> Step:
    model = plan.model(model)
    trainer = Trainer(plan, model)

    def loss(i: int) -> Tensor:
        tokens, targets = text(i, length=16)
        return F.cross_entropy(model(tokens).flatten(0, 1).float(), targets.flatten())

    return lambda i: trainer.step(lambda: loss(i))


@healthy("lstm")
def lstm(plan: Plan) -> Step:
    """nn.LSTM on bytes. Under fp16 autocast torch itself raises on the CPU."""
    return _train(plan, Recurrent(nn.LSTM))


@healthy("gru")
def gru(plan: Plan) -> Step:
    """nn.GRU on bytes."""
    return _train(plan, Recurrent(nn.GRU))


@healthy("lstm-unrolled")
def lstm_unrolled(plan: Plan) -> Step:
    """nn.LSTMCell in a loop over 16 bytes."""
    return _train(plan, Unrolled())
