"""What goes wrong around the step is named, and the same programs done right are quiet."""

from collections.abc import Callable, Iterable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import precisionlab as pl
from precisionlab.records import Verdict
from precisionlab.report.model import Report

from .step_programs import PROGRAMS


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_goes_wrong_around_the_step_is_named(name: str) -> None:
    program, codes = PROGRAMS[name]
    with pl.audit() as audit:
        program(True)
    broken = {f.code for f in audit.report.findings if f.verdict is Verdict.BROKEN}
    assert broken & codes, [(f.code, f.op, f.message) for f in audit.report.findings]


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_same_program_done_right_is_not_broken(name: str) -> None:
    with pl.audit() as audit:
        PROGRAMS[name][0](False)
    assert [(f.code, f.message) for f in audit.report.findings if f.verdict is Verdict.BROKEN] == []


def test_an_fp32_norm_of_ten_million_equal_gradients_is_risky() -> None:
    weight = nn.Parameter(torch.zeros(10_000_000))
    weight.grad = torch.full_like(weight, 10.0)
    with pl.audit() as audit:
        torch.nn.utils.clip_grad_norm_([weight], 1.0)
    assert [(f.code, f.verdict, f.phase) for f in audit.report.findings] == [("PL502", Verdict.RISKY, "clip")]
    assert 2**-10 < audit.report.findings[0].evidence["norm_error"] < 2**-6


def test_weights_that_a_second_loss_passes_through_once_are_not_called_unzeroed() -> None:
    torch.manual_seed(0)
    generator, critic = nn.Linear(4, 4), nn.Linear(4, 1)
    slow, fast = torch.optim.SGD(generator.parameters(), lr=1e-3), torch.optim.SGD(critic.parameters(), lr=1e-3)
    with pl.audit() as audit:
        for _ in range(4):
            fast.zero_grad()
            critic(generator(torch.randn(8, 4)).detach()).mean().backward()
            fast.step()
            slow.zero_grad()
            critic(generator(torch.randn(8, 4))).mean().backward()
            slow.step()
    assert audit.report.findings == []


class _Kahan(torch.optim.Optimizer):
    """SGD on half weights whose rounding errors are kept and added to the next step."""

    def __init__(self, params: Iterable[nn.Parameter], lr: float) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                lost = self.state[p].setdefault("lost", torch.zeros_like(p))
                lost.add_(p.grad, alpha=-group["lr"])
                old = p.clone()
                p.add_(lost)
                lost.add_(old.sub_(p))


def _bf16_steps(optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]) -> Report:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 8)).bfloat16()
    x, y = torch.randn(64, 32).bfloat16(), torch.randn(64, 8)
    with pl.audit() as audit:
        steps = optimizer(net.parameters())
        for _ in range(12):
            steps.zero_grad()
            F.mse_loss(net(x).float(), y).backward()
            steps.step()
    return audit.report


def test_compensated_updates_are_exempt_by_what_their_state_holds() -> None:
    assert [f.code for f in _bf16_steps(lambda p: torch.optim.SGD(p, lr=1e-3)).findings if f.verdict is Verdict.BROKEN] == ["PL301"]
    assert _bf16_steps(lambda p: _Kahan(p, lr=1e-3)).findings == []


class _StochasticRounding(torch.optim.Optimizer):
    """SGD whose weights are rounded up or down with the probability that keeps their mean."""

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                bits = (p.float() - group["lr"] * p.grad.float()).view(torch.int32)
                bits = (bits + torch.randint(0, 1 << 16, bits.shape, dtype=torch.int32)) & -65536
                p.copy_(bits.view(torch.float32))


def test_stochastically_rounded_updates_are_exempt_because_they_arrive_on_average() -> None:
    assert _bf16_steps(lambda p: _StochasticRounding(p, {"lr": 1e-3})).findings == []


def test_a_number_of_the_network_that_equals_the_loss_scale_is_no_scale() -> None:
    torch.manual_seed(0)
    first, last = nn.Linear(16, 16), nn.Linear(16, 4)
    optimizer = torch.optim.SGD([*first.parameters(), *last.parameters()], lr=1e-3)
    with pl.audit() as audit:
        for _ in range(3):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.float16):
                hidden = first(torch.randn(8, 16))
                out = last(hidden + F.gelu(hidden / 1024.0) * 1024.0)
            (out.float().square().mean() * 1024.0).backward()
            for p in (*first.parameters(), *last.parameters()):
                p.grad.div_(1024.0)
            optimizer.step()
    assert audit.report.findings == []


def test_a_norm_that_is_wrong_is_told_where_it_is_read() -> None:
    with pl.audit() as audit:
        torch.linalg.vector_norm(torch.full((10_000_000,), 10.0)).item()
    assert [(f.code, f.verdict) for f in audit.report.findings] == [("PL502", Verdict.RISKY)]


def test_a_derivative_of_a_derivative_is_no_recomputation() -> None:
    torch.manual_seed(0)
    critic = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    with pl.audit() as audit:
        for _ in range(2):
            x = torch.randn(16, 8, requires_grad=True)
            with torch.autocast("cpu", torch.bfloat16):
                out = critic(x)
            (gradient,) = torch.autograd.grad(out.float().sum(), x, create_graph=True)
            (out.float().mean() + (gradient.norm(dim=1) - 1).square().mean()).backward()
    assert audit.report.findings == []


def test_digits_lost_among_the_subnormals_are_an_underflow_and_no_cancellation() -> None:
    class Product(nn.Module):
        def forward(self, p: torch.Tensor) -> torch.Tensor:
            return p * 1e-3 * 4e-4

    torch.manual_seed(0)
    with pl.audit() as audit:
        Product()((0.5 + torch.rand(256)).half())
    assert [(f.code, f.kind) for f in audit.report.findings] == [("PL105", "underflow")]
    assert "below the normal range of fp16" in audit.report.findings[0].message


def test_norms_of_skipped_steps_that_the_program_keeps_are_no_fault() -> None:
    torch.manual_seed(3)
    net, x, y = nn.Sequential(nn.Linear(24, 48), nn.GELU(), nn.Linear(48, 1)), torch.randn(64, 24), torch.randn(64, 1) + 3
    optimizer, scaler = torch.optim.SGD(net.parameters(), lr=0.1), torch.amp.GradScaler("cpu", init_scale=2.0**20)
    norms = []
    with pl.audit() as audit:
        for _ in range(10):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.float16):
                out = net(x)
            scaler.scale((out.float() - y).square().mean()).backward()
            scaler.unscale_(optimizer)
            norms.append(nn.utils.clip_grad_norm_(net.parameters(), 1.0))
            scaler.step(optimizer)
            scaler.update()
    assert audit.report.record.skipped_steps > 0 and not torch.isfinite(norms[0])
    assert [f.code for f in audit.report.findings if f.verdict is Verdict.BROKEN] == []


@pytest.mark.parametrize("width", [4, 128])
def test_steps_taken_by_hand_are_counted(width: int) -> None:
    layer = nn.Linear(width, width)
    with pl.audit() as audit:
        for _ in range(3):
            layer.zero_grad()
            layer(torch.ones(2, width)).square().mean().backward()
            for p in layer.parameters():
                p.data.add_(p.grad, alpha=-0.1)
    assert audit.report.record.optimizer_steps == 3
    assert audit.report.findings == []


class _Replacing(torch.optim.Optimizer):
    """Keeps its momentum in half, in a new tensor after each step: the addresses of old ones are used again at once."""

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                old = self.state[p].get("momentum", torch.zeros_like(p))
                self.state[p]["momentum"] = 0.9 * old + p.grad
                p.sub_(self.state[p]["momentum"], alpha=group["lr"])


def test_state_that_an_optimizer_replaces_is_followed_by_its_place() -> None:
    torch.manual_seed(0)
    net = nn.ModuleList(nn.Linear(n, n) for n in (3, 5, 7, 3, 9)).bfloat16()
    optimizer = _Replacing(net.parameters(), {"lr": 0.1})
    with pl.audit() as audit:
        for step in range(20):
            optimizer.zero_grad()
            sum(
                layer(torch.ones(2, layer.in_features, dtype=torch.bfloat16) * (1 + step % 3)).float().square().mean() for layer in net
            ).backward()
            optimizer.step()
    assert audit.report.notes == []
    assert [f.code for f in audit.report.findings if f.kind == "optimizer-state"] == []
