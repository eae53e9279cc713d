"""The measuring half of an audit: memory, mode and trackers wired together, switched on and off, and read out as a ``RunRecord``."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.weak import WeakIdKeyDictionary

import precisionlab.ops.catalogue  # noqa: F401  registers every op rule
from precisionlab.backends.live import target_profile
from precisionlab.errors import SettingsError
from precisionlab.guarding import Guard, GuardedMode, GuardedModules, GuardedPatches
from precisionlab.records import Coverage, Phase, RunRecord, StepRecord, Verdict
from precisionlab.report.judge import judge
from precisionlab.report.model import Report
from precisionlab.schedule import ALL, schedule_of
from precisionlab.shadow.call import OpCall
from precisionlab.shadow.memory import ShadowMemory
from precisionlab.shadow.sites import Locator
from precisionlab.thresholds import Thresholds
from precisionlab.trackers.accumulators import Accumulators
from precisionlab.trackers.chains import Chains
from precisionlab.trackers.events import EventRules, keeps_before
from precisionlab.trackers.ledger import Ledger
from precisionlab.trackers.log import RunLog
from precisionlab.trackers.optimizer_state import OptimizerState
from precisionlab.trackers.parameters import Parameters
from precisionlab.trackers.plans import Plans, notes_on
from precisionlab.trackers.protocol import Protocol
from precisionlab.trackers.sinks import Sinks, live_tensors
from precisionlab.trackers.trials import Trials

PRESETS = ("quick", "standard", "full")
RESYNCS = ("step", "never")


class Observation:
    """Everything one audit measures with. ``session.audit`` is its public face."""

    def __init__(self, model: nn.Module | None, optimizer: Any, scaler: Any, **settings: Any) -> None:
        self.preset = _choice("preset", settings.pop("preset", "standard"), PRESETS)
        self.resync = _choice("resync", settings.pop("resync", "step"), RESYNCS)
        self.strict = bool(settings.pop("strict", os.environ.get("PRECISIONLAB_STRICT") == "1"))
        self._schedule = schedule_of(settings.pop("steps", None))
        kernels = _choice("kernels", settings.pop("kernels", "native"), ("native", "fast"))
        max_bytes = settings.pop("max_shadow_bytes", None)
        target = target_profile(settings.pop("target", None))
        self.thresholds = Thresholds.from_settings(settings)
        self._settings = {"preset": self.preset, "resync": self.resync, "kernels": kernels, "max_shadow_bytes": max_bytes, **settings}
        if target is not None:
            self._settings["target"] = target.name
        if self._schedule is not ALL:
            self._settings["observed_steps"] = self._schedule.words()
        self._model = model
        self._optimizer = optimizer
        self._scaler = scaler
        self._guard = Guard(self.strict)
        self.memory = ShadowMemory(max_bytes)
        self._log = RunLog()
        self._modules = GuardedModules(self._guard)
        self._modules.preferred = model
        self._modules.on_exit = self._module_done
        self._locator = Locator(self._modules)
        self._sinks = Sinks(self._log, self.memory, self.thresholds)
        self._parameters = Parameters(self._log, self.memory, self.thresholds)
        self._protocol = Protocol(self._log, self.memory, self._locator, self._parameters, self._sinks, self.thresholds)
        self._protocol._patches = GuardedPatches(self._guard)
        self._accumulators = Accumulators(self._log, self.memory, self.thresholds)
        self._state = OptimizerState(self._log, self.memory, self._parameters, self.thresholds)
        self._chains = Chains(self._log, self.memory, self.thresholds)
        self._protocol.handmade.on_step = self._hand_step
        plans = Plans(target, fast=kernels == "fast")
        self._rules = EventRules(self._log, self.thresholds, plans, local=self.preset != "quick", exhaustive=self.preset == "full")
        asked = target is not None or self.preset == "full"
        tried = int(self.thresholds.trial_outputs) if self.preset != "quick" else 0
        self._trials = Trials(plans, tried, asked=asked) if tried > 0 else None
        self._mode = GuardedMode(self.memory, self._locator, self, keep_before=keeps_before if self.preset != "quick" else None)
        self._mode.guard = self._guard
        court = self._protocol.court
        self._ledger = (
            Ledger(self._log, self.memory, self._locator, lambda: court.scale, self._guard.guarding) if self.preset == "full" else None
        )
        if self._ledger is not None:
            self._protocol.ledger = self._ledger
            self._modules.on_enter, self._modules.after = self._ledger.entering, self._ledger.leaving
        if kernels == "fast":
            from precisionlab.shadow.fast import fast_low_side

            self._mode.low_side = fast_low_side
        self._hooks: list[Any] = []
        self._steps: list[StepRecord] = self._protocol.court.timeline.rows
        self._stepping: list[int] = []
        self._optimizer_steps = 0
        self.unobserved_steps = 0
        self._module_outputs = 0
        self._before: dict[int, Any] = {}
        self._notes: list[str] = notes_on(target) if target is not None else []
        self._error: str | None = None
        self._active = False
        self._observing = False
        self._optimizer_params: Any = WeakIdKeyDictionary()

    # -- on and off ---------------------------------------------------------------------------------------------------------------

    def _install(self) -> None:
        first = self._schedule.observes(0)
        self._active = True
        if self._model is not None:
            self._parameters.learn_names(self._model)
        if self._scaler is not None and self._scaler.is_enabled():
            court = self._protocol.court
            court.scaled, court.with_scaler, court.scale = True, True, float(self._scaler.get_scale())
        from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

        self._hooks = [register_optimizer_step_pre_hook(self._before_step), register_optimizer_step_post_hook(self._after_step)]
        if first:
            self._observe()

    def _observe(self) -> None:
        self._modules.install()
        self._protocol.install()
        self._mode.__enter__()
        if self._ledger is not None:
            self._ledger.__enter__()
        self._observing = True

    def _rest(self) -> None:
        """Off until a later step: writes go unseen, so every twin restarts then."""
        self._look_away()
        self.memory.resyncs["steps not observed"] += len(self.memory)
        self.memory.clear()
        self._locator.sequences.clear()
        self._parameters.moves.clear()
        for by_address in (self._protocol.gradients.storages, self._protocol.gradients.weights, self._protocol.copies.weights):
            by_address.clear()  # storage addresses are used again

    def _look_away(self) -> None:
        if self._ledger is not None and self._observing:
            self._ledger.remove()
        self._observing = False
        self._mode.off()
        self._protocol.remove()
        self._modules.remove()

    def _uninstall(self) -> None:
        """Everything as it was before ``start``."""
        self._active = False
        self._look_away()
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    # -- observer of the mode -----------------------------------------------------------------------------------------------------

    def op(self, call: OpCall) -> None:
        """See ``shadow.mode.Observer``."""
        try:
            record = self._rules.op(call)
            if record is not None:
                self._steps[-1].ops += 1
                if self._trials is not None:
                    self._trials.op(call, record)
                if self._ledger is not None:
                    self._ledger.executed.append(record.site)
                for pair in call.outputs:
                    pair.twin.site = record.site
                self._protocol.op(call)
                if call.backward:
                    self._protocol.scale_history.window.op(call, self._rules.half_gradients)
                if not call.backward and not self._locator.in_optimizer:
                    if call.info.in_place:
                        self._accumulators.op(call)
                        self._protocol.handmade.op(call)
                    else:
                        self._chains.op(call)
                        if call.info.hidden_writes:
                            self._accumulators.hidden(call)
        except Exception as error:
            self._guard.caught(f"the measurement of {call.info.name}", error)
        if self._guard.after is not None:
            self._guard.after(call)

    def decision(self, call: OpCall, lo: torch.Tensor, hi: torch.Tensor) -> None:
        """See ``shadow.mode.Observer``."""
        self._seen("decisions", call, self._sinks.decision, call, lo, hi)

    def drew(self, call: OpCall) -> None:
        """See ``shadow.mode.Observer``."""
        self._seen("random numbers", None, self._protocol.recompute.drew, call)

    def used(self, call: OpCall) -> None:
        """See ``shadow.mode.Observer``."""
        self._seen("decisions", call, self._sinks.used, call)

    def read(self, call: OpCall, value: Any) -> None:
        """See ``shadow.mode.Observer``."""
        self._seen("reads", call, self._sinks.read, call, value)

    def _seen(self, where: str, call: OpCall | None, look: Callable[..., None], *args: Any) -> None:
        try:
            look(*args)
        except Exception as error:
            self._guard.caught(where, error)
        if self._guard.after is not None:
            self._guard.after(call)

    # -- hooks --------------------------------------------------------------------------------------------------------------------

    def _module_done(self, module: nn.Module, path: str, output: Any, depth: int) -> None:
        if not depth and torch._C._current_autograd_node() is None:
            self._seen("module outputs", None, self._output, module, path, output)

    def _output(self, module: nn.Module, path: str, output: Any) -> None:
        self._parameters.learn_names(module)
        self._module_outputs += 1
        _, _, place, _ = self._locator.locate()
        with torch.no_grad(), torch._C._DisableTorchDispatch():
            self._sinks.output(path, output, self._log.site(path, "module output", Phase.FORWARD, place))

    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if not self._guard.looks():
            return
        key = id(optimizer)
        if key in self._stepping:  # its last step raised
            del self._stepping[self._stepping.index(key) :]
        self._stepping.append(key)
        self._locator.in_optimizer = len(self._stepping)
        if self._observing:
            self._seen("optimizer steps", None, self._start_step, optimizer)

    def _start_step(self, optimizer: Any) -> None:
        params = self._parameters.of(optimizer)
        self._optimizer_params.update((p, True) for _, p in params)
        with torch.no_grad(), torch._C._DisableTorchDispatch():
            self._parameters.learn(params)
            self._protocol.before_step(optimizer, params)
            self._parameters.gradients(params, used=True)
            court = self._protocol.court
            divisor = court.scale if court.scaled and getattr(optimizer, "grad_scale", None) is not None else 1.0
            court.timeline.uses(params, self._parameters.histories, divisor)
            self._state.before_step(optimizer, params)
            before = self._parameters.before_step(params)
            old_hi: dict[int, torch.Tensor] = {}
            for _, p in params:
                twin = self.memory.get(p) if id(p) in before else None
                if twin is not None and twin.drift != 0.0:
                    old_hi[id(p)] = self.memory.window(p, twin).clone()
            self._before[id(optimizer)] = (before, old_hi)

    def _after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if not self._guard.looks():
            return
        if id(optimizer) in self._stepping:
            del self._stepping[self._stepping.index(id(optimizer)) :]
        self._locator.in_optimizer = len(self._stepping)
        if self._observing:
            self._seen("optimizer steps", None, self._end_step, optimizer)
        if not self._stepping:  # one optimizer inside another makes one step
            with self._guard.guarding("the count of steps"):
                self._next_step()

    def _end_step(self, optimizer: Any) -> None:
        params = self._parameters.of(optimizer)
        before, old_hi = self._before.pop(id(optimizer), ({}, {}))
        with torch.no_grad(), torch._C._DisableTorchDispatch():
            self._parameters.after_step(params, before, old_hi, type(optimizer).__name__, lambda p: self._state.of(optimizer, p))
            self._state.after_step(optimizer, params)
            if self.resync == "step":
                for _, p in params:
                    self.memory.forget(p)
                for state in optimizer.state.values():
                    for value in state.values() if isinstance(state, dict) else ():
                        if isinstance(value, torch.Tensor):
                            self.memory.forget(value)

    def _next_step(self) -> None:
        self._optimizer_steps += 1
        self._log.step += 1
        if not self._observing:
            self.unobserved_steps += 1
            self._protocol.court.steps += 1
        try:
            wanted = self._schedule.observes(self._log.step)
        except Exception as error:
            wanted = self._observing
            self._guard.caught("steps= as given", error)
        if wanted and not self._observing:
            self._observe()
        elif self._observing and not wanted:
            self._rest()
        if wanted:
            self._steps.append(StepRecord(self._log.step))

    def _hand_step(self) -> None:
        """A step that the program took without an optimizer is over."""
        self._optimizer_steps += 1
        self._log.step += 1
        self._protocol.court.steps += 1
        self._steps.append(StepRecord(self._log.step))

    def _last_look(self) -> None:
        """Judge what is still alive: gradients nobody used, and values the program holds."""
        with self._guard.guarding("the last look"), torch.no_grad():
            self._judge_the_living()

    def _judge_the_living(self) -> None:
        if self._optimizer is not None:
            self._parameters.learn(self._parameters.of(self._optimizer))
        held = live_tensors()
        leaves = [t for t in held if t.is_leaf and t.requires_grad and t not in self._optimizer_params]
        pending = [(self._parameters.name_of(p, f"leaf tensor {tuple(p.shape)}"), p) for p in leaves if p.grad is not None]
        self._parameters.gradients(pending, used=False)
        self._parameters.judge_gradients()
        self._protocol.scale_history.finish()
        self._sinks.at_exit(held)
        self._sinks.finish()

    def _judged(self) -> Report:
        record = self._record()
        try:
            report = judge(record, self.thresholds)
        except Exception as error:
            self._guard.caught("the judge", error)
            report = Report(Verdict.UNKNOWN, [], [], record, notes=[*record.notes, *self._guard.notes()])
        if report.verdict is Verdict.SAFE and (self._guard.errors or (self.strict and record.coverage.unshadowed)):
            report.verdict = Verdict.UNKNOWN
        return report

    def _record(self) -> RunRecord:
        mode = self._mode
        coverage = Coverage(
            mode.ops,
            mode.shadowed,
            dict(sorted(mode.unshadowed.items())),
            dict(sorted(mode.reasons.items())),
            dict(sorted(mode.default_rule.items())),
            dict(sorted(self.memory.resyncs.items())),
            self.memory.evicted_bytes,
            self.memory.peak_bytes,
        )
        if self._trials is not None:
            with self._guard.guarding("the trials"):
                self._trials.finish()
        notes = [*self._notes, *self._guard.notes()]
        if self.unobserved_steps:
            unseen = f"{self.unobserved_steps} of {self._optimizer_steps} steps were not observed"
            notes.append(f"{unseen} (observed: {self._schedule.words()})")
        return RunRecord(
            ops=list(self._log.ops.values()),
            events=list(self._log.events),
            sinks=list(self._log.sinks.values()),
            parameters=self._parameters.records(),
            steps=[s for s in self._steps if s.ops],
            coverage=coverage,
            environment=_environment(),
            settings=dict(self._settings),
            notes=notes,
            error=self._error,
            module_outputs=self._module_outputs,
            backwards=self._protocol.backwards,
            optimizer_steps=self._optimizer_steps + self._protocol.handmade.open,
            skipped_steps=self._protocol.skipped,
            ledger=self._ledger.record() if self._ledger is not None else None,
            scaler=self._protocol.scale_summary(),
        )


def _environment() -> dict[str, Any]:
    return {"torch": torch.__version__, "python": platform.python_version(), "threads": torch.get_num_threads(), "platform": sys.platform}


def _choice(name: str, value: Any, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        raise SettingsError(f"setting {name} cannot be {value!r}", hint=f"one of {', '.join(allowed)}")
    return str(value)
