"""The adjoint ledger: it closes, its shares are effects, and it says where it cannot answer."""

from __future__ import annotations

import statistics
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

import precisionlab as pl
import precisionlab.observation
from precisionlab.records import LedgerRecord
from precisionlab.trackers.ledger import Ledger, _views

DTYPES = (torch.bfloat16, torch.float16)


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.heads = heads

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.qkv(self.first(x)).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.second(x))))


class Transformer(nn.Module):
    def __init__(self, words: int = 64, width: int = 64, depth: int = 4, length: int = 32) -> None:
        super().__init__()
        self.embedding, self.position = nn.Embedding(words, width), nn.Parameter(0.02 * torch.randn(length, width))
        self.blocks = nn.ModuleList(Block(width, 4) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.embedding(tokens) + self.position
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())


def _run(dtype: torch.dtype, mode: str, seed: int, scale: float = 1.0) -> tuple[LedgerRecord, nn.Module, tuple[Tensor, Tensor]]:
    torch.manual_seed(seed)
    model = Transformer()
    batch = torch.randint(0, 64, (4, 32)), torch.randint(0, 64, (4, 32))
    if mode == "pure":
        model = model.to(dtype)
    with pl.audit(preset="full") as audit:
        with torch.autocast("cpu", dtype, enabled=mode == "amp"):
            loss = model(*batch)
        (loss * scale).backward()
    ledger = audit.report.record.ledger
    assert ledger is not None
    return ledger, model, batch


def _closes(ledger: LedgerRecord) -> bool:
    """To 2 % of the loss error, or of its expected size where the contributions of this draw cancel."""
    return abs(ledger.predicted - ledger.loss_error) <= 0.02 * max(abs(ledger.loss_error), ledger.expected_size)


@pytest.mark.parametrize("mode", ["amp", "pure"])
@pytest.mark.parametrize("dtype", DTYPES, ids=["bf16", "fp16"])
def test_local_errors_explain_the_loss_error(dtype: torch.dtype, mode: str) -> None:
    for seed in range(2):
        ledger = _run(dtype, mode, seed)[0]
        assert _closes(ledger) and ledger.ranks and ledger.undefined == ""


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["amp", "pure"])
@pytest.mark.parametrize("dtype", DTYPES, ids=["bf16", "fp16"])
def test_over_ten_seeds_the_median_is_within_half_a_percent(dtype: torch.dtype, mode: str) -> None:
    ledgers = [_run(dtype, mode, seed)[0] for seed in range(10)]
    assert all(map(_closes, ledgers))
    plain = [ledger.explained for ledger in ledgers if abs(ledger.loss_error) > 0.1 * ledger.expected_size]
    assert len(plain) >= 8 and all(share is not None and 0.98 <= share <= 1.02 for share in plain), plain
    assert statistics.median(share for share in plain if share is not None) == pytest.approx(1.0, abs=0.005)


def test_the_loss_scale_is_divided_out() -> None:
    plain = _run(torch.bfloat16, "amp", 0)[0]
    scaled = _run(torch.bfloat16, "amp", 0, scale=1024.0)[0]
    assert scaled.loss_error == pytest.approx(plain.loss_error)
    assert scaled.explained == pytest.approx(plain.explained, rel=0.01)


class _Keeping(Ledger):
    """Keeps every local error, by the order of its call."""

    last: _Keeping

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.ordinal = -1
        self.deltas: dict[int, Tensor] = {}
        self.sums: dict[int, float] = {}
        _Keeping.last = self

    def _enter_call(self, *args: Any) -> None:
        self.ordinal += 1
        super()._enter_call(*args)

    def _hook(self, site: Any, main: Any, delta: Tensor) -> Any:
        ordinal = self.ordinal
        self.deltas[ordinal] = delta

        def hook(gradient: Tensor) -> None:
            before = self._entries[site].sum if site in self._entries else 0.0
            self._arrived(site, main, delta, gradient)
            self.sums[ordinal] = self._entries[site].sum - before

        return hook


class _Inject(TorchFunctionMode):
    """Adds frozen local errors to the results of an fp64 run."""

    def __init__(self, deltas: dict[int, Tensor], without: int | None = None) -> None:
        super().__init__()
        self.deltas = deltas
        self.without = without
        self.ordinal = -1

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if not (isinstance(out, Tensor) and out.requires_grad and out.grad_fn is not None and not _views(out, args)):
            return out
        self.ordinal += 1
        delta = self.deltas.get(self.ordinal)
        return out if delta is None or self.ordinal == self.without else out + delta.double()


@pytest.mark.parametrize("dtype", DTYPES, ids=["bf16", "fp16"])
def test_dropping_one_frozen_local_error_moves_the_loss_by_its_share(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precisionlab.observation, "Ledger", _Keeping)
    ledger, model, batch = _run(dtype, "pure", 1)
    kept = _Keeping.last
    exact = model.double()

    def loss(without: int | None = None) -> float:
        with _Inject(kept.deltas, without):
            return float(exact(*batch).detach())

    with torch.no_grad():
        plain = float(exact(*batch))
    injected = loss()
    assert injected - plain == pytest.approx(ledger.loss_error, rel=1e-4)
    shares = torch.tensor([kept.sums[i] for i in kept.deltas])
    effects = torch.tensor([injected - loss(i) for i in kept.deltas])
    assert len(shares) > 20
    assert float(torch.corrcoef(torch.stack((shares, effects)))[0, 1]) > 0.999


def test_dropout_is_repeated_with_its_own_mask() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(32, 32), nn.Dropout(0.5), nn.Tanh(), nn.Linear(32, 8)).bfloat16()
    with pl.audit(preset="full") as audit:
        net(torch.randn(16, 32).bfloat16()).square().mean().backward()
    ledger = audit.report.record.ledger
    assert ledger is not None and _closes(ledger)


def test_a_random_call_that_cannot_be_repeated_is_counted_as_missing() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(32, 32), nn.AlphaDropout(0.5), nn.Linear(32, 8)).bfloat16()
    with pl.audit(preset="full") as audit:
        net(torch.randn(16, 32).bfloat16()).square().mean().backward()
    ledger = audit.report.record.ledger
    assert ledger is not None and list(ledger.missing.values()) == [1]
    assert all("alpha_dropout" in name for name in ledger.missing)


def test_gradient_accumulation_adds_its_losses_up() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 8)).bfloat16()
    with pl.audit(preset="full") as audit:
        for _ in range(4):
            (net(torch.randn(16, 32).bfloat16()).float().square().mean() / 4).backward()
    ledger = audit.report.record.ledger
    assert ledger is not None and ledger.losses == 4 and _closes(ledger)


class _Opaque(torch.autograd.Function):
    """A cube that torch function modes do not see."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x * x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 3 * x * x * grad


def test_calls_that_are_not_seen_are_missing_from_what_is_explained_and_nothing_is_ranked() -> None:
    torch.manual_seed(0)
    x = torch.rand(4096).bfloat16().requires_grad_()
    with pl.audit(preset="full") as audit:
        _Opaque.apply(x).float().sum().backward()
    ledger = audit.report.record.ledger
    assert ledger is not None and ledger.explained is not None and not ledger.ranks
    assert audit.report.to_dict()["ledger"]["shares"] == []
    assert "too little is explained" in str(audit.report)


def test_a_fault_of_the_ledger_becomes_a_note_and_the_program_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def fault(*given: Any) -> None:
        raise ZeroDivisionError("of its own")

    monkeypatch.setattr(Ledger, "_exact", fault)
    net = nn.Linear(8, 8).bfloat16()
    with pl.audit(preset="full", strict=False) as audit:
        net(torch.ones(2, 8).bfloat16()).float().sum().backward()
    assert net.weight.grad is not None
    assert any("the ledger at" in note and "ZeroDivisionError" in note for note in audit.report.notes)


def test_a_loss_that_is_not_finite_is_said_to_be_undefined() -> None:
    x = torch.full((4,), 300.0, dtype=torch.float16, requires_grad=True)
    with pl.audit(preset="full") as audit:
        x.square().sum().backward()
    ledger = audit.report.record.ledger
    assert ledger is not None and ledger.explained is None and ledger.undefined


def test_the_full_preset_changes_no_bit() -> None:
    def losses() -> list[Tensor]:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.2), nn.MultiheadAttention(16, 2, batch_first=True).eval().out_proj).bfloat16()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        out = []
        for _ in range(3):
            optimizer.zero_grad()
            loss = net(torch.randn(8, 16).bfloat16()).square().mean()
            loss.backward()
            optimizer.step()
            out.append(loss.detach())
        attention = nn.MultiheadAttention(16, 2, batch_first=True).eval()
        with torch.no_grad():
            out.append(attention(*[torch.randn(2, 4, 16)] * 3)[0])
        return out

    plain = losses()
    with pl.audit(preset="full"):
        audited = losses()
    assert all(torch.equal(a, b) for a, b in zip(plain, audited, strict=True))


def test_a_function_mode_of_the_program_survives_the_end_of_the_audit() -> None:
    audit = pl.audit(preset="full").start()
    torch.set_default_device("cpu")
    try:
        torch.ones(2)
        audit.stop()
        assert torch._C._len_torch_function_stack() == 1
    finally:
        torch.set_default_device(None)


def test_each_backward_pass_counts_once_under_a_function_mode() -> None:
    x = torch.ones(4, requires_grad=True)
    torch.set_default_device("cpu")
    try:
        with pl.audit() as audit:
            (x * 2).sum().backward()
    finally:
        torch.set_default_device(None)
    assert audit.report.record.backwards == 1
