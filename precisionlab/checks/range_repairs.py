"""Advice by op where the range is left: which expression to change, to what, and why that repairs it. First match wins.

An op is recognised by its stem (``facts.op_stem``) and family, so in-place, ``_foreach`` and backward overloads read like the plain op.
Where the same op has several idioms, the module path, the function name and the source line decide which one is spoken of.
"""

from __future__ import annotations

import math

from precisionlab.checks.base import Fault
from precisionlab.checks.facts import limits, measured, mentions, narrow_range, op_stem, phase_is, sink_is
from precisionlab.checks.families import family
from precisionlab.checks.wording import code_line, fmt, number
from precisionlab.records import Phase, SinkKind


def _wider(fault: Fault) -> str:
    if narrow_range(fault):
        return "fp32 (or bf16, which has the range of fp32)"
    return "fp64 or in a rescaled form (bf16 and fp32 end at the same 3.4e38)"


def overflow_repair(fault: Fault) -> str:
    """What to change where a result left the range of its format although its operands were in range."""
    stem, kind, name = op_stem(fault), family(fault), fmt(fault, "this format")
    facts = limits(fault)
    largest = facts.max if facts is not None else measured(fault, "format_max")
    term = measured(fault, "term_max_abs")
    if kind == "exponential":
        bound = f": exp leaves {name} above {number(math.log(largest))}" if largest and largest > 1.0 else ""
        return (
            f"Subtract the maximum before exp{bound} (torch.softmax, torch.logsumexp and torch.logaddexp do it themselves); mask and clamp"
            " a log-ratio before exp, not after, because inf * 0 is NaN; write log(1 + exp(x)) as F.softplus(x), and Mish as F.mish(x)."
        )
    if kind == "norm" or (kind == "power" and phase_is(fault, Phase.CLIP, Phase.OPTIMIZER, Phase.SCALER)):
        return (
            "Cast to fp32 before squaring (g.float().pow(2).sum().sqrt(), or torch.linalg.vector_norm(g, dtype=torch.float32)): a square"
            f" leaves {name} as soon as the value exceeds {_root(largest)}."
        )
    if kind == "power" and mentions(fault, "mean", "sum", "norm", "rms", "var"):
        return (
            f"Square and sum{code_line(fault)} in fp32 and round only the result (x.float().square().mean(-1), or F.rms_norm and"
            f" F.layer_norm, which do so inside): a square leaves {name} as soon as the value exceeds {_root(largest)}."
        )
    if kind == "power":
        return (
            f"Evaluate this activation or power{code_line(fault)} in fp32 and round its result, or use the fused form (F.gelu(x,"
            " approximate='tanh'), F.silu): it keeps the intermediate powers, and their derivatives, wide."
        )
    if kind == "product" and mentions(fault, "attn", "attention", "score", "q @", "query"):
        return (
            "Scale q by 1/sqrt(d) before the product instead of the scores after it, or call F.scaled_dot_product_attention, which scales"
            " first and whose fused kernels keep the scores in fp32."
        )
    if kind in ("product", "convolution") and not narrow_range(fault):
        return (
            "Rescale the operands (normalise the activations before this product, or divide its weights by a power of two where a norm"
            " reads the result): bf16 and fp32 both end at 3.4e38, so a wider format of this kind does not help."
        )
    if kind in ("product", "convolution"):
        layer = fault.event.site.module if fault.event is not None and fault.event.site.module else "this layer"
        return (
            f"Let {layer} return {_wider(fault)}, together with the addition that follows (x.float() under autocast(enabled=False)); or,"
            " where a scale-invariant norm reads the result, divide the weights that write to it by a power of two: the norm cancels the"
            " factor exactly."
        )
    if kind == "transform":
        return "Normalise the transform (norm='ortho', 1/sqrt(n) per dimension) or run it in fp32: the DC term adds all n inputs."
    at_the_end = bool(largest) and term is not None and term > 0.9 * (largest or 0.0)
    if stem in ("add", "sub", "masked_fill", "where") and (at_the_end or mentions(fault, "mask", "masked")):
        return (
            "An operand already stands at the end of the range, as a mask does: combine the masks as booleans and write the fill value"
            " once with masked_fill, instead of adding two fills or a fill and a score."
        )
    if stem in ("add", "sub", "addcmul", "lerp", "add_relu"):
        return (
            f"Keep this running sum{code_line(fault)} in {_wider(fault)} and cast only what each consumer reads; for a residual stream"
            " that a norm reads, dividing the weights that write into it by a power of two also works."
        )
    if stem in ("div", "reciprocal", "rsqrt", "true_divide"):
        return (
            f"The divisor{code_line(fault)} is too small for {name}: clamp it from below or raise eps, divide large numerators first, or"
            " do the division in fp32."
        )
    if stem in ("mul", "addcdiv", "prod", "cumprod"):
        return (
            f"Upcast the operands before the product{code_line(fault)} (x.float() * y.float()): the product of two values above"
            f" {_root(largest)} does not fit {name}; or apply the scaling factor to one operand first."
        )
    if kind in ("sum", "scatter", "softmax", "collective", "attention", "normalisation"):
        return accumulator_repair(fault)
    return (
        f"Run this expression{code_line(fault)} in {_wider(fault)}: cast the operands with .float() before it and cast the result back"
        " after it."
    )


def _root(largest: float | None) -> str:
    return number(math.floor(math.sqrt(largest))) if largest else "the square root of the largest number"


def accumulator_repair(fault: Fault) -> str:
    """What to change where a sum of finite terms left the range."""
    stem, kind, name = op_stem(fault), family(fault), fmt(fault, "this format")
    if kind == "norm":
        return (
            "Take the norm of fp32 values: torch.linalg.vector_norm(g, dtype=torch.float32), or unscale into fp32 gradients and clip"
            f" those; a norm returned in {name} ends at its largest number although every element fits."
        )
    if stem in ("mean", "var", "std", "var_mean", "std_mean", "avg_pool2d", "adaptive_avg_pool2d"):
        return (
            f"Reduce in fp32 (x.{stem.removesuffix('_mean')}(..., dtype=torch.float32) where it exists, else x.float() first): the sum"
            f" inside it leaves {name} although its result fits."
        )
    if kind == "sum":
        call = stem if stem in ("sum", "cumsum", "prod", "cumprod", "nansum") else "sum"
        return (
            f"Pass dtype=torch.float32 to the reduction (x.{call}(..., dtype=torch.float32)) and keep the result in fp32 until it has been"
            " divided or logged; the terms may stay narrow."
        )
    if kind == "softmax":
        return (
            f"Take it in fp32 (torch.{stem}(x.float(), dim)): after the maximum is subtracted each term is at most 1, but more than {name}"
            " can count are added."
        )
    if kind == "collective":
        return (
            "Reduce in fp32 (reduce_dtype=torch.float32), or divide by the world size, or its square root before and after, ahead of the"
            " reduction."
        )
    if kind in ("product", "convolution") and mentions(fault, "attn", "attention", "score", "q @", "query", "k.sum", "kv"):
        return (
            "Scale q by 1/sqrt(d) before the product; for linear attention run both products and the division in fp32 with an eps of 1e-5"
            " or more: the normaliser grows with the number of tokens."
        )
    if kind in ("product", "convolution"):
        return overflow_repair(fault)
    if kind == "transform":
        return "Normalise the transform (norm='ortho', 1/sqrt(n) per dimension) or run it in fp32: the DC term adds all n inputs."
    return f"Keep the running sum{code_line(fault)} in {_wider(fault)} and cast it once at the end."


def gradient_overflow_repair(fault: Fault) -> str:
    """What to change where a gradient left the range during the backward pass."""
    stem, kind, name = op_stem(fault), family(fault), fmt(fault, "this format")
    if kind == "collective" or mentions(fault, "all_reduce", "allreduce", "reduce_scatter", "world"):
        return (
            "Reduce gradients in fp32, or divide by the world size (its square root before and after the reduction) before they are"
            " added, not after."
        )
    if stem in ("add", "accumulate_grad", "accumulategrad") and (_accumulates(fault)):
        return (
            "Divide the loss by the number of micro-batches before backward(), or accumulate into fp32 buffers: each gradient fits"
            f" {name}, their sum does not."
        )
    if kind in ("exponential", "power") or stem in ("mul", "div", "sigmoid_backward", "tanh_backward", "softplus_backward"):
        return (
            f"The forward expression{code_line(fault)} hides the overflow and its derivative shows it: evaluate it in fp32 and round the"
            " result, or use the fused activation (F.gelu, F.mish, F.softplus), whose backward has no intermediate powers or exponentials."
        )
    if stem.startswith("binary_cross_entropy") and "logits" not in stem:
        return bce_repair()
    if kind in ("norm", "normalisation") or stem in ("sqrt", "rsqrt"):
        return (
            "The derivative of a root or a norm near 0 is huge: add eps inside the root (fp16: 1e-5 or more) or run this"
            f" part{code_line(fault)} in fp32."
        )
    return (
        "Lower the loss scale (GradScaler does it by itself; a static scale needs the largest power of two that leaves a factor 4 to"
        f" {name}'s maximum), or run this part{code_line(fault)} in fp32 or bf16: gradients here are larger than those the scale was chosen"
        " for."
    )


def _accumulates(fault: Fault) -> bool:
    return (fault.event is not None and fault.event.detail == "accumulate") or sink_is(
        fault, SinkKind.GRADIENT, SinkKind.UPDATE, SinkKind.STATE
    )


def bce_repair() -> str:
    """The repair of a cross entropy that is fed probabilities."""
    return (
        "Feed logits to F.binary_cross_entropy_with_logits (drop the sigmoid): it never forms 1 - p, which is 0 in half as soon as p"
        " rounds to 1, nor the guard 1e-12, which fp16 stores as 0."
    )


def domain_repair(fault: Fault) -> str:
    """What to change where rounded operands left the domain of a function."""
    stem, name = op_stem(fault), fmt(fault, "this format")
    function = (fault.event.detail if fault.event is not None else "") or stem
    if stem.startswith("binary_cross_entropy") and "logits" not in stem:
        return bce_repair()
    if phase_is(fault, Phase.OPTIMIZER):
        return (
            "Keep moments, eps and bias corrections of the optimizer in fp32 (or as Python floats) and the parameters in fp32 with a half"
            " copy for compute: 0 / (sqrt(0) + eps) is NaN once eps itself is 0."
        )
    if function in ("log", "log2", "log10", "log1p"):
        return (
            "Stay in log space: F.log_softmax(x, dim) for log(softmax(x)), F.logsigmoid(x) for log(sigmoid(x)), F.logsigmoid(-x) for"
            " log(1 - sigmoid(x)), torch.log1p(-p) for log(1 - p), torch.logaddexp for the log of a sum; otherwise clamp the argument to"
            f" at least the smallest normal number of {name}."
        )
    if function in ("acos", "asin", "arccos", "arcsin", "atanh"):
        return (
            "Clamp the argument to [-1, 1] (for gradients to [-1 + 1e-3, 1 - 1e-3] in fp16) after computing it in fp32; torch.atan2 of"
            " sine and cosine needs no clamp."
        )
    if function in ("sqrt", "rsqrt", "pow", "std"):
        return (
            "Clamp the argument to 0 or above before the root and add eps inside it (torch.sqrt(x.clamp_min(0) + eps)); a variance is"
            " never negative when it is computed as the mean of (x - mean)^2 in fp32."
        )
    if function in ("div", "true_divide", "reciprocal", "fmod", "remainder"):
        return (
            f"Keep the divisor{code_line(fault)} away from 0: clamp it from below, or use an eps that {name} can hold{_eps_range(fault)};"
            " to normalise weights use torch.softmax, and for 0 / 0 decide the value with torch.where on the operands."
        )
    if "softmax" in function or "softmax" in stem:
        return (
            "A row holds only -inf: keep one finite score per row (write the mask once with masked_fill and a finite fill), or zero such"
            " rows afterwards with torch.where."
        )
    if function in ("sub", "add"):
        return "inf - inf is undefined: find the earlier overflow on the same path, or subtract maxima of finite values only."
    return f"Compute the argument of {function or 'this function'}{code_line(fault)} in fp32 and clamp it to the domain before the call."


def _eps_range(fault: Fault) -> str:
    facts = limits(fault)
    if facts is None:
        smallest = measured(fault, "smallest_subnormal")
        return f" (larger than {number(smallest)})" if smallest else ""
    if facts.name == "fp16":
        return " (fp16: 1e-4 or 1e-5; anything up to 3e-8 is stored as 0)"
    return f" (any positive value above {number(facts.min_subnormal)})"


def guard_repair(fault: Fault) -> str:
    """What to do about a guard constant that its format stores as 0."""
    name, facts = fmt(fault, "this format"), limits(fault)
    smallest = measured(fault, "smallest_subnormal") or (facts.min_subnormal if facts is not None else None)
    limit = f" above its smallest positive number {number(smallest)}" if smallest else ""
    example = ", for example 1e-4 to 1e-5 (1e-6 and 1e-7 survive, but with few bits)" if name == "fp16" else ""
    return (
        f"Use a guard{limit} in {name}{example}, or do the guarded expression{code_line(fault)} in fp32, where 1e-8 and 1e-12 are ordinary"
        " numbers."
    )


def underflow_repair(fault: Fault) -> str:
    """What to change where results became zero."""
    stem, kind, name = op_stem(fault), family(fault), fmt(fault, "this format")
    if stem.startswith("binary_cross_entropy") and "logits" not in stem:
        return bce_repair()
    if stem == "sigmoid_backward" or stem == "tanh_backward":
        return (
            "The slope p (1 - p) is 0 once p rounds to 1: give the loss the logits (binary_cross_entropy_with_logits, cross_entropy) so"
            " that both factors cancel before rounding."
        )
    if kind == "softmax" or kind == "exponential":
        return (
            "Keep probabilities in log space (F.log_softmax, torch.logsumexp) or in fp32 until they have been summed: in logs the small"
            " ones keep all their bits."
        )
    if kind == "power":
        return (
            f"Square in fp32: a square is 0 in {name} when the value is below {_below_root(fault)}; for a variance or a second moment keep"
            " the sum in fp32 too."
        )
    if stem in ("_to_copy", "to_copy", "copy", "to"):
        return (
            f"Keep this tensor in fp32, or bf16 where three digits are enough, instead of casting it{code_line(fault)} to {name}; or store"
            " it multiplied by a power of two."
        )
    if stem in ("mul", "div", "prod", "cumprod"):
        return (
            f"Multiply in fp32, or reorder{code_line(fault)} so that large and small factors meet first; a long product belongs into a sum"
            " of logarithms."
        )
    return (
        f"Run this expression{code_line(fault)} in fp32 (or bf16), or scale its inputs by a power of two and divide the factor out where"
        " the values are large again."
    )


def _below_root(fault: Fault) -> str:
    facts = limits(fault)
    return number(math.sqrt(facts.min_subnormal / 2.0)) if facts is not None else "the root of its smallest number"


def constant_overflow_repair(fault: Fault) -> str:
    """What to do about a constant or a cast that becomes infinite."""
    name = fmt(fault, "this format")
    if fault.event is not None and fault.event.detail == "cast":
        return (
            f"Leave this tensor in fp32{code_line(fault)}, or bring it into range before the cast (divide by a known scale, clamp to"
            f" torch.finfo): {name} has no number this large."
        )
    if mentions(fault, "mask", "fill", "-1e", "-inf"):
        return (
            "Write the fill value as torch.finfo(x.dtype).min, or use a boolean mask with masked_fill: a literal such as -1e9 does not"
            f" exist in {name}."
        )
    return (
        f"Keep the number in Python or in fp32{code_line(fault)}: counts, factors and loss scales are scalars, and storing them in {name}"
        " saves nothing."
    )
