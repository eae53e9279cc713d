"""PL304: masters that do not match their parameters."""

from precisionlab.checks.base import check
from precisionlab.checks.protocol import ProtocolCheck
from precisionlab.records import Kind


@check
class MastersDoNotMatch(ProtocolCheck):
    """fp32 master weights and the narrow parameters they stand for hold different models.

    What it means
        Before a step, each parameter should be its master rounded once. Here they differ by far more than rounding: the masters were
        copied before a checkpoint was loaded, or one of the two was changed without the other.

    Why it hurts
        The optimizer updates the masters and copies them over the parameters: with the first step the loaded or edited weights are gone,
        without any error. The loss jumps, or training quietly restarts from the initial weights.

    How it is measured
        At each write of a master into a parameter, the parameter's jump is compared with the step itself plus one rounding; a ratio
        above 8 is a fault (healthy loops stay at 1.0). fp64 does the same, so no drift is involved. Source: calibrated
        on known faults and healthy programs (1.0 against 822).

    Smallest example
        import torch
        model = torch.nn.Linear(2, 1, bias=False).half()
        master = model.weight.detach().float()                       # copied first ...
        model.load_state_dict({"weight": torch.full((1, 2), 5.0)})   # ... loaded second
        with torch.no_grad():
            model.weight.copy_(master - 0.01)                        # a step on the stale master
        assert (model.weight.abs() < 1).all()                        # the loaded 5s are gone

    Fix
        Create or refresh the masters after loading; better, save and restore the fp32 masters themselves, so that the low bits survive.

    When to ignore
        When replacing the parameters by the masters is the intention (restoring a model from its masters).

    Known limits
        Recognised for masters that are written into parameters by copying within the audited steps.
    """

    code = "PL304"
    title = "Masters that do not match their parameters"
    kind = Kind.SEMANTICS
    faults = {
        "masters-do-not-match": (
            "overwrites a parameter with a master that does not belong to it: they differ by more than a step and a rounding",
            "Create the fp32 masters after the weights are loaded (or refresh them: master.copy_(param.float())), and checkpoint the"
            " masters themselves; whatever else edits parameters must edit the masters.",
        ),
    }
