"""What one op's own arithmetic did to its result: the local, condition-aware error ratio rho.

The op is run once more in fp64 on exactly the operands the program gave it; then, element by element,

    rho = |out - y| / B        B = ulp(y)/2  +  4 * G(n) * u_acc * S  +  R

The first term is the one rounding to the storage dtype that nobody can avoid (subnormals included, so a flush to zero of what is
below half the smallest subnormal costs nothing). The second is what adding ``n`` terms in a nominal fp32 accumulator costs, on the
scale ``S`` of the terms and not of the result: cancellation is the data's doing, not the kernel's. ``R`` is what a fused kernel is
known to round inside. G(n) is sqrt(n), that of a running sum, unless the rule expects better. A rho of 1 is a perfect kernel; healthy
ones stay below 1.5 (calibrated on native kernels, tests/ops).

Zeros of either sign are equal. An element that is not finite on either side has no rho: it is counted (``introduced``). Errors
below 2^-4 u rms(y) are immaterial and count as 0.

Source: Higham, Accuracy and Stability (2002), sections 3.1 and 4.2, with sqrt(n) after Higham & Mary (2019), the factor 4 and the
materiality floor calibrated on native kernels.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from precisionlab.ops.registry import Family, How, OpRule

ACCUMULATOR_FACTOR = 4.0
"""c in front of the accumulation term."""
MATERIAL = 2.0**-4
"""Errors below this many u of the rms of the result are noise in tiny elements."""
NOMINAL_ACCUMULATOR = 2.0**-24
"""Unit roundoff of the accumulator a healthy kernel has for every storage dtype up to fp32."""

_WIDE = {torch.complex32: torch.complex128, torch.complex64: torch.complex128}
_PURE_NAMESPACES = ("aten", "prims")
"""Where an op without a rule may be run a second time; elsewhere it might talk to the network."""


@dataclass(frozen=True, slots=True)
class OutputError:
    """The local error of one floating output."""

    rho_max: float | None
    """Largest ratio; None where the rule judges nothing (unknown op, sign-ambiguous factor)."""
    rho_p99: float | None
    """The ratio that 1 % of the elements reach."""
    local_u: float
    """||out - y|| in units of u ||y||, or of the accumulation noise where that is larger (structural zeros)."""
    introduced: int
    """Elements that are finite in fp64 and not in the output."""
    out_of_range: int
    """Those among ``introduced`` whose exact value does not fit the storage dtype; the rest broke on the way."""
    lifted: int
    """Elements that are finite in the output and not in fp64 (a saturating or a skipping kernel)."""
    flushed_energy_share: float
    """Share of the energy ||y||^2 in elements that are zero in the output and not in fp64."""


@dataclass(frozen=True, slots=True)
class LocalError:
    """The local error of one op instance.

    The numbers are the worst of the judged ``outputs`` (of all, if none is judged), the counts their sums.
    """

    rho_max: float | None
    rho_p99: float | None
    local_u: float
    introduced: int
    out_of_range: int
    lifted: int
    flushed_energy_share: float
    length: int
    """n, the number of terms summed for one element."""
    share: float
    """Share of the output elements that was evaluated; below 1 the counts are those of the sample."""
    y: Any
    """The fp64 result, in the shape the op returns; None when only a sample was evaluated."""
    outputs: tuple[OutputError | None, ...]
    """One entry per output tensor, None where it is not floating or was not computed."""


# Operands.


def _rebuilt(value: Any, items: list[Any]) -> Any:
    return items if isinstance(value, list) else tuple(items)


def map_tensors(change: Callable[[Tensor], Tensor], value: Any) -> Any:
    """``change`` applied to every tensor in nested lists, tuples and dicts; everything else as it is."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, (list, tuple)):
        return _rebuilt(value, [map_tensors(change, item) for item in value])
    if isinstance(value, dict):
        return {key: map_tensors(change, item) for key, item in value.items()}
    return value


def is_floating(value: Any) -> bool:
    """A real or complex floating tensor."""
    return isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex())


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """float64 for every real floating dtype, complex128 for complex ones, others unchanged."""
    return torch.float64 if dtype.is_floating_point else _WIDE.get(dtype, dtype)


def to_fp64(args: Any, kwargs: Any, func: Any = None) -> tuple[Any, Any]:
    """Fresh fp64 copies of all floating tensors, and fp64 in place of every floating dtype argument.

    Nothing of the result shares memory with the operands, so in-place and ``out=`` overloads may write to it. With ``func``, an
    ``eps=None`` that means "the machine epsilon of the input's dtype" (``rms_norm``) becomes that number.
    """

    def widen(tensor: Tensor) -> Tensor:
        return tensor.to(wide_dtype(tensor.dtype), copy=True) if is_floating(tensor) else tensor.clone()

    def widen_all(value: Any) -> Any:
        if isinstance(value, torch.dtype):
            return wide_dtype(value)
        if isinstance(value, (list, tuple)):
            return _rebuilt(value, [widen_all(item) for item in value])
        if isinstance(value, dict):
            return {key: widen_all(item) for key, item in value.items()}
        return widen(value) if isinstance(value, Tensor) else value

    wide_args, wide_kwargs = widen_all(args), widen_all(kwargs)
    if func is None or "rms_norm" not in func._schema.name or "backward" in func._schema.name:
        return wide_args, wide_kwargs
    given = named(func, args, kwargs)
    if given.get("eps") is not None:
        return wide_args, wide_kwargs
    position = [a.name for a in func._schema.arguments].index("eps")
    eps = default_rms_eps(given["input"].dtype)
    if position < len(args):
        return (*wide_args[:position], eps, *wide_args[position + 1 :]), wide_kwargs
    return wide_args, {**wide_kwargs, "eps": eps}


def default_rms_eps(dtype: torch.dtype) -> float:
    """What ``rms_norm(eps=None)`` adds: the epsilon of the dtype it computes in, fp32 for half inputs (tests/ops measure it)."""
    return torch.finfo(torch.float64 if dtype == torch.float64 else torch.float32).eps


def named(func: Any, args: Any, kwargs: Any) -> Any:
    """The arguments of one call: a dict from schema name to value, defaults filled in."""
    bound: dict[str, Any] = {}
    for position, argument in enumerate(func._schema.arguments):
        if position < len(args):
            bound[argument.name] = args[position]
        elif argument.name in kwargs:
            bound[argument.name] = kwargs[argument.name]
        elif argument.has_default_value():
            bound[argument.name] = argument.default_value
    return bound


def on_absolute(func: Any, args: Any, kwargs: Any) -> Any:
    """The same overload on absolute values: of all floating tensors, and of the factors ``alpha`` and ``beta``."""

    def positive(value: Any) -> Any:
        return map_tensors(lambda t: t.abs() if is_floating(t) else t, value)

    names = [argument.name for argument in func._schema.arguments]
    new_args = [abs(v) if n in ("alpha", "beta") and not isinstance(v, Tensor) else positive(v) for n, v in zip(names, args, strict=False)]
    new_kwargs = {n: abs(v) if n in ("alpha", "beta") and v is not None else positive(v) for n, v in kwargs.items()}
    return func(*new_args, **new_kwargs)


def terms_per_element(x: Tensor, y: Tensor) -> int:
    """How many elements of ``x`` go into each element of ``y``."""
    return max(1, x.numel() // max(1, y.numel()))


def is_random(func: Any, args: Any, kwargs: Any) -> bool:
    """Whether running this call draws random numbers. An attention kernel with ``dropout_p=0`` does not."""
    if torch.Tag.nondeterministic_seeded not in func.tags:
        return False
    return bool(named(func, args, kwargs).get("dropout_p") != 0.0)


# Work and sampling.


def flat(value: Any) -> list[Any]:
    """The outputs of an op as a flat list (tensors, None, numbers)."""
    if isinstance(value, (list, tuple)):
        return [item for part in value for item in flat(part)]
    return [value]


def work(func: Any, args: Any, kwargs: Any, out: Any, rule: OpRule | None = None) -> int:
    """Rough cost of the fp64 run: multiply-adds for products, convolutions and attention, elements touched for the rest."""
    tensors = [t for t in (*flat(list(args)), *flat(list(kwargs.values())), *flat(out)) if isinstance(t, Tensor)]
    touched = sum(t.numel() for t in tensors)
    if rule is None or rule.family not in (Family.DOT, Family.CONVOLUTION, Family.ATTENTION):
        return touched
    if rule.family is Family.ATTENTION:
        given = named(func, args, kwargs)
        q, k = given["query"], given["key"]
        passes = 5 if "grad_out" in given else 2
        return int(passes * q.numel() * k.shape[-2])
    produced = max((t.numel() for t in flat(out) if isinstance(t, Tensor)), default=0)
    length = rule.length(func, args, kwargs, out) if rule.length else 1
    return max(touched, produced * length)


def sampled_call(func: Any, args: Any, kwargs: Any, out: Any, budget: int) -> tuple[Any, Any, Any] | None:
    """A matrix product cut to evenly spaced rows and columns, so that it costs about ``budget`` multiply-adds.

    Returns ``(args, kwargs, out)`` of the smaller call, or None where ``func`` is no product of two matrices.
    """
    packet = func.overloadpacket
    aten = torch.ops.aten
    with_bias = packet in (aten.addmm, aten.baddbmm, aten.addmv)
    if not (with_bias or packet in (aten.mm, aten.bmm, aten.mv)) or not isinstance(out, Tensor) or "out" in kwargs:
        return None
    left, right = args[1:3] if with_bias else args[:2]
    vector = right.dim() == 1
    inner = max(1, left.shape[-1])
    batches = left.shape[0] if left.dim() == 3 else 1
    columns = 1 if vector else right.shape[-1]
    cells = max(1, budget // inner)
    keep_columns = max(1, min(columns, math.isqrt(cells)))
    keep_batches = max(1, min(batches, cells // keep_columns))
    keep_rows = max(1, min(left.shape[-2], cells // (keep_columns * keep_batches)))
    keep_columns = max(1, min(columns, cells // (keep_rows * keep_batches)))

    def cut(tensor: Tensor, axis: int, size: int, keep: int) -> Tensor:
        return tensor if keep >= size else tensor.index_select(axis, torch.linspace(0, size - 1, keep, device=tensor.device).round().long())

    def cut_result(tensor: Tensor) -> Tensor:
        tensor = cut(tensor, -1 if vector else -2, left.shape[-2], keep_rows)
        tensor = tensor if vector else cut(tensor, -1, columns, keep_columns)
        return cut(tensor, 0, batches, keep_batches) if left.dim() == 3 else tensor

    small_left = cut(left, -2, left.shape[-2], keep_rows)
    small_right = right if vector else cut(right, -1, columns, keep_columns)
    if left.dim() == 3:
        small_left, small_right = cut(small_left, 0, batches, keep_batches), cut(small_right, 0, batches, keep_batches)
    rest = args[3:] if with_bias else args[2:]
    bias = (cut_result(args[0].expand(out.shape)),) if with_bias else ()
    return (*bias, small_left, small_right, *rest), kwargs, cut_result(out)


# Judging.


def half_ulp(y: Tensor, dtype: torch.dtype) -> Tensor:
    """Half the spacing of ``dtype`` at ``|y|`` (fp64 in and out), half its smallest subnormal at and near zero."""
    info = torch.finfo(dtype)
    digits = 1 - round(math.log2(info.eps))
    power = torch.nan_to_num(y / torch.frexp(y)[0], nan=0.0)  # 2^exponent exactly; the exponent itself is 0 for 0
    return power.clamp(min=2.0 * info.smallest_normal) * 2.0 ** -(digits + 1)


def judge_output(
    out: Tensor, y: Tensor, scale: Tensor | None, inner: Tensor | float, length: int, growth: float | None = None
) -> OutputError:
    """Compare one output with its fp64 value. ``scale`` None judges nothing but still measures; ``growth`` None is sqrt(length)."""
    storage = torch.finfo(out.dtype)
    u = storage.eps / 2
    u_acc = NOMINAL_ACCUMULATOR if storage.bits <= 32 else u
    wide = out.to(wide_dtype(out.dtype))
    size = y.abs()
    finite_y, finite_out = torch.isfinite(y), torch.isfinite(wide)
    both = finite_y & finite_out
    broken = finite_y & ~finite_out
    error = torch.where(both, (wide - y).abs(), 0.0)
    size = torch.where(both, size, 0.0)
    energy = float(size.square().sum())
    noise = ACCUMULATOR_FACTOR * (math.sqrt(length) if growth is None else growth) * u_acc
    terms = size if scale is None else torch.where(torch.isfinite(scale) & both, scale, size).abs()
    norm = max(math.sqrt(energy), noise / u * float(terms.square().sum().sqrt()))
    difference = float(error.square().sum().sqrt())
    rho_max = rho_p99 = None
    if scale is not None:
        bound = half_ulp(size, out.dtype) + noise * terms + inner
        ignored = error < MATERIAL * u * math.sqrt(energy / max(1, int(both.sum())))
        rho = torch.where(ignored | (error == 0), 0.0, error / bound).reshape(-1)
        rho_max = float(rho.max())
        rho_p99 = float(rho.kthvalue(max(1, math.ceil(0.99 * rho.numel())))[0])
    flushed = (wide == 0) & (size != 0)
    return OutputError(
        rho_max=rho_max,
        rho_p99=rho_p99,
        local_u=difference / (u * norm) if norm > 0 else (0.0 if difference == 0 else math.inf),
        introduced=int(broken.sum()),
        out_of_range=int((broken & (y.abs() > storage.max * (1 + u / 2))).sum()),
        lifted=int((finite_out & ~finite_y).sum()),
        flushed_energy_share=float(torch.where(flushed, size, 0.0).square().sum()) / energy if energy > 0 else 0.0,
    )


def _evaluate(func: Any, args: Any, kwargs: Any, rule: OpRule | None) -> Any:
    """The fp64 result on fp64 operands, which may be overwritten; None where torch has no fp64 kernel for it."""
    try:
        return rule.reference(func, args, kwargs) if rule is not None and rule.reference is not None else func(*args, **kwargs)
    except NotImplementedError:
        return None
    except RuntimeError as error:
        if "not implemented" in str(error) or "not supported" in str(error):
            return None
        raise


def _per_output(value: Any, count: int, missing: Any) -> list[Any]:
    parts = list(value) if isinstance(value, (list, tuple)) else [value] * (count if not isinstance(value, Tensor) else 1)
    return parts + [missing] * (count - len(parts))


def local_error(func: Any, args: Any, kwargs: Any, out: Any, rule: OpRule | None, *, sample: int | None = None) -> LocalError | None:
    """The local error of one executed op, or None where there is nothing to measure.

    ``args`` and ``kwargs`` are the program's operands as they were before the op (clones for in-place ops), ``out`` what it returned.
    ``sample`` is a budget in the units of ``work``: a costlier matrix product is judged on some of its rows and columns, any other
    costlier op not at all. None comes back for ops that draw random numbers, that only view, read or decide, that have no fp64
    kernel, and that may not be run twice. Without a rule everything but rho is measured.
    """
    if is_random(func, args, kwargs) or (rule is None and func.namespace not in _PURE_NAMESPACES):
        return None
    if rule is not None and rule.how not in (How.RERUN, How.SELECT):
        return None
    if not any(is_floating(t) and t.numel() for t in flat(out)):
        return None
    total = sum(t.numel() for t in flat(out) if is_floating(t))
    with torch.no_grad(), torch._C._DisableAutocast():
        sampled = False
        if sample is not None and work(func, args, kwargs, out, rule) > sample:
            smaller = sampled_call(func, args, kwargs, out, sample)
            if smaller is None:
                return None
            args, kwargs, out = smaller
            sampled = True
        wide_args, wide_kwargs = to_fp64(args, kwargs, func)
        run_args, run_kwargs = map_tensors(torch.clone, (wide_args, wide_kwargs)) if _may_write(func) else (wide_args, wide_kwargs)
        y = _evaluate(func, run_args, run_kwargs, rule)
        if y is None:
            return None
        return _judge(func, wide_args, wide_kwargs, out, y, rule, total, sampled)


def _may_write(func: Any) -> bool:
    return func._schema.is_mutable or "batch_norm" in func._schema.name


def _judge(func: Any, args: Any, kwargs: Any, out: Any, y: Any, rule: OpRule | None, total: int, sampled: bool) -> LocalError:
    outs, ys = flat(out), flat(y)
    ys += [None] * (len(outs) - len(ys))
    length = rule.length(func, args, kwargs, y) if rule is not None and rule.length is not None else 1
    scales = _per_output(rule.condition(func, args, kwargs, y), len(outs), None) if rule is not None and rule.condition else None
    growth = rule.growth(length) if rule is not None and rule.growth is not None else None
    results: list[OutputError | None] = []
    for position, (low, high) in enumerate(zip(outs, ys, strict=False)):
        if not is_floating(low) or not is_floating(high) or low.numel() == 0 or high.shape != low.shape:
            results.append(None)
            continue
        scale = None if rule is None else high.abs() if scales is None else scales[position]
        inner: Any = 0.0
        if rule is not None and rule.internal is not None:
            inner = _per_output(rule.internal(func, args, kwargs, y, torch.finfo(low.dtype).eps / 2), len(outs), None)[position]
        results.append(judge_output(low, high, scale, 0.0 if inner is None else inner, length, growth))
    measured = [r for r in results if r is not None]
    judged = [r for r in measured if r.rho_max is not None] or measured
    seen = sum(t.numel() for t, r in zip(outs, results, strict=True) if r is not None)
    ratios = [r for r in judged if r.rho_max is not None and r.rho_p99 is not None]
    return LocalError(
        rho_max=max((r.rho_max for r in ratios if r.rho_max is not None), default=None),
        rho_p99=max((r.rho_p99 for r in ratios if r.rho_p99 is not None), default=None),
        local_u=max((r.local_u for r in judged), default=0.0),
        introduced=sum(r.introduced for r in judged),
        out_of_range=sum(r.out_of_range for r in judged),
        lifted=sum(r.lifted for r in judged),
        flushed_energy_share=max((r.flushed_energy_share for r in judged), default=0.0),
        length=length,
        share=seen / total if sampled and total else 1.0,
        y=None if sampled else y,
        outputs=tuple(results),
    )
