"""Advice by op where digits are lost: additions that lose their addend, cancellation, accumulation. First match wins.

See ``range_repairs`` for how ops and idioms are recognised.
"""

from __future__ import annotations

from precisionlab.checks.base import Fault
from precisionlab.checks.facts import at_sink, mentions, op_stem, phase_is
from precisionlab.checks.families import family
from precisionlab.checks.wording import code_line, fmt
from precisionlab.records import Phase


def lost_repair(fault: Fault) -> str:
    """What to change where additions lost their addend in the forward pass."""
    stem, kind, name = op_stem(fault), family(fault), fmt(fault, "this format")
    detail = fault.event.detail if fault.event is not None else ""
    if mentions(fault, "merge", "lora"):
        return (
            f"Add the weight update in fp32 and keep the merged weight in fp32, or leave the adapter unmerged: half a spacing of {name} is"
            " larger than the update."
        )
    if detail == "write-back":
        return (
            "Keep this state in fp32 between the steps and cast only the copy that the next op reads: the wide arithmetic is undone by"
            f" storing its result in {name}."
        )
    if kind == "sum" or "cumsum" in stem or mentions(fault, "cumsum", "cumulative", "prefix", "total", "running", "average"):
        return (
            f"Carry the running sum{code_line(fault)} in fp32 (dtype=torch.float32, or an fp32 carry in the loop), or sum pairwise; cast"
            " once at the end."
        )
    if kind == "normalisation":
        return (
            "Keep running statistics in fp32 (module.float() for normalisation layers; autocast leaves them alone) and cast the"
            " activations around them."
        )
    if stem in ("add", "sub", "add_relu"):
        return (
            f"Carry the wide operand of this addition{code_line(fault)} in fp32 and cast only what each block reads: a residual stream in"
            " fp32 costs memory for one tensor, its consumers stay narrow."
        )
    if stem in ("lerp", "addcmul", "addcdiv"):
        return f"Keep the state that is moved{code_line(fault)} in fp32: each step is smaller than half its spacing in {name}."
    return f"Do the addition{code_line(fault)} in fp32 and keep its result in fp32 as long as it is added to."


def cancellation_repair(fault: Fault) -> str:
    """What to change where a difference of rounded values leaves their error behind."""
    stem = op_stem(fault)
    if phase_is(fault, Phase.OPTIMIZER):
        return (
            "Keep optimizer constants and bias corrections as Python floats (1 - beta in double) and its state in fp32; only the result"
            " may be rounded."
        )
    of_squares = mentions(fault, "mean") and mentions(fault, "pow", "square", "**")
    if of_squares or mentions(fault, "var", "std", "variance", "moment"):
        return (
            "Compute the variance as the mean of (x - x.mean())^2, or torch.var in fp32: E[x^2] - E[x]^2 subtracts two rounded numbers of"
            " nearly equal size."
        )
    if stem in ("sub", "rsub") and mentions(fault, "1 -", "1.0 -", "1. -", "one -"):
        return (
            "Form the complement exactly instead of subtracting: sigmoid(-x) for 1 - sigmoid(x), -torch.expm1(x) for 1 - exp(x), Python"
            " floats for 1 - beta."
        )
    if stem in ("log", "log2", "log10"):
        return (
            "Near 1 log loses what its argument rounded away: use torch.log1p(x - 1) with the exact x - 1, F.log_softmax, F.logsigmoid or"
            " torch.logaddexp."
        )
    if family(fault) in ("product", "convolution") or mentions(fault, "partial", "split", "chunk"):
        return (
            f"Keep the partial sums{code_line(fault)} in fp32 and add them in fp32: rounding them first costs their spacing, which is"
            " large beside a small total."
        )
    if stem in ("add", "sub", "rsub"):
        return (
            f"Keep both operands of the difference{code_line(fault)} in fp32 up to it (positions, coordinates, timestamps and partial sums"
            " must not be cast before they are subtracted), then round the difference."
        )
    if stem in ("sin", "cos", "tan", "remainder", "fmod"):
        return (
            f"Compute the angle{code_line(fault)} in fp32 and reduce it before rounding: a large angle is off by a part of a turn in"
            f" {fmt(fault, 'this format')}."
        )
    if stem in ("exp", "exp2"):
        return (
            "exp turns an absolute error of its argument into a relative one: keep the exponent in fp32, or subtract the maximum in fp32"
            " first."
        )
    return (
        f"Compute the operands of this expression{code_line(fault)} in fp32 and round its result: the error is in what arrives, not in the"
        " op."
    )


def accumulation_repair(fault: Fault) -> str:
    """What to change where an op sums in a format that is too narrow."""
    stem, kind, name = op_stem(fault), family(fault), fmt(fault, "this format")
    if kind == "scatter":
        return (
            "Keep the table (and so its gradient) in fp32 and cast what is looked up: this op adds one contribution at a time into a row"
            f" of {name}, which stops growing once a contribution is below half its spacing."
        )
    if kind == "norm":
        return (
            "Take the norm in fp64 or blockwise (the norm of the norms of chunks): a single fp32 accumulator over millions of terms loses"
            " the small ones."
        )
    if kind == "collective":
        return (
            "Reduce in fp32 (reduce_dtype=torch.float32): each hop of the ring adds one rank to a partial sum that is stored in the wire"
            " format."
        )
    if kind == "sum":
        return f"Ask the reduction for an fp32 accumulator (dtype=torch.float32){code_line(fault)}, or sum pairwise or in blocks."
    if kind in ("product", "convolution", "attention"):
        return (
            "Ask for fp32 accumulation (torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False, or the bf16 flag of"
            " the same name), or run this product in fp32."
        )
    if kind == "normalisation":
        return (
            "Run the normalisation in fp32, its weight included: the gradient of the weight sums over all tokens in the format of the"
            " weight."
        )
    return f"Run {stem or 'this op'}{code_line(fault)} in fp32: the arithmetic inside it is narrower than {name} promises."


def update_loss(fault: Fault) -> float | None:
    """Share of the update that the parameters did not receive, from the sink's efficiency; None when unknown."""
    efficiency = at_sink(fault, "efficiency")
    return None if efficiency is None else 1.0 - efficiency
