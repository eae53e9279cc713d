"""Fused and foreach optimizer kernels, and the scaler's, on fp64 twins against torch's own single-tensor optimizers in fp64."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import precisionlab.ops.optimizer
import precisionlab.ops.reduction  # noqa: F401  registers _foreach_norm
from precisionlab.ops import dot  # noqa: F401  registers _foreach_mm
from precisionlab.ops.registry import How, find_rule

aten = torch.ops.aten
FUSED = {aten._fused_adam_, aten._fused_adamw_, aten._fused_sgd_, aten._fused_adagrad_}


class ByReference(TorchDispatchMode):
    """Runs the fused ops through their rule's reference, with every floating operand an fp64 tensor, and counts them."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        if func.overloadpacket not in FUSED:
            return func(*args, **(kwargs or {}))
        self.calls += 1
        rule = find_rule(func)
        assert rule is not None and rule.reference is not None
        widened = {k: v.double() if isinstance(v, Tensor) else v for k, v in (kwargs or {}).items()}
        steps = 5 if "adam" in func._schema.name else 3
        args = tuple([t.double() for t in arg] if k == steps else arg for k, arg in enumerate(args))
        return rule.reference(func, args, widened)


def parameters() -> list[torch.nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    return [torch.nn.Parameter(torch.randn(shape, generator=generator).double()) for shape in ((7,), (3, 5), (130,))]


def train(name: str, options: dict[str, Any], *, fused: bool, steps: int = 5) -> tuple[list[Tensor], int]:
    params = parameters()
    optimizer = getattr(torch.optim, name)(params, **options, **({"fused": True} if fused else {"foreach": False}))
    generator = torch.Generator().manual_seed(1)
    mode = ByReference()
    for _ in range(steps):
        for param in params:
            param.grad = torch.randn(param.shape, generator=generator).double()
        with mode:
            optimizer.step()
    state = [optimizer.state[p][k] for p in params for k in sorted(optimizer.state[p]) if k != "step" and optimizer.state[p][k] is not None]
    return [*(p.detach() for p in params), *state], mode.calls


OPTIONS = [
    ("Adam", {}),
    ("Adam", {"amsgrad": True, "weight_decay": 0.1}),
    ("Adam", {"maximize": True, "betas": (0.3, 0.7), "eps": 1e-3}),
    ("AdamW", {}),
    ("AdamW", {"amsgrad": True, "maximize": True, "weight_decay": 0.1}),
    ("AdamW", {"lr": torch.tensor(1e-2, dtype=torch.float64)}),
    ("SGD", {"lr": 0.1}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "dampening": 0.2, "weight_decay": 0.1}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True, "maximize": True}),
    ("Adagrad", {}),
    ("Adagrad", {"lr_decay": 0.1, "weight_decay": 0.1, "maximize": True, "initial_accumulator_value": 0.5}),
]


@pytest.mark.parametrize(("name", "options"), OPTIONS, ids=str)
def test_fused_steps_equal_the_single_tensor_optimizer_in_fp64(name: str, options: dict[str, Any]) -> None:
    ours, calls = train(name, options, fused=True)
    theirs, _ = train(name, options, fused=False)
    assert calls == 5 and len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14)


def adamw_arguments(*, scale: float | None, skip: float | None) -> tuple[tuple, dict[str, Any]]:
    params = [p.detach() for p in parameters()]
    grads = [torch.ones_like(p) * (scale or 1.0) for p in params]
    control = {"grad_scale": scale, "found_inf": skip}
    kwargs = {"lr": 0.1, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.1, "eps": 1e-8, "amsgrad": False, "maximize": False}
    kwargs |= {k: torch.tensor(v, dtype=torch.float64) for k, v in control.items() if v is not None}
    moments = [[torch.zeros_like(p) for p in params] for _ in range(2)]
    return (params, grads, *moments, [], [torch.tensor(1.0, dtype=torch.float64) for _ in params]), kwargs


def run_adamw(**control: Any) -> tuple:
    args, kwargs = adamw_arguments(**control)
    rule = find_rule(aten._fused_adamw_.default)
    assert rule is not None and rule.reference is not None
    assert rule.reference(aten._fused_adamw_.default, args, kwargs) is None
    return args


def test_torchs_fused_step_itself_refuses_fp64_control_tensors() -> None:
    """Why there is a reference at all: should this fail one day, the op can simply be run again on CPU."""
    args, kwargs = adamw_arguments(scale=8.0, skip=0.0)
    with pytest.raises(RuntimeError, match="expected scalar type Float"):
        aten._fused_adamw_(*args, **kwargs)


def test_a_fused_step_with_found_inf_changes_nothing() -> None:
    before, _ = adamw_arguments(scale=None, skip=1.0)
    for ours, theirs in zip(run_adamw(scale=None, skip=1.0)[:4], before[:4], strict=True):
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_a_fused_step_divides_gradients_by_their_scale_and_writes_them_back() -> None:
    plain, scaled = run_adamw(scale=None, skip=None), run_adamw(scale=1024.0, skip=0.0)
    for ours, theirs in zip(scaled[:4], plain[:4], strict=True):
        for a, b in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-14, atol=0)


def test_steps_are_counted_outside_the_fused_op() -> None:
    assert [step.item() for step in run_adamw(scale=None, skip=None)[5]] == [1.0, 1.0, 1.0]


def test_unscaling_multiplies_twins_and_leaves_found_inf_to_the_real_run() -> None:
    func = aten._amp_foreach_non_finite_check_and_unscale_.default
    rule = find_rule(func)
    assert rule is not None and rule.reference is not None
    grads = [torch.tensor([2.0, float("inf")]).double(), torch.tensor([[3.0]]).double()]
    found, inverse = torch.zeros(1).double(), torch.tensor([0.25]).double()
    with pytest.raises(RuntimeError):
        func([g.clone() for g in grads], found.clone(), inverse)
    rule.reference(func, (grads, found, inverse), {})
    assert grads[0].tolist() == [0.5, float("inf")] and grads[1].tolist() == [[0.75]] and found.item() == 0.0


def test_the_scale_is_the_real_runs() -> None:
    rule = find_rule(aten._amp_update_scale_.default)
    assert rule is not None and rule.how is How.REAL and rule.note


# Values for every kind of argument a _foreach_ op takes, by its schema type and name.
def _tensors(positive: bool = True, square: bool = False) -> list[Tensor]:
    generator = torch.Generator().manual_seed(2)
    shapes = ((3, 3), (3, 3)) if square else ((4,), (2, 3))
    return [torch.rand(shape, generator=generator).double() * 0.5 + 0.25 for shape in shapes]


def _argument(argument: Any, square: bool) -> Any:
    kind, name = str(argument.type), argument.name
    if kind == "List[Tensor]":
        return _tensors(square=square)
    if kind == "Tensor":
        return torch.tensor([0.5, 0.25]).double() if name == "scalars" else torch.tensor(0.5).double()
    if kind.startswith("List["):
        return [0.5, 0.25]
    return argument.default_value if argument.has_default_value() else 0.5


def foreach_overloads() -> list[Any]:
    names = sorted({s.name.partition("::")[2] for s in torch._C._jit_get_all_schemas() if s.name.startswith("aten::_foreach_")})
    packets = [getattr(aten, name) for name in names if hasattr(aten, name)]
    return [getattr(packet, overload) for packet in packets for overload in packet.overloads() if not overload.endswith("out")]


@pytest.mark.parametrize("func", foreach_overloads(), ids=str)
def test_foreach_ops_have_a_rule_and_run_on_lists_of_fp64_tensors(func: Any) -> None:
    rule = find_rule(func)
    assert rule is not None, f"{func} has no rule"
    args = tuple(_argument(a, "_mm" in func._schema.name) for a in func._schema.arguments if not a.kwarg_only)
    before = copy.deepcopy(args)
    found = func(*args) if rule.reference is None else rule.reference(func, args, {})
    results = list(found) if found else args[0]
    assert all(t.dtype is torch.float64 and bool(t.isfinite().all()) for t in results)
    if rule.condition is not None:
        scales = rule.condition(func, before, {}, results)
        for scale, result in zip(scales, results, strict=True):
            assert scale.shape == result.shape and bool((scale >= result.abs() * (1 - 1e-12)).all())


def test_a_foreach_sum_that_cancels_is_judged_on_its_terms() -> None:
    rule = find_rule(aten._foreach_add_.List)
    assert rule is not None and rule.condition is not None
    a = [torch.tensor([1.0, 2.0]).double(), torch.tensor([3.0]).double()]
    scales = rule.condition(aten._foreach_add_.List, (a, [-t for t in a]), {"alpha": 2}, None)
    assert [scale.tolist() for scale in scales] == [[3.0, 6.0], [9.0]]
