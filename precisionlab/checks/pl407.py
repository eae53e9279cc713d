"""PL407: stale autocast copy."""

from precisionlab.checks.base import check
from precisionlab.checks.protocol import ProtocolCheck
from precisionlab.records import Kind


@check
class StaleAutocastCopy(ProtocolCheck):
    """A weight was changed while autocast went on using a cached narrow copy of its old value.

    What it means
        Inside one `torch.autocast` block each fp32 parameter is cast once and the copy is kept until the block ends. An optimizer step
        or a load inside the block changes the parameter, but the ops keep reading the copy.

    Why it hurts
        The model trains on the weights of the first iteration: the loss stands still or diverges although every update is right. Outside
        the block (in evaluation) the weights are the new ones, so training and evaluation disagree.

    How it is measured
        An op under autocast reads a cast copy whose source parameter has been written to since the cast. No threshold. fp64 sees the same
        stale copy, so no drift is involved. Source: torch.autocast, argument cache_enabled.

    Smallest example
        import torch
        layer, x = torch.nn.Linear(2, 1, bias=False), torch.ones(1, 2)
        with torch.autocast("cpu", torch.bfloat16):
            before = layer(x)
            layer.weight.data.zero_()             # e.g. an optimizer step
            after = layer(x)                      # still the old weight
        assert torch.equal(before, after) and layer(x).item() == 0.0

    Fix
        Enter autocast around each forward pass and loss, and keep `backward()` and `optimizer.step()` outside; or pass
        `cache_enabled=False`.

    When to ignore
        When the parameter is not used again before the block ends: then nothing is reported.

    Known limits
        Casts made by hand (`w16 = w.half()` kept across steps) are an ordinary variable of the program and not checked.
    """

    code = "PL407"
    title = "Stale autocast copy of a weight"
    kind = Kind.SEMANTICS
    faults = {
        "stale-autocast-cast": (
            "reads a narrow copy that autocast had cached before the weight was changed",
            "Enter torch.autocast separately for each forward pass, with optimizer.step() (and anything else that writes weights)"
            " outside the block, or pass cache_enabled=False: leaving the block is what empties the cache.",
        ),
    }
