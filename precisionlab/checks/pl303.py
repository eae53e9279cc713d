"""PL303: optimizer state or constants lost."""

from precisionlab.checks.base import Check, Fault, check
from precisionlab.checks.facts import anywhere, detail_is, event_is, measured, mentions, op_stem, phase_is, sink_is, unexplained
from precisionlab.checks.wording import code_line, counted, fmt, joined, number, place, sentence, share_when_known, when_known
from precisionlab.records import EventKind, Kind, Phase, SinkKind


@check
class OptimizerStateLost(Check):
    """An eps, a second moment, a decay or a counter of the optimizer vanishes in its format.

    What it means
        Adam's second moment holds squares: a gradient of 1e-4 gives 1e-8 * (1 - beta2), which fp16 stores as 0; at beta2 = 0.999 every
        gradient below 5.46e-3 does so in the first step. The default eps of 1e-8 is 0 in fp16 as well, and beta2 = 0.999 is 1 in bf16.

    Why it hurts
        The update divides by sqrt(v) + eps. With both 0 it is inf or NaN; with v alone 0 it is the momentum over eps, thousands of times
        too long. A decay of 1 makes the bias correction 0 / 0.

    How it is measured
        Casts, constants and results in the optimizer step and in loading its state are compared with fp64: `flush_share` (0.1) of the
        energy stored as zero, a constant rounded to 0 or 1, an integer that changed. Source: 0.001 g^2 < 2^-25
        where |g| < 5.459e-3.

    Smallest example
        import torch
        weight = torch.nn.Parameter(torch.ones(2, dtype=torch.float16))
        weight.grad = torch.zeros_like(weight)            # an unused row, say
        torch.optim.Adam([weight], lr=1e-3).step()        # 0 / (0 + eps), eps is 0
        assert weight.isnan().all()

    Fix
        Keep optimizer state in fp32 (fp32 parameters, or fp32 masters) and its constants as Python floats. After load_state_dict restore
        the saved fp32 tensors: it casts floating state to the dtype of the parameter. If state must be fp16, eps >= 1e-4.

    When to ignore
        When the lost moments belong to parameters that have no gradient in any step.

    Known limits
        Fused optimizer kernels compute in fp32 and store narrowly: only what they store is seen. Quantised (8-bit) state is taken as it
        is.
    """

    code = "PL303"
    title = "Optimizer state or constant lost"
    kind = Kind.OPTIMIZER_STATE
    order = 35

    @classmethod
    def claims(cls, fault: Fault) -> bool:
        if unexplained(fault, SinkKind.STATE):
            return True
        if phase_is(fault, Phase.FORWARD, Phase.BACKWARD) or sink_is(fault, SinkKind.ACCUMULATOR):
            return False
        in_state = sink_is(fault, SinkKind.STATE)
        if event_is(fault, EventKind.LOST):
            return in_state
        return event_is(fault, EventKind.FLUSH, EventKind.CONSTANT, EventKind.CAST) and (phase_is(fault, Phase.OPTIMIZER) or in_state)

    @classmethod
    def message(cls, fault: Fault) -> str:
        name = fmt(fault)
        if fault.event is None:
            return sentence(f"The optimizer state {place(fault)} differs from its fp64 twin")
        where = f"{place(fault)} of the optimizer" if phase_is(fault, Phase.OPTIMIZER) else place(fault)
        if event_is(fault, EventKind.CONSTANT) or detail_is(fault, "constant"):
            value, stored = anywhere(fault, "value"), anywhere(fault, "stored")
            became = {"rounds to 1": "exactly 1", "rounds to 0": "0", "constant": "0"}.get(fault.event.detail)
            became = became or (number(stored) if stored is not None else "another number")
            subject = f"the constant {number(value)}" if value is not None else "a constant"
            return sentence(f"{where} stores {subject} in {name}, where it is {became}")
        if event_is(fault, EventKind.LOST):
            lost = share_when_known(fault, "lost_share", " {} of")
            return sentence(f"{where} updates its state in {name} and loses{lost or ' most of'} each step")
        if event_is(fault, EventKind.CAST):
            before, after = when_known(fault, "example_from", "{}"), when_known(fault, "example_to", "{}")
            example = f", for example {before} becomes {after}" if before and after else ""
            return sentence(f"{where} stores {counted(fault, 'inexact', 'integers')} in {name}, which changes them{example}")
        numbers = joined(
            share_when_known(fault, "flushed_energy_share", "{} of the energy"),
            when_known(fault, "true_max_abs", "largest exact magnitude {}"),
            when_known(fault, "smallest_subnormal", f"{name} starts at {{}}"),
        )
        text = f"{where} stores {counted(fault, 'flushed')} as zero in {name}"
        return sentence(f"{text} ({numbers})" if numbers else text)

    @classmethod
    def advice(cls, fault: Fault) -> str:
        narrow = fmt(fault, "the narrow format")
        if detail_is(fault, "rounds to 1") or mentions(fault, "beta"):
            return (
                f"Keep betas and bias corrections as Python floats{code_line(fault)}: {narrow} rounds a decay this close to 1 to 1, and 1"
                " - beta is then 0."
            )
        if detail_is(fault, "constant", "rounds to 0") or mentions(fault, "eps"):
            return (
                f"Keep the state in fp32, or choose an eps that {narrow} can hold (fp16: 1e-4 or more, since eps is added to a square"
                " root): the default 1e-8 is stored as 0."
            )
        if event_is(fault, EventKind.CAST) or (event_is(fault, EventKind.LOST) and measured(fault, "addend_rms") == 1.0):
            return (
                f"Keep step counters as Python integers or in fp32{code_line(fault)}: {narrow} cannot count on from its largest exact"
                " integer."
            )
        if mentions(fault, "load", "state_dict", "restore", "resume") or op_stem(fault) in ("to_copy", "copy"):
            return (
                "Keep optimizer state in fp32 when it is loaded: load_state_dict casts floating state to the parameter's dtype, so put"
                " the saved fp32 tensors back into optimizer.state afterwards, or hold fp32 master parameters."
            )
        return (
            "Keep moments in fp32 (fp32 parameters under autocast, or fp32 master weights): a second moment holds squared gradients, which"
            f" span twice as many binades as the gradients do, and {narrow} does not have them."
        )
