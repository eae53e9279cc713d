"""PL302: a long-lived value that stopped moving."""

from precisionlab.checks.base import Check, Fault, check
from precisionlab.checks.facts import at_sink, event_is, measured, mentions, sink_is, unexplained
from precisionlab.checks.wording import fmt, joined, number, passing, place, sentence, share_when_known, when_known
from precisionlab.records import EventKind, Kind, SinkKind


@check
class StalledAccumulator(Check):
    """An average, a running statistic or a metric is updated in steps that its format rounds away.

    What it means
        An exponential average moves by (1 - decay) times a difference, a running mean by the difference over n. When that is below half
        the spacing of the stored value, storing the result brings back the old value: bf16 ignores a decay of 0.999 for every value.

    Why it hurts
        The average stays what it was at the start (or at the sample where n passed 256), while looking like a plausible number. A model
        evaluated with such EMA weights is the untrained model.

    How it is measured
        `accumulator_error` (0.25): error of the stored value over the distance that its twin has travelled since the first write, judged
        after `accumulator_writes` (8) in-place writes and at every doubling; after `update_steps` (3) training steps where most elements
        stand still and nothing can move them: the addends are lost, and a lerp has a weight below u. Drift of the value itself would
        not show it: an EMA that never moved is off by 1 % of its value. Source: decay * v rounds to v for every v when 1 - decay <= u/2.

    Smallest example
        import torch
        ema = torch.ones(1, dtype=torch.bfloat16)
        target = torch.tensor([2.0], dtype=torch.bfloat16)
        for _ in range(1000):
            ema.lerp_(target, 0.001)      # 1 + 0.001 rounds back to 1
        assert ema.item() == 1.0          # fp32: 1.63

    Fix
        Keep the accumulated value in fp32 and cast it only where it is used. For a plain sum or count, an fp32 or int64 carry; for many
        equal terms, sum a block first and add the block.

    When to ignore
        When the average is only printed, and the fp32 value differs by less than you read.

    Known limits
        Values rebuilt each step as a new tensor are followed only where they replace the old one in place or by name. Judged within the
        audited steps: slow averages need enough of them.
    """

    code = "PL302"
    title = "Long-lived value that stopped moving"
    kind = Kind.SWAMPING
    order = 25

    @classmethod
    def claims(cls, fault: Fault) -> bool:
        if unexplained(fault, SinkKind.ACCUMULATOR):
            return True
        return event_is(fault, EventKind.LOST) and sink_is(fault, SinkKind.ACCUMULATOR)

    @classmethod
    def message(cls, fault: Fault) -> str:
        addend, spacing = measured(fault, "addend_rms"), measured(fault, "spacing")
        error = at_sink(fault, "displacement_error")
        numbers = joined(
            f"steps of {number(addend)} beside a spacing of {number(spacing)}" if addend is not None and spacing is not None else "",
            share_when_known(fault, "displacement_error", "off by {} of the way it should have moved") if error is not None else "",
            when_known(fault, "writes", "{} writes"),
        )
        if fault.event is None:
            text = f"{place(fault)} does not follow what is written into it"
        else:
            lost = share_when_known(fault, "lost_share", " {} of")
            name = f" {fault.sink.name}" if fault.sink is not None and fault.sink.name else " a long-lived value"
            text = f"{place(fault)} updates{name} in {fmt(fault)}{passing(fault)} and loses{lost or ' most of'} each step"
        return sentence(f"{text} ({numbers})" if numbers else text)

    @classmethod
    def advice(cls, fault: Fault) -> str:
        narrow = fmt(fault, "the narrow format")
        if mentions(fault, "ema", "lerp", "average", "avg", "swa", "momentum"):
            return (
                f"Store and update this average in fp32 and cast to {narrow} only where it is used: (1 - decay) times the difference is"
                f" below half a spacing of {narrow}."
            )
        if mentions(fault, "norm", "running", "stats", "statistic", "batchnorm"):
            return "Keep running statistics in fp32 (normalisation layers in fp32; autocast leaves their buffers alone)."
        return (
            f"Keep this running value in fp32 (an fp32 carry that is cast when it is read), or count in int64: in {narrow} it stops as"
            " soon as an addend is below half its spacing."
        )
