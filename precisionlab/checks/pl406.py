"""PL406: the scheduler steps on skipped iterations."""

from precisionlab.checks.base import check
from precisionlab.checks.protocol import ProtocolCheck
from precisionlab.records import Kind


@check
class SchedulerStepsOnSkips(ProtocolCheck):
    """The learning-rate schedule advances although the scaler skipped the optimizer step.

    What it means
        `scaler.step(optimizer)` leaves out the step, without a word, when gradients are non-finite. `scheduler.step()` behind it does
        not know and moves on. From the initial scale of 65536 several skips in a row are normal.

    Why it hurts
        A decaying schedule is spent on steps that never happened: with a fast decay the learning rate is a fraction of what was planned
        when training really starts, and warm-up ends before the first update.

    How it is measured
        Share of the base learning rate that skipped iterations used up: above 10 % it is a fault. fp64 follows the same skips, so no
        drift is involved. Source: calibrated on known faults and healthy programs (6e-7 against 45 %).

    Smallest example
        import torch
        weight = torch.nn.Parameter(torch.ones(1))
        optimizer = torch.optim.SGD([weight], lr=1.0)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.5)
        optimizer.step()
        for found_inf in (True, True, True):      # what GradScaler reports while it calibrates
            if not found_inf:
                optimizer.step()
            schedule.step()                       # should be inside the branch
        assert optimizer.param_groups[0]["lr"] == 0.125

    Fix
        Step the scheduler only when the optimizer stepped: compare `scaler.get_scale()` before and after `scaler.update()`; a smaller
        scale means a skip. Or start from a scale that does not overflow.

    When to ignore
        With schedules over many thousand steps a few skips change nothing, and nothing is reported.

    Known limits
        Schedules that set the learning rate by hand are seen only through the optimizer's `lr`.
    """

    code = "PL406"
    title = "Scheduler steps on skipped iterations"
    kind = Kind.SCALER
    faults = {
        "scheduler-steps-on-skips": (
            "moves the learning rate on iterations whose optimizer step the scaler had skipped",
            "Step the scheduler only after a taken step: before = scaler.get_scale(); scaler.update(); if scaler.get_scale() >= before:"
            " scheduler.step(). A lower init_scale (2^13, say) also avoids the skips themselves.",
        ),
    }
