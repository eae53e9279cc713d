"""Advice by op: which expression to change, to what, and why that repairs it. One function per kind of fault; first match wins.

An op is recognised by its stem (``facts.op_stem``), so in-place, ``_foreach`` and backward overloads read like the plain op. Where the
same op has several idioms, the module path, the function name and the source line decide which one is spoken of.
"""

from __future__ import annotations

import math

from precisionlab.checks.base import Fault
from precisionlab.checks.facts import at_sink, limits, measured, mentions, narrow_range, op_stem, phase_is, sink_is
from precisionlab.checks.wording import code_line, fmt, number
from precisionlab.records import Phase, SinkKind

PRODUCTS = frozenset(
    ["mm", "bmm", "addmm", "baddbmm", "addbmm", "matmul", "linear", "dot", "mv", "addmv", "einsum", "inner", "outer", "tensordot"]
)
CONVOLUTIONS = frozenset(
    ["convolution", "conv1d", "conv2d", "conv3d", "conv_transpose2d", "convolution_overrideable", "mkldnn_convolution", "cudnn_convolution"]
)
SUMS = frozenset(
    [
        "sum",
        "mean",
        "nansum",
        "cumsum",
        "prod",
        "cumprod",
        "var",
        "std",
        "var_mean",
        "std_mean",
        "trace",
        "avg_pool2d",
        "adaptive_avg_pool2d",
    ]
)
NORMS = frozenset(["linalg_vector_norm", "norm", "frobenius_norm", "dist", "cdist", "linalg_norm", "linalg_matrix_norm", "clip_grad_norm"])
SCATTERS = frozenset(
    [
        "index_add",
        "index_put",
        "scatter_add",
        "scatter_reduce",
        "embedding_dense_backward",
        "embedding_bag",
        "index_reduce",
        "segment_reduce",
    ]
)
EXPONENTIALS = frozenset(["exp", "exp2", "expm1", "sinh", "cosh", "softplus"])
SOFTMAXES = frozenset(["softmax", "log_softmax", "logsumexp", "logcumsumexp", "safe_softmax"])
POWERS = frozenset(["pow", "square", "cube", "float_power"])
COLLECTIVES = frozenset(["allreduce", "all_reduce", "reduce", "reduce_scatter", "reduce_scatter_tensor", "allreduce_coalesced"])


def _family(stem: str) -> str:
    """The idiom of an op stem: ``product``, ``sum``, ``exponential``, ...; empty when it has none."""
    plain = stem.removesuffix("_backward").removesuffix("_data")
    for name, group in (
        ("scatter", SCATTERS),
        ("product", PRODUCTS),
        ("convolution", CONVOLUTIONS),
        ("sum", SUMS),
        ("norm", NORMS),
        ("exponential", EXPONENTIALS),
        ("softmax", SOFTMAXES),
        ("power", POWERS),
        ("collective", COLLECTIVES),
    ):
        if stem in group or plain in group or plain.removesuffix("_backward_data") in group:
            return name
    if stem.startswith("index") and stem.endswith("backward"):
        return "scatter"
    if "scaled_dot_product" in stem or "attention" in stem:
        return "attention"
    if any(part in plain for part in ("layer_norm", "batch_norm", "group_norm", "rms_norm", "instance_norm")):
        return "normalisation"
    if plain.startswith(("fft", "stft")):
        return "transform"
    if "conv" in plain:
        return "convolution"
    return ""


def family(fault: Fault) -> str:
    """The idiom of the op that raised the root event."""
    return _family(op_stem(fault))


def _wider(fault: Fault) -> str:
    return (
        "fp32 (or bf16, which has the range of fp32)"
        if narrow_range(fault)
        else "fp64, or rescale it: bf16 and fp32 end at the same 3.4e38"
    )


def overflow_repair(fault: Fault) -> str:
    """What to change where a result left the range of its format although its operands were in range."""
    stem, kind, name = op_stem(fault), family(fault), fmt(fault)
    facts = limits(fault)
    largest = facts.max if facts is not None else measured(fault, "format_max")
    term = measured(fault, "term_max_abs")
    if kind == "exponential":
        bound = f": exp leaves {name} above {number(math.log(largest))}" if largest and largest > 1.0 else ""
        return (
            f"Subtract the maximum before exp{bound} (torch.softmax, torch.logsumexp and torch.logaddexp do it themselves); mask and "
            "clamp a"
            " log-ratio before exp, not after, because inf * 0 is NaN; write log(1 + exp(x)) as F.softplus(x), and Mish as F.mish(x)."
        )
    if kind == "norm" or (kind == "power" and phase_is(fault, Phase.CLIP, Phase.OPTIMIZER, Phase.SCALER)):
        return (
            f"Cast to fp32 before squaring (g.float().pow(2).sum().sqrt(), or torch.linalg.vector_norm(g, dtype=torch.float32)):"
            f" a square leaves {name} as soon as the value exceeds {_root(largest)}."
        )
    if kind == "power":
        return (
            f"Evaluate this activation or power{code_line(fault)} in fp32 and round its result, or use the fused form"
            " (F.gelu(x, approximate='tanh'), F.silu): it keeps the intermediate powers, and their derivatives, wide."
        )
    if kind == "product" and mentions(fault, "attn", "attention", "score", "q @", "query"):
        return (
            "Scale q by 1/sqrt(d) before the product instead of the scores after it, or call F.scaled_dot_product_attention, which scales"
            " and keeps the scores in fp32."
        )
    if kind in ("product", "convolution"):
        layer = fault.event.site.module if fault.event is not None and fault.event.site.module else "this layer"
        return (
            f"Let {layer} return {_wider(fault)}, together with the addition that follows (x.float() under autocast(enabled=False));"
            " or, where a scale-invariant norm reads the result, divide the weights that write to it by a power of two: the norm "
            "cancels the factor exactly."
        )
    if kind == "transform":
        return "Normalise the transform (norm='ortho', 1/sqrt(n) per dimension) or run it in fp32: the DC term adds all n inputs."
    if stem in ("add", "sub", "masked_fill", "where") and largest and term is not None and term > 0.4 * largest:
        return (
            "An operand already stands at the end of the range, as a mask does: combine the masks as booleans and write the fill "
            "value once with"
            " masked_fill, instead of adding two fills or a fill and a score."
        )
    if stem in ("add", "sub", "addcmul", "lerp", "add_relu"):
        return (
            f"Keep this running sum{code_line(fault)} in {_wider(fault)} and cast only what each consumer reads; for a residual stream"
            " that a norm"
            " reads, dividing the weights that write into it by a power of two also works."
        )
    if stem in ("div", "reciprocal", "rsqrt", "true_divide"):
        return (
            f"The divisor{code_line(fault)} is too small for {name}: clamp it from below or raise eps, divide large numerators first, "
            "or do the"
            " division in fp32."
        )
    if stem in ("mul", "addcdiv", "prod", "cumprod"):
        return (
            f"Upcast the operands before the product{code_line(fault)} (x.float() * y.float()): the product of two values above "
            f"{_root(largest)}"
            f" does not fit {name}; or apply the scaling factor to one operand first."
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
    stem, kind, name = op_stem(fault), family(fault), fmt(fault)
    if kind == "norm":
        return (
            "Take the norm of fp32 values: torch.linalg.vector_norm(g, dtype=torch.float32), or unscale into fp32 gradients and clip those;"
            f" a norm returned in {name} ends at its largest number although every element fits."
        )
    if stem in ("mean", "var", "std", "var_mean", "std_mean", "avg_pool2d", "adaptive_avg_pool2d"):
        return (
            f"Reduce in fp32 (x.{stem.removesuffix('_mean')}(..., dtype=torch.float32) where it exists, else x.float() first): the sum"
            f" inside it leaves {name} although its result fits."
        )
    if kind == "sum":
        call = stem if stem in ("sum", "cumsum", "prod", "cumprod", "nansum") else "sum"
        return (
            f"Pass dtype=torch.float32 to the reduction (x.{call}(..., dtype=torch.float32)) and keep the result in fp32 until it has "
            "been divided or"
            " logged; the terms may stay narrow."
        )
    if kind == "softmax":
        return (
            f"Take it in fp32 (torch.{stem}(x.float(), dim)): after the maximum is subtracted each term is at most 1, but more than "
            f"{name} can count are added."
        )
    if kind == "collective":
        return (
            "Reduce in fp32 (reduce_dtype=torch.float32), or divide by the world size, or its square root before and after, ahead of "
            "the reduction."
        )
    if kind in ("product", "convolution") and mentions(fault, "attn", "attention", "score", "q @", "query", "k.sum", "kv"):
        return (
            "Scale q by 1/sqrt(d) before the product; for linear attention run both products and the division in fp32 with an eps of "
            "1e-5 or more:"
            " the normaliser grows with the number of tokens."
        )
    if kind in ("product", "convolution"):
        return overflow_repair(fault)
    if kind == "transform":
        return "Normalise the transform (norm='ortho', 1/sqrt(n) per dimension) or run it in fp32: the DC term adds all n inputs."
    return f"Keep the running sum{code_line(fault)} in {_wider(fault)} and cast it once at the end."


def gradient_overflow_repair(fault: Fault) -> str:
    """What to change where a gradient left the range during the backward pass."""
    stem, kind, name = op_stem(fault), family(fault), fmt(fault)
    if kind == "collective" or mentions(fault, "all_reduce", "allreduce", "reduce_scatter", "world"):
        return (
            "Reduce gradients in fp32, or divide by the world size (its square root before and after the reduction) before they are "
            "added, not after."
        )
    if stem in ("add", "accumulate_grad", "accumulategrad") and (_accumulates(fault)):
        return (
            "Divide the loss by the number of micro-batches before backward(), or accumulate into fp32 buffers: each gradient fits "
            f"{name}, their sum"
            " does not."
        )
    if kind in ("exponential", "power") or stem in ("mul", "div", "sigmoid_backward", "tanh_backward", "softplus_backward"):
        return (
            f"The forward expression{code_line(fault)} hides the overflow and its derivative shows it: evaluate it in fp32 and round "
            "the result, or use"
            " the fused activation (F.gelu, F.mish, F.softplus), whose backward has no intermediate powers or exponentials."
        )
    if stem.startswith("binary_cross_entropy") and "logits" not in stem:
        return bce_repair()
    if kind in ("norm", "normalisation") or stem in ("sqrt", "rsqrt"):
        return (
            "The derivative of a root or a norm near 0 is huge: add eps inside the root (fp16: 1e-5 or more) or run this "
            f"part{code_line(fault)} in fp32."
        )
    return (
        "Lower the loss scale (GradScaler does it by itself; a static scale needs the largest power of two that leaves a factor 4 to "
        f"{name}'s maximum), or run"
        f" this part{code_line(fault)} in fp32 or bf16: gradients here are larger than those the scale was chosen for."
    )


def _accumulates(fault: Fault) -> bool:
    return (fault.event is not None and fault.event.detail == "accumulate") or sink_is(
        fault, SinkKind.GRADIENT, SinkKind.UPDATE, SinkKind.STATE
    )


def bce_repair() -> str:
    """The repair of a cross entropy that is fed probabilities."""
    return (
        "Feed logits to F.binary_cross_entropy_with_logits (drop the sigmoid): it never forms 1 - p, which is 0 in half as soon as p "
        "rounds to 1,"
        " nor the guard 1e-12, which fp16 stores as 0."
    )


def domain_repair(fault: Fault) -> str:
    """What to change where rounded operands left the domain of a function."""
    stem, name = op_stem(fault), fmt(fault)
    function = (fault.event.detail if fault.event is not None else "") or stem
    if stem.startswith("binary_cross_entropy") and "logits" not in stem:
        return bce_repair()
    if phase_is(fault, Phase.OPTIMIZER):
        return (
            "Keep moments, eps and bias corrections of the optimizer in fp32 (or as Python floats) and the parameters in fp32 with a "
            "half copy for"
            " compute: 0 / (sqrt(0) + eps) is NaN once eps itself is 0."
        )
    if function in ("log", "log2", "log10", "log1p"):
        return (
            "Stay in log space: F.log_softmax(x, dim) for log(softmax(x)), F.logsigmoid(x) for log(sigmoid(x)), F.logsigmoid(-x) for"
            " log(1 - sigmoid(x)), torch.log1p(-p) for log(1 - p), torch.logaddexp for the log of a sum; otherwise clamp the argument"
            " to at least"
            f" the smallest normal number of {name}."
        )
    if function in ("acos", "asin", "arccos", "arcsin", "atanh"):
        return (
            "Clamp the argument to [-1, 1] (for gradients to [-1 + 1e-3, 1 - 1e-3] in fp16) after computing it in fp32; torch.atan2 "
            "of sine and cosine needs no clamp."
        )
    if function in ("sqrt", "rsqrt", "pow", "std"):
        return (
            "Clamp the argument to 0 or above before the root and add eps inside it (torch.sqrt(x.clamp_min(0) + eps)); a variance is"
            " never negative"
            " when it is computed as the mean of (x - mean)^2 in fp32."
        )
    if function in ("div", "true_divide", "reciprocal", "fmod", "remainder"):
        return (
            f"Keep the divisor{code_line(fault)} away from 0: clamp it from below, or use an eps that {name} can "
            f"hold{_eps_range(fault)}; to normalise"
            " weights use torch.softmax, and for 0 / 0 decide the value with torch.where on the operands."
        )
    if "softmax" in function or "softmax" in stem:
        return (
            "A row holds only -inf: keep one finite score per row (write the mask once with masked_fill and a finite fill), or zero "
            "such rows afterwards with torch.where."
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
    name, facts = fmt(fault), limits(fault)
    smallest = measured(fault, "smallest_subnormal") or (facts.min_subnormal if facts is not None else None)
    limit = f" above its smallest positive number {number(smallest)}" if smallest else ""
    example = ", for example 1e-4 to 1e-5 (1e-6 and 1e-7 survive, but with few bits)" if name == "fp16" else ""
    return (
        f"Use a guard{limit} in {name}{example}, or do the guarded expression{code_line(fault)} in fp32, where 1e-8 and 1e-12 are "
        "ordinary numbers."
    )


def underflow_repair(fault: Fault) -> str:
    """What to change where results became zero."""
    stem, kind, name = op_stem(fault), family(fault), fmt(fault)
    if stem.startswith("binary_cross_entropy") and "logits" not in stem:
        return bce_repair()
    if stem == "sigmoid_backward" or stem == "tanh_backward":
        return (
            "The slope p (1 - p) is 0 once p rounds to 1: give the loss the logits (binary_cross_entropy_with_logits, cross_entropy) "
            "so that both factors cancel before rounding."
        )
    if kind == "softmax" or kind == "exponential":
        return (
            "Keep probabilities in log space (F.log_softmax, torch.logsumexp) or in fp32 until they have been summed: in logs the "
            "small ones keep all their bits."
        )
    if kind == "power":
        return (
            f"Square in fp32: a square is 0 in {name} when the value is below {_below_root(fault)}; for a variance or a second moment "
            "keep the sum in fp32 too."
        )
    if stem in ("_to_copy", "to_copy", "copy", "to"):
        return (
            f"Keep this tensor in fp32, or bf16 where three digits are enough, instead of casting it{code_line(fault)} to {name}; or "
            "store it multiplied by a power of two."
        )
    if stem in ("mul", "div", "prod", "cumprod"):
        return (
            f"Multiply in fp32, or reorder{code_line(fault)} so that large and small factors meet first; a long product belongs into a"
            " sum of logarithms."
        )
    return (
        f"Run this expression{code_line(fault)} in fp32 (or bf16), or scale its inputs by a power of two and divide the factor out "
        "where the values are large again."
    )


def _below_root(fault: Fault) -> str:
    facts = limits(fault)
    return number(math.sqrt(facts.min_subnormal / 2.0)) if facts is not None else "the root of its smallest number"


def lost_repair(fault: Fault) -> str:
    """What to change where additions lost their addend in the forward pass."""
    stem, kind, name = op_stem(fault), family(fault), fmt(fault)
    detail = fault.event.detail if fault.event is not None else ""
    if mentions(fault, "merge", "lora"):
        return (
            "Add the weight update in fp32 and keep the merged weight in fp32, or leave the adapter unmerged: half a spacing of "
            f"{name} is larger than the update."
        )
    if detail == "write-back":
        return (
            "Keep this state in fp32 between the steps and cast only the copy that the next op reads: the wide arithmetic is undone "
            f"by storing its result in {name}."
        )
    if kind == "sum" or "cumsum" in stem or mentions(fault, "cumsum", "cumulative", "prefix", "total", "running", "average"):
        return (
            f"Carry the running sum{code_line(fault)} in fp32 (dtype=torch.float32, or an fp32 carry in the loop), or sum pairwise; "
            "cast once at the end."
        )
    if kind == "normalisation":
        return (
            "Keep running statistics in fp32 (module.float() for normalisation layers; autocast leaves them alone) and cast the "
            "activations around them."
        )
    if stem in ("add", "sub", "add_relu"):
        return (
            f"Carry the wide operand of this addition{code_line(fault)} in fp32 and cast only what each block reads: a residual stream"
            " in fp32 costs memory for one"
            " tensor, its consumers stay narrow."
        )
    if stem in ("lerp", "addcmul", "addcdiv"):
        return f"Keep the state that is moved{code_line(fault)} in fp32: each step is smaller than half its spacing in {name}."
    return f"Do the addition{code_line(fault)} in fp32 and keep its result in fp32 as long as it is added to."


def cancellation_repair(fault: Fault) -> str:
    """What to change where a difference of rounded values leaves their error behind."""
    stem = op_stem(fault)
    if phase_is(fault, Phase.OPTIMIZER):
        return (
            "Keep optimizer constants and bias corrections as Python floats (1 - beta in double) and its state in fp32; only the "
            "result may be rounded."
        )
    if mentions(fault, "var", "mean", "std", "moment"):
        return (
            "Compute the variance as the mean of (x - x.mean())^2, or torch.var in fp32: E[x^2] - E[x]^2 subtracts two rounded "
            "numbers of nearly equal size."
        )
    if stem in ("sub", "rsub") and mentions(fault, "1 -", "1.0 -", "1. -", "one -"):
        return (
            "Form the complement exactly instead of subtracting: sigmoid(-x) for 1 - sigmoid(x), -torch.expm1(x) for 1 - exp(x), "
            "Python floats for 1 - beta."
        )
    if stem in ("log", "log2", "log10"):
        return (
            "Near 1 log loses what its argument rounded away: use torch.log1p(x - 1) with the exact x - 1, F.log_softmax, "
            "F.logsigmoid or torch.logaddexp."
        )
    if family(fault) in ("product", "convolution") or mentions(fault, "partial", "split"):
        return (
            f"Keep the partial sums{code_line(fault)} in fp32 and add them in fp32: rounding them first costs their spacing, which is "
            "large beside a small total."
        )
    if stem in ("add", "sub", "rsub"):
        return (
            f"Keep both operands of the difference{code_line(fault)} in fp32 up to it (positions, coordinates, timestamps and partial "
            "sums must not be cast before they"
            " are subtracted), then round the difference."
        )
    if stem in ("sin", "cos", "tan", "remainder", "fmod"):
        return (
            f"Compute the angle{code_line(fault)} in fp32 and reduce it before rounding: a large angle in {fmt(fault)} is off by a "
            "part of a turn."
        )
    if stem in ("exp", "exp2"):
        return (
            "exp turns an absolute error of its argument into a relative one: keep the exponent in fp32, or subtract the maximum in "
            "fp32 first."
        )
    return (
        f"Compute the operands of this expression{code_line(fault)} in fp32 and round its result: the error is in what arrives, not in"
        " the op."
    )


def accumulation_repair(fault: Fault) -> str:
    """What to change where an op sums in a format that is too narrow."""
    stem, kind, name = op_stem(fault), family(fault), fmt(fault)
    if kind == "scatter":
        return (
            "Keep the table (and so its gradient) in fp32 and cast what is looked up: this op adds one contribution at a time into a row of"
            f" {name}, which stops growing once a contribution is below half its spacing."
        )
    if kind == "norm":
        return (
            "Take the norm in fp64 or blockwise (the norm of the norms of chunks): a single fp32 accumulator over millions of terms "
            "loses the small ones."
        )
    if kind == "collective":
        return (
            "Reduce in fp32 (reduce_dtype=torch.float32): each hop of the ring adds one rank to a partial sum that is stored in the "
            "wire format."
        )
    if kind == "sum":
        return f"Ask the reduction for an fp32 accumulator (dtype=torch.float32){code_line(fault)}, or sum pairwise or in blocks."
    if kind in ("product", "convolution", "attention"):
        return (
            "Ask for fp32 accumulation (torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False, or the bf16 flag "
            "of the same name),"
            " or run this product in fp32."
        )
    if kind == "normalisation":
        return (
            "Run the normalisation in fp32, its weight included: the gradient of the weight sums over all tokens in the format of the"
            " weight."
        )
    return f"Run {stem or 'this op'}{code_line(fault)} in fp32: the arithmetic inside it is narrower than {name} promises."


def constant_overflow_repair(fault: Fault) -> str:
    """What to do about a constant or a cast that becomes infinite."""
    name = fmt(fault)
    if fault.event is not None and fault.event.detail == "cast":
        return (
            f"Leave this tensor in fp32{code_line(fault)}, or bring it into range before the cast (divide by a known scale, clamp to "
            f"torch.finfo): {name} has no number this large."
        )
    if mentions(fault, "mask", "fill", "-1e", "-inf"):
        return (
            "Write the fill value as torch.finfo(x.dtype).min, or use a boolean mask with masked_fill: a literal such as -1e9 does "
            f"not exist in {name}."
        )
    return (
        f"Keep the number in Python or in fp32{code_line(fault)}: counts, factors and loss scales are scalars, and storing them in "
        f"{name} saves nothing."
    )


def update_loss(fault: Fault) -> float | None:
    """Share of the update that the parameters did not receive, from the sink's efficiency; None when unknown."""
    efficiency = at_sink(fault, "efficiency")
    return None if efficiency is None else 1.0 - efficiency
