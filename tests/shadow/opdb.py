"""PyTorch's own operator database as a source of small programs: one op, one sample, forward and backward.

A ``Case`` is one op with one sample input in one variant (functional, in-place, ``out=``). ``run`` executes it from fresh copies of
the inputs and a fixed seed, so that two runs of a repeatable case agree bit for bit.
"""

from __future__ import annotations

import gc
import itertools
import math
import random
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import precisionlab as pl
from precisionlab.ops.registry import find_rule

Tensor = torch.Tensor

SAMPLES = 8
"""Sample inputs of an op that are tried, at most."""

HALVES = (torch.float16, torch.bfloat16)
WIDE = {
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float32: torch.float64,
    torch.complex32: torch.complex128,
    torch.complex64: torch.complex128,
}
NUDGE = {torch.float16: 2.0**-15, torch.bfloat16: 2.0**-12, torch.float32: 2.0**-28}
"""Relative size of the difference that a twin is given from its tensor: well below half a spacing, so that it rounds away."""


@dataclass
class Outcome:
    """What one run left behind."""

    tensors: list[Tensor] = field(default_factory=list)
    """Results, then gradients, then the inputs as they are afterwards."""
    names: list[str] = field(default_factory=list)
    rng: Tensor | None = None
    error: str = ""


@dataclass
class Case:
    """One op, one sample, one variant."""

    name: str
    op: Any
    sample: Any
    dtype: torch.dtype
    variant: str
    backward: bool
    index: int

    @property
    def label(self) -> str:
        return f"{self.name}[{self.index}] {self.variant} {str(self.dtype).removeprefix('torch.')}"


def database() -> list[Any]:
    """op_db, imported late: it costs seconds."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal.common_methods_invocations import op_db
    return list(op_db)


def name_of(op: Any) -> str:
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else str(op.name)


def cases(op: Any, dtype: torch.dtype, *, limit: int = SAMPLES) -> Iterator[Case]:
    """The cases of one entry in one dtype. Samples are made from a fixed seed."""
    if dtype not in op.supported_dtypes("cpu"):
        return
    seed(1234)
    backward = bool(op.supports_autograd) and dtype in op.supported_backward_dtypes("cpu")
    for index, sample in enumerate(itertools.islice(op.sample_inputs("cpu", dtype, requires_grad=backward), limit)):
        yield Case(name_of(op), op, sample, dtype, "functional", backward, index)
        if op.inplace_variant is not None and not sample.broadcasts_input:
            yield Case(name_of(op), op, sample, dtype, "in-place", backward and bool(op.supports_inplace_autograd), index)
        if op.supports_out:
            yield Case(name_of(op), op, sample, dtype, "out=", False, index)


def seed(value: int) -> None:
    torch.manual_seed(value)
    random.seed(value)
    np.random.seed(value)


def fresh(value: Any, change: Callable[[Tensor], Tensor] | None = None, memo: dict[int, Tensor] | None = None) -> Any:
    """A copy of a nested value whose tensors keep strides, offsets and ``requires_grad`` but nothing of each other's memory."""
    memo = {} if memo is None else memo
    if isinstance(value, Tensor):
        known = memo.get(id(value))
        if known is None:
            known = memo[id(value)] = (change or _copy)(value)
        return known
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(fresh(v, change, memo) for v in value))
    if isinstance(value, (list, tuple)):
        return type(value)(fresh(v, change, memo) for v in value)
    if isinstance(value, dict):
        return {k: fresh(v, change, memo) for k, v in value.items()}
    return value


def _copy(t: Tensor) -> Tensor:
    with torch.no_grad():
        if t.layout != torch.strided or t.is_quantized:
            return t.detach().clone().requires_grad_(t.requires_grad)
        out = _with_strides(t, t.detach())
    return out.requires_grad_(t.requires_grad)


def _with_strides(like: Tensor, values: Tensor) -> Tensor:
    """``values`` laid out in memory as ``like`` is."""
    size = like.storage_offset() + 1 + sum((n - 1) * s for n, s in zip(like.shape, like.stride(), strict=True)) if like.numel() else 0
    flat = torch.zeros(size, dtype=values.dtype)
    out = flat.as_strided(like.shape, like.stride(), like.storage_offset())
    # an expanded tensor has one element for many places
    out.copy_(values) if _distinct(like) else flat.copy_(_base(like, values, size))
    return out


def _distinct(t: Tensor) -> bool:
    return all(s != 0 or n <= 1 for n, s in zip(t.shape, t.stride(), strict=True)) and not torch._debug_has_internal_overlap(t)


def _base(like: Tensor, values: Tensor, size: int) -> Tensor:
    flat = torch.zeros(size, dtype=values.dtype)
    places = torch.arange(size).as_strided(like.shape, like.stride(), like.storage_offset())
    flat[places.reshape(-1)] = values.reshape(-1)
    return flat


def _storage(t: Tensor) -> Tensor:
    """A copy of what lies under a strided tensor, as one dimension."""
    size = t.storage_offset() + 1 + sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True)) if t.numel() else 0
    if not _distinct(t):
        return _base(t, t.detach(), size)
    flat = torch.zeros(size, dtype=t.dtype)
    flat.as_strided(t.shape, t.stride(), t.storage_offset()).copy_(t.detach())
    return flat


def _widened(flat: Tensor, nudge: bool) -> Tensor:
    """fp64 numbers that round to those of ``flat``: the same, or each moved by less than half a spacing."""
    wide = flat.to(WIDE.get(flat.dtype, flat.dtype))
    if not nudge or flat.dtype not in NUDGE:
        return wide.clone()
    noise = torch.empty(flat.shape, dtype=torch.float64).uniform_(-1.0, 1.0, generator=torch.Generator().manual_seed(flat.numel()))
    return wide * (1.0 + NUDGE[flat.dtype] * noise)


def wide_input(t: Tensor, nudge: bool) -> Tensor:
    """The fp64 operand that stands for a sample's."""
    if t.layout != torch.strided:
        return t.detach().to(WIDE.get(t.dtype, t.dtype)).requires_grad_(t.requires_grad)
    return _widened(_storage(t), nudge).as_strided(t.shape, t.stride(), t.storage_offset()).requires_grad_(t.requires_grad)


def narrow_input(t: Tensor, nudge: bool) -> Tensor:
    """The operand itself, cast down from ``wide_input`` under the audit: so its twin differs from it."""
    if t.layout != torch.strided or t.dtype not in WIDE:
        return _copy(t)
    flat = _widened(_storage(t), nudge).to(t.dtype)
    return flat.as_strided(t.shape, t.stride(), t.storage_offset()).detach().requires_grad_(t.requires_grad)


def wide_dtypes(value: Any) -> Any:
    """Half and single dtypes among arguments, as fp64."""
    if isinstance(value, torch.dtype):
        return WIDE.get(value, value)
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return type(value)(wide_dtypes(v) for v in value)
    return {k: wide_dtypes(v) for k, v in value.items()} if isinstance(value, dict) else value


def run(case: Case, inputs: tuple[Any, Any, Any] | None = None, cotangents: list[Tensor] | None = None) -> Outcome:
    """Execute a case; ``inputs`` are used as they are (by default: fresh copies of the sample's)."""
    sample = case.sample
    first, args, kwargs = inputs if inputs is not None else fresh((sample.input, sample.args, sample.kwargs))
    outcome = Outcome()
    seed(99)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _execute(case, first, args, kwargs, cotangents, outcome)
    except Exception as error:
        outcome.error = f"{type(error).__name__}: {error}"
    outcome.rng = torch.get_rng_state()
    return outcome


def _execute(case: Case, first: Any, args: Any, kwargs: Any, cotangents: list[Tensor] | None, outcome: Outcome) -> None:
    op = case.op
    if case.variant == "in-place":
        target = first.clone() if isinstance(first, Tensor) and first.requires_grad else first
        result = op.inplace_variant(target, *args, **kwargs)
    elif case.variant == "out=":
        with torch.no_grad():
            shaped = op(first, *args, **kwargs)
            seed(99)
            out = fresh(_detached(shaped), lambda t: torch.full_like(t, 0))
            result = op(first, *args, **kwargs, out=out)
            outcome.tensors += flatten(out)
            outcome.names += [f"out {i}" for i in range(len(flatten(out)))]
    else:
        result = op(first, *args, **kwargs)
    result = case.sample.output_process_fn_grad(result) if case.backward and case.sample.output_process_fn_grad else result
    results = flatten(result)
    outcome.tensors += results
    outcome.names += [f"result {i}" for i in range(len(results))]
    leaves = [t for t in flatten((first, args, kwargs)) if t.requires_grad and t.is_leaf]
    if case.backward and leaves:
        reached = [r for r in results if r.requires_grad and (r.is_floating_point() or r.is_complex())]
        if reached:
            given = cotangents if cotangents is not None else [cotangent(r) for r in reached]
            grads = torch.autograd.grad(reached, leaves, given, allow_unused=True)
            outcome.tensors += [g for g in grads if g is not None]
            outcome.names += [f"gradient {i}" for i, g in enumerate(grads) if g is not None]
    for i, t in enumerate(flatten((first, args, kwargs))):
        outcome.tensors.append(t)
        outcome.names.append(f"input {i}")


def cotangent(r: Tensor) -> Tensor:
    """The gradient that comes into a result: the same numbers for the same shape, exact in every format."""
    generator = torch.Generator().manual_seed(r.numel())
    return (torch.randint(-128, 128, r.shape, generator=generator).double() / 64).to(r.dtype)


def _detached(value: Any) -> Any:
    return fresh(value, lambda t: t.detach())


def flatten(value: Any) -> list[Tensor]:
    """The tensors of a nested value, in order."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [t for v in value for t in flatten(v)]
    if isinstance(value, dict):
        return [t for v in value.values() for t in flatten(v)]
    return []


def bits(t: Tensor) -> Any:
    """Something that is equal exactly where two tensors are bit-identical (layout, dtype, shape, strides, NaN payloads included)."""
    t = t.detach()
    if t.layout != torch.strided:
        parts = (t._indices(), t._values()) if t.layout == torch.sparse_coo else (t.to_dense(),)
        return (str(t.layout), tuple(t.shape), *(bits(p) for p in parts))
    if t.is_quantized or t.is_meta:
        return (str(t.dtype), tuple(t.shape))
    flat = torch.empty(t.numel(), dtype=t.dtype).copy_(t.reshape(-1))
    return (str(t.dtype), tuple(t.shape), t.stride(), flat.view(torch.uint8).numpy().tobytes())


def fingerprint(outcome: Outcome) -> list[Any]:
    """All that must not change under the audit."""
    rng = outcome.rng.numpy().tobytes() if outcome.rng is not None else b""
    return [outcome.error, outcome.names, [bits(t) for t in outcome.tensors], rng]


def first_difference(a: list[Any], b: list[Any]) -> str:
    """Words for where two fingerprints part."""
    if a[0] != b[0]:
        return f"error {b[0]!r} instead of {a[0]!r}"
    if a[1] != b[1]:
        return f"tensors {b[1]} instead of {a[1]}"
    for name, x, y in zip(a[1], a[2], b[2], strict=True):
        if x != y:
            return f"{name} differs" if x[:3] == y[:3] else f"{name} is {y[:3]} instead of {x[:3]}"
    return "RNG state differs" if a[3] != b[3] else ""


def normwise(twin: Tensor, truth: Tensor) -> float:
    """||twin - truth|| / ||truth||; infinite where shapes differ or non-finite values are not at the same places."""
    twin, truth = twin.detach(), truth.detach()
    if twin.shape != truth.shape:
        return math.inf
    if twin.is_complex() or truth.is_complex():
        twin, truth = (torch.view_as_real(t.to(torch.complex128).resolve_conj()) for t in (twin, truth))
    twin, truth = twin.double(), truth.double()
    same = torch.isfinite(twin) & torch.isfinite(truth)
    odd = ~same
    if bool(odd.any()) and not bool(((twin == truth) | (twin.isnan() & truth.isnan()))[odd].all()):
        return math.inf
    x, y = torch.where(same, twin, 0.0), torch.where(same, truth, 0.0)
    size = float(y.norm())
    error = float((x - y).norm())
    return error / size if size > 0 else (0.0 if error == 0.0 else error)


# -- the two surveys ------------------------------------------------------------------------------------------------------------------

EXACT = 1e-12
"""How far a twin may be from the op in fp64, normwise."""


@dataclass
class Survey:
    """What came of many cases."""

    verdicts: dict[str, tuple[str, str, str]] = field(default_factory=dict)
    """Label -> (name, verdict, detail)."""
    unshadowed: dict[str, str] = field(default_factory=dict)
    """ATen op -> why its twin restarted from the program's value."""
    resyncs: Counter[str] = field(default_factory=Counter)
    default_rule: Counter[str] = field(default_factory=Counter)
    ops: dict[str, Any] = field(default_factory=dict)
    """ATen op -> its ``OpInfo``."""

    def note(self, case: Case, verdict: str, detail: str = "") -> None:
        self.verdicts[case.label] = (case.name, verdict, detail)

    def wrong(self, fine: set[str], excused: dict[str, str]) -> dict[str, str]:
        """Cases with another verdict than those that are fine, but for the excused ops and samples (``name``, ``name[index]``)."""
        found = {k: f"{v} {d}" for k, (_, v, d) in self.verdicts.items() if v not in fine}
        return {k: v for k, v in found.items() if k.split("[")[0] not in excused and k.split(" ")[0] not in excused}

    def count(self) -> Counter[str]:
        return Counter(v for _, v, _ in self.verdicts.values())

    def learn(self, audit: pl.audit) -> None:
        mode = audit._mode
        self.unshadowed.update({name: mode.reasons[name] for name in mode.unshadowed})
        self.resyncs.update(audit.memory.resyncs)
        self.default_rule.update(mode.default_rule)
        self.ops.update({info.name: info for info in mode._infos.values()})


def quiet_collector() -> None:
    """Take what lives now out of the garbage collector's sight: an audit looks at every object, and op_db has half a million."""
    gc.collect()
    gc.freeze()


def transparent(batch: list[Case], survey: Survey) -> None:
    """Run each case plain, plain and audited: "identical", "different", or "not repeatable" and "raises" as it does without us."""
    plain = {}
    for case in batch:
        plain[case.label] = fingerprint(run(case))
        again = fingerprint(run(case))
        if again != plain[case.label]:
            survey.note(case, "not repeatable", first_difference(plain[case.label], again))
    with pl.audit() as audit:
        for case in batch:
            outcome = run(case)
            with torch._C._DisableTorchDispatch():
                watched = fingerprint(outcome)
            if case.label in survey.verdicts:
                continue
            difference = first_difference(plain[case.label], watched)
            survey.note(case, "different" if difference else "raises" if outcome.error else "identical", difference or outcome.error)
    survey.learn(audit)


class _References(TorchDispatchMode):
    """Runs the vetted reference of an op's rule instead of torch's kernel."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        rule = find_rule(func)
        if rule is not None and rule.reference is not None and not func._schema.is_mutable:
            with torch._C._DisableTorchDispatch():
                return rule.reference(func, args, kwargs or {})
        return func(*args, **(kwargs or {}))


def faithful(batch: list[Case], survey: Survey) -> None:
    """Compare the twin of every floating result, gradient and mutated input with the op in fp64.

    "equal" to torch's fp64 op; "reference": to the vetted one of its rule; "decision": to the op in fp64 on the very operands of the
    program, but not on operands that only round to them, since an integer or bool of the program's is used; "wrong" otherwise.
    """
    with pl.audit() as audit:
        for case in batch:
            twins = _twins(audit, case, True)
            with torch._C._DisableTorchDispatch():
                error = _distance(twins, _truth(case, True))
            if isinstance(error, str):
                survey.note(case, "raises", error)
            elif error[0] <= EXACT:
                survey.note(case, "equal")
            elif _matches_reference(case, twins):
                survey.note(case, "reference")
            else:
                twins = _twins(audit, case, False)
                with torch._C._DisableTorchDispatch():
                    same = _distance(twins, _truth(case, False))
                fine = not isinstance(same, str) and same[0] <= EXACT
                survey.note(case, "decision" if fine else "wrong", f"{error[1]} is off by {error[0]:.1e}")
    survey.learn(audit)


def _matches_reference(case: Case, twins: Any) -> bool:
    with torch.utils._python_dispatch._disable_current_modes(), _References():
        truth = _truth(case, True)
    with torch._C._DisableTorchDispatch():
        error = _distance(twins, truth)
    return not isinstance(error, str) and error[0] <= EXACT


def _twins(audit: pl.audit, case: Case, nudge: bool) -> tuple[Outcome, list[Tensor | None]]:
    sample = case.sample
    outcome = run(case, fresh((sample.input, sample.args, sample.kwargs), lambda t: narrow_input(t, nudge)))
    floating = [t.layout == torch.strided and (t.is_floating_point() or t.is_complex()) for t in outcome.tensors]
    return outcome, [audit.shadow(t) if f else None for t, f in zip(outcome.tensors, floating, strict=True)]


def _truth(case: Case, nudge: bool) -> Outcome:
    sample = case.sample
    return run(case, fresh((sample.input, wide_dtypes(sample.args), wide_dtypes(sample.kwargs)), lambda t: wide_input(t, nudge)))


def _distance(twins: tuple[Outcome, list[Tensor | None]], truth: Outcome) -> tuple[float, str] | str:
    outcome, shadows = twins
    if outcome.error or truth.error:
        return outcome.error or f"in fp64 {truth.error}"
    if outcome.names != truth.names:
        return f"fp64 leaves {truth.names}"
    worst = (0.0, "")
    for name, twin, exact in zip(outcome.names, shadows, truth.tensors, strict=True):
        if twin is not None:
            worst = max(worst, (normwise(twin, exact), name))
    return worst
