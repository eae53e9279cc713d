"""PL508: recompute that differs."""

from precisionlab.checks.base import check
from precisionlab.checks.protocol import ProtocolCheck
from precisionlab.records import Kind


@check
class RecomputeDiffers(ProtocolCheck):
    """Activation checkpointing recomputes other values in backward than forward had computed.

    What it means
        A checkpointed block runs twice: once in forward, once more in backward to restore its activations. Under another autocast
        state, dtype or kernel the second run gives other numbers, and the gradient belongs to a function that was never evaluated.

    Why it hurts
        Gradients are slightly, sometimes badly, wrong, and nothing says so. Where a decision inside the block flips (a ReLU, a router)
        the recomputed activations do not even have the same zeros.

    How it is measured
        Results of the recomputation are compared bit for bit with those of the forward pass at the same op of the same block. No
        threshold on the fact; its verdict comes from the gradients. Source: torch.utils.checkpoint (autocast state is restored by it
        only for devices it knows).

    Smallest example
        import torch
        layer, x = torch.nn.Linear(16, 16), torch.randn(4, 16)
        with torch.autocast("cpu", torch.bfloat16):
            first = layer(x)              # forward
        again = layer(x)                  # recomputed in backward, outside autocast
        assert not torch.equal(first.float(), again)

    Fix
        Use `torch.utils.checkpoint.checkpoint(..., use_reentrant=False)`, which restores autocast and random state, and enter autocast
        inside the checkpointed function rather than around `backward()`.

    When to ignore
        When the difference is only the order of a non-deterministic reduction (bits differ, gradients agree).

    Known limits
        Seen for blocks whose two runs can be matched op by op. Hand-written recomputation is recognised only by its module.
    """

    code = "PL508"
    title = "Recomputed activations differ"
    kind = Kind.SEMANTICS
    faults = {
        "recompute-differs": (
            "is recomputed in the backward pass with another result than in the forward pass",
            "Checkpoint with use_reentrant=False and enter torch.autocast inside the checkpointed function, so that both runs see the"
            " same autocast state, dtype and random numbers.",
        ),
    }
