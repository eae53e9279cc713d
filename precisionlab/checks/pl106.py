"""PL106: an integer that the format cannot hold."""

from precisionlab.checks.base import Check, Fault, check
from precisionlab.checks.facts import detail_is, event_is, limits, mentions
from precisionlab.checks.wording import code_line, counted, fmt, joined, passing, place, sentence, when_known
from precisionlab.records import EventKind, Kind

_DETAILS = ("", "integer to float", "float to integer")


@check
class InexactInteger(Check):
    """An id, a position, a count or a timestep is stored in a format that has no such integer.

    What it means
        A format with p significant bits holds every integer up to 2^p: 256 in bf16, 2048 in fp16, 16777216 in fp32. Beyond it only
        multiples of 2, 4, 8, ... exist: 257 becomes 256 in bf16, 30000 becomes 29952, and above 65519 fp16 has only inf.

    Why it hurts
        A token id that moved by one looks up another row, without any NaN. Neighbouring positions collapse: of the positions 0..4095
        bf16 tells 769 apart, so rotary and sinusoidal encodings repeat. A count that became inf makes a mean 0 or NaN.

    How it is measured
        Conversions between integers and floats are compared with the exact value, and floats that hold exact integers in fp64 with
        what became of them. No threshold: the verdict comes from the decision, index or output that differs, with `decision_share`
        (0.05) for indices. Source: IEEE 754 (integers up to 2^p are exact), calibrated on known faults and healthy programs.

    Smallest example
        import torch
        ids = torch.tensor([255, 257, 30000])
        wrong = ids.to(torch.bfloat16).long()        # [255, 256, 29952]
        positions = torch.arange(4096).to(torch.bfloat16)
        assert wrong.tolist() == [255, 256, 29952]
        assert positions.unique().numel() == 769

    Fix
        Cast only floating-point entries of a batch and leave ids alone (`t.to(dtype) if t.is_floating_point() else t`). Build positions,
        timesteps and angles in fp32 or int64 and round sin and cos, not their argument. Keep counts in Python or int64.

    When to ignore
        When the integers are only magnitudes (a size used as a weight) and a relative error of 2^-9 does not matter.

    Known limits
        Integers that a program keeps in a float on purpose (quantised codes) look the same. Integers packed bitwise into floats are
        not followed.
    """

    code = "PL106"
    title = "Integer that the format cannot hold"
    kind = Kind.RANGE_CAST
    order = 45

    @classmethod
    def claims(cls, fault: Fault) -> bool:
        if event_is(fault, EventKind.OVERFLOW):
            return detail_is(fault, "integer")
        return event_is(fault, EventKind.CAST) and detail_is(fault, *_DETAILS)

    @classmethod
    def message(cls, fault: Fault) -> str:
        event = fault.event
        if event is not None and event.kind is EventKind.OVERFLOW:
            numbers = joined(
                when_known(fault, "true_max_abs", "largest integer {}"), when_known(fault, "format_max", f"{fmt(fault)} ends at {{}}")
            )
            text = f"{place(fault)} stores an integer in {fmt(fault)}{passing(fault)}, where it becomes infinite"
            return sentence(f"{text} ({numbers})" if numbers else text)
        before = when_known(fault, "example_from", "{}")
        after = when_known(fault, "example_to", "{}")
        example = f", for example {before} becomes {after}" if before and after else ""
        if detail_is(fault, "float to integer"):
            text = f"{place(fault)} converts {counted(fault, 'inexact')} to integers after {fmt(fault)} had rounded them{passing(fault)}"
        else:
            text = f"{place(fault)} changes {counted(fault, 'inexact', 'integers')} by storing them in {fmt(fault)}{passing(fault)}"
        return sentence(text + example)

    @classmethod
    def advice(cls, fault: Fault) -> str:
        facts = limits(fault)
        exact = f" ({facts.name} holds every integer only up to {facts.largest_exact_integer})" if facts is not None else ""
        if mentions(fault, "pos", "rope", "rotary", "arange", "freq", "freqs", "position", "timestep", "cumsum"):
            return (
                f"Build positions, timesteps and angles in fp32 or int64{code_line(fault)} and round only their sine, cosine or"
                f" embedding{exact}."
            )
        if mentions(fault, "count", "numel", "size", "len("):
            return f"Keep the count as a Python number or in int64 and divide in fp32{code_line(fault)}{exact}."
        return (
            f"Leave integers alone{code_line(fault)}: cast floating-point tensors only (t.to(dtype) if t.is_floating_point() else t), and"
            f" convert ids and indices to int64 before any float sees them{exact}."
        )
