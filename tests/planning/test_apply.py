"""Lifting regions of a program to fp32."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import precisionlab as pl
from precisionlab.errors import SettingsError
from precisionlab.planning.apply import PlanMode
from precisionlab.plans.change import Change, Where, dumps, load_plan, loads

from .conftest import Net, Norm


def _module(path: str) -> Change:
    return Change(Where.MODULE, path)


def test_a_module_in_the_plan_computes_in_fp32_and_hands_half_on() -> None:
    torch.manual_seed(0)
    net, x = Net(1000.0).half(), torch.randn(8, 16).half()
    seen: list[torch.dtype] = []
    net.last.register_forward_pre_hook(lambda module, args: seen.append(args[0].dtype))
    plain = net(x)
    with pl.apply_plan(net, [_module("norm")]):
        planned = net(x)
    exact = net.double()(x.double())
    assert planned.dtype is torch.float16 and planned.isfinite().all()
    assert (planned - exact).norm() < 0.01 * exact.norm() < (plain - exact).norm()


def test_no_parameter_buffer_or_state_changes() -> None:
    net = Net(1000.0).half()
    before = {key: value.clone() for key, value in net.state_dict().items()}
    with pl.apply_plan(net, [_module("norm")]):
        net(torch.randn(8, 16).half()).float().sum().backward()
    assert all(torch.equal(value, before[key]) and value.dtype is before[key].dtype for key, value in net.state_dict().items())
    assert all(p.grad is not None and p.grad.dtype is torch.float16 for p in net.parameters())


def test_without_the_plan_the_program_is_what_it_was() -> None:
    net, x = Net(2.0).half(), torch.randn(8, 16).half()
    plain = net(x)
    handle = pl.apply_plan(net, [_module("norm")]).start()
    net(x)
    handle.remove()
    assert torch.equal(net(x), plain) and torch._C._len_torch_function_stack() == 0


def test_a_plan_works_under_autocast() -> None:
    torch.manual_seed(0)
    net, x = Net(1.0), torch.randn(8, 16)
    with torch.autocast("cpu", torch.bfloat16):
        plain = net(x)
        with pl.apply_plan(net, [Change(Where.PROGRAM)]):
            planned = net(x)
    exact = net(x)
    assert plain.dtype is torch.bfloat16
    assert (planned - exact).norm() < 1e-5 * exact.norm() < (plain - exact).norm()


def running_sum(terms: Tensor) -> Tensor:
    total = torch.zeros((), dtype=terms.dtype)
    for term in terms:
        total = total + term
    return total


def test_a_function_region_keeps_its_loop_in_fp32() -> None:
    ones = torch.ones(600, dtype=torch.bfloat16)
    assert float(running_sum(ones)) == 256.0
    with PlanMode([Change(Where.FUNCTION, file="test_apply.py", function="running_sum")]) as plan:
        assert float(running_sum(ones)) == 600.0
        assert (running_sum(ones) * 1).dtype is torch.bfloat16
    assert plan.used == {0}


def test_gradients_inside_a_region_are_fp32_too() -> None:
    x = torch.full((4,), 300.0, dtype=torch.float16, requires_grad=True)

    def cube(x: Tensor) -> Tensor:
        return (x * x * x).sum() / 1e6

    cube(x).backward()
    assert not torch.isfinite(x.grad).all()
    x.grad = None
    with PlanMode([Change(Where.FUNCTION, file="test_apply.py", function=f"{cube.__qualname__}")]):
        cube(x).backward()
    assert torch.allclose(x.grad, torch.full((4,), 0.27, dtype=torch.float16), rtol=1e-3)


def test_integers_and_indices_pass_through_a_region() -> None:
    table = nn.Embedding(10, 4).half()
    with pl.apply_plan(table, [Change(Where.PROGRAM)]):
        values, places = table(torch.tensor([1, 2])).max(dim=-1)
    assert places.dtype is torch.int64 and values.shape == (2,)


def test_a_plan_for_another_model_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(dumps([_module("decoder.norm")], model="Whisper"))
    with pytest.raises(SettingsError, match=r"decoder\.norm.*Norm does not have.*made for Whisper"):
        pl.apply_plan(Norm(4), str(path))


def test_a_plan_file_round_trips(tmp_path: Path) -> None:
    changes = [_module("norm"), Change(Where.FUNCTION, file="a.py", function="f", line=3, reason="why"), Change(Where.SCALE, scale=1024.0)]
    path = tmp_path / "plan.json"
    path.write_text(dumps(changes, model="Net", dtype="fp16"))
    assert load_plan(path) == (changes, {"plan_version": 1, "model": "Net", "dtype": "fp16"})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is no JSON"),
        ("[]", "no list of changes"),
        (json.dumps({"plan_version": 7, "changes": []}), "plan version 7"),
        (json.dumps({"plan_version": 1, "changes": [{"module": "a"}]}), "no key where"),
        (json.dumps({"plan_version": 1, "changes": [{"where": "module", "modul": "a"}]}), "unknown key modul"),
        (json.dumps({"plan_version": 1, "changes": [{"where": "layer"}]}), "'layer' is not a valid Where"),
    ],
)
def test_what_is_no_plan_file_is_said(text: str, said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        loads(text)


def test_a_missing_plan_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot be read"):
        load_plan(tmp_path / "none.json")
