"""``pl.audit``: wires shadow memory, the dispatch mode and the trackers. The only module that knows them all."""

from __future__ import annotations

import functools
import platform
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import precisionlab.ops.catalogue  # noqa: F401  registers every op rule
from precisionlab.checks.judge import judge
from precisionlab.errors import AuditStateError, SettingsError
from precisionlab.ops.registry import Family
from precisionlab.records import Coverage, Phase, RunRecord, SinkKind, StepRecord
from precisionlab.report.model import Report
from precisionlab.shadow.memory import ShadowMemory
from precisionlab.shadow.mode import OpCall, ShadowMode
from precisionlab.shadow.sites import Locator, ModuleStack, Place, short_path
from precisionlab.thresholds import Thresholds
from precisionlab.trackers.accumulators import Accumulators
from precisionlab.trackers.events import EventRules, keeps_before
from precisionlab.trackers.log import RunLog
from precisionlab.trackers.parameters import Parameters
from precisionlab.trackers.protocol import Protocol
from precisionlab.trackers.sinks import Sinks, live_tensors

PRESETS = ("quick", "standard", "full")
RESYNCS = ("step", "never")

_running: audit | None = None


class audit:
    """Audit the PyTorch code that runs inside: ``with pl.audit() as a: ...``, ``@pl.audit()``, or ``a.start()`` / ``a.stop()``.

    ``model`` gives module paths, ``optimizer`` and ``scaler`` are found by themselves; all are optional. Settings: ``preset`` (quick,
    standard, full), ``resync`` (after each optimizer step the twins of weights and state restart from the real values: step; or run on:
    never), ``max_shadow_bytes``, ``strict`` (an op that cannot be shadowed makes the verdict unknown), and every threshold by name.

    Raises ``SettingsError`` for unknown settings and ``AuditStateError`` when an audit already runs.
    """

    def __init__(self, model: nn.Module | None = None, optimizer: Any = None, scaler: Any = None, **settings: Any) -> None:
        self.preset = _choice("preset", settings.pop("preset", "standard"), PRESETS)
        self.resync = _choice("resync", settings.pop("resync", "step"), RESYNCS)
        self.strict = bool(settings.pop("strict", False))
        kernels = _choice("kernels", settings.pop("kernels", "native"), ("native", "fast"))
        max_bytes = settings.pop("max_shadow_bytes", None)
        self.thresholds = Thresholds.from_settings(settings)
        self._settings = {"preset": self.preset, "resync": self.resync, "kernels": kernels, "max_shadow_bytes": max_bytes, **settings}
        self._model = model
        self._optimizer = optimizer
        self._scaler = scaler
        self.memory = ShadowMemory(max_bytes)
        self._log = RunLog()
        self._modules = ModuleStack()
        self._modules.preferred = model
        self._locator = Locator(self._modules)
        self._sinks = Sinks(self._log, self.memory, self.thresholds)
        self._parameters = Parameters(self._log, self.memory, self.thresholds)
        self._protocol = Protocol(self._log, self.memory, self._locator, self._parameters, self._sinks, self.thresholds)
        self._accumulators = Accumulators(self._log, self.memory, self.thresholds)
        self._rules = EventRules(self._log, self.thresholds, local=self.preset != "quick", exhaustive=self.preset == "full")
        self._mode = ShadowMode(self.memory, self._locator, self, keep_before=keeps_before if self.preset != "quick" else None)
        if kernels == "fast":
            from precisionlab.shadow.fast import fast_low_side

            self._mode.low_side = fast_low_side
        self._hooks: list[Any] = []
        self._steps: list[StepRecord] = [StepRecord(0)]
        self._optimizer_steps = 0
        self._module_outputs = 0
        self._before: dict[int, Any] = {}
        self._outside: set[int] = set()
        self._notes: list[str] = []
        self._error: str | None = None
        self._report: Report | None = None
        self._active = False
        self._optimizer_params: set[int] = set()

    # -- start and stop -----------------------------------------------------------------------------------------------------------

    def start(self) -> audit:
        """Begin to audit. Returns itself."""
        global _running
        if _running is not None:
            raise AuditStateError(
                "an audit is already running" if _running is not self else "this audit is already running",
                hint="stop it first, or use one audit around both parts (nested audits would measure each other)",
            )
        if self._report is not None:
            raise AuditStateError("this audit has ended", hint="make a new pl.audit() for another run")
        _running = self
        self._active = True
        if self._model is not None:
            self._parameters.learn_names(self._model)
        self._modules.on_exit = self._module_done
        self._modules.install()
        from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

        self._hooks = [register_optimizer_step_pre_hook(self._before_step), register_optimizer_step_post_hook(self._after_step)]
        self._protocol.install()
        self._mode.__enter__()
        return self

    def stop(self) -> Report:
        """End the audit and return its report."""
        if not self._active:
            raise AuditStateError("this audit is not running", hint="call start() first, or use it as a context manager")
        self._leave()
        return self.report

    def _leave(self) -> None:
        global _running
        _running = None
        self._active = False
        self._mode.__exit__(None, None, None)
        self._protocol.remove()
        self._modules.remove()
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        with torch.no_grad():
            self._last_look()
        self._report = judge(self._record(), self.thresholds)
        self.memory.clear()

    def __enter__(self) -> audit:
        return self.start()

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is not None:
            self._error = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}".rstrip(": ")
            self._notes.append(f"the program raised in step {self._log.step}: {self._error}")
        self._leave()

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def audited(*args: Any, **kwargs: Any) -> Any:
            with self:
                return function(*args, **kwargs)

        audited.audit = self  # type: ignore[attr-defined]
        return audited

    # -- results ------------------------------------------------------------------------------------------------------------------

    @property
    def report(self) -> Report:
        """The report: of the whole audit after it ended, of what was seen so far inside it."""
        return self._report if self._report is not None else judge(self._record(), self.thresholds)

    def shadow(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy of the fp64 twin of a live tensor; of the tensor itself where the audit has none. Shape as ``tensor``."""
        with torch.no_grad(), torch._C._DisableTorchDispatch():
            twin = self.memory.get(tensor)
            if twin is None:
                return tensor.detach().to(torch.complex128 if tensor.is_complex() else torch.float64, copy=True)
            return self.memory.window(tensor, twin).clone()

    def where(self, tensor: torch.Tensor) -> dict[str, Any]:
        """Which op made a live tensor: module, op, source line, drift so far in u, and the events that flowed into it."""
        with torch.no_grad(), torch._C._DisableTorchDispatch():
            twin = self.memory.get(tensor)
        if twin is None or twin.site is None:
            return {"module": "", "op": "", "source": "", "drift_u": 0.0, "events": []}
        site = twin.site
        events = [f"{e.kind} at {e.site.op} ({e.site.source})" for e in self._log.events if e.id in twin.events]
        return {
            "module": site.module,
            "op": site.op,
            "phase": str(site.phase),
            "source": site.source,
            "drift_u": twin.drift / twin.u if twin.u else 0.0,
            "events": events,
        }

    # -- observer of the mode -----------------------------------------------------------------------------------------------------

    def op(self, call: OpCall) -> None:
        """See ``shadow.mode.Observer``."""
        record = self._rules.op(call)
        if record is not None:
            self._steps[-1].ops += 1
            for pair in call.outputs:
                pair.twin.site = record.site
            self._protocol.op(call)
            if call.info.in_place and not call.backward and not self._locator.in_optimizer:
                self._accumulators.op(call)

    def decision(self, call: OpCall, lo: torch.Tensor, hi: torch.Tensor) -> None:
        """See ``shadow.mode.Observer``."""
        self._sinks.decision(call, lo, hi)

    def used(self, call: OpCall) -> None:
        """See ``shadow.mode.Observer``."""
        self._sinks.used(call)

    def read(self, call: OpCall, value: Any) -> None:
        """See ``shadow.mode.Observer``."""
        self._sinks.read(call, value)

    # -- hooks --------------------------------------------------------------------------------------------------------------------

    def _module_done(self, module: nn.Module, path: str, output: Any, depth: int) -> None:
        if depth or torch._C._current_autograd_node() is not None:
            return
        self._parameters.learn_names(module)
        self._module_outputs += 1
        _, _, place, _ = self._locator.locate()
        with torch.no_grad(), torch._C._DisableTorchDispatch():
            self._sinks.output(path, output, self._log.site(path, "module output", Phase.FORWARD, place))

    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._locator.in_optimizer += 1
        params = self._params_of(optimizer)
        self._optimizer_params.update(id(p) for _, p in params)
        with torch.no_grad(), torch._C._DisableTorchDispatch():
            self._parameters.learn(params)
            self._protocol.before_step(optimizer, params)
            self._parameters.gradients(params)
            before = self._parameters.before_step(params)
            old_hi: dict[int, torch.Tensor] = {}
            for _, p in params:
                twin = self.memory.get(p) if id(p) in before else None
                if twin is not None and twin.drift != 0.0:
                    old_hi[id(p)] = self.memory.window(p, twin).clone()
            self._before[id(optimizer)] = (before, old_hi)

    def _after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._locator.in_optimizer = max(0, self._locator.in_optimizer - 1)
        params = self._params_of(optimizer)
        before, old_hi = self._before.pop(id(optimizer), ({}, {}))
        with torch.no_grad(), torch._C._DisableTorchDispatch():
            self._parameters.after_step(params, before, old_hi, type(optimizer).__name__)
            if self.resync == "step":
                for _, p in params:
                    self.memory.forget(p)
                for state in optimizer.state.values():
                    for value in state.values() if isinstance(state, dict) else ():
                        if isinstance(value, torch.Tensor):
                            self.memory.forget(value)
        self._optimizer_steps += 1
        self._next_step()

    def _next_step(self) -> None:
        self._log.step += 1
        self._steps.append(StepRecord(self._log.step))

    def _params_of(self, optimizer: Any) -> list[tuple[str, torch.Tensor]]:
        out: list[tuple[str, torch.Tensor]] = []
        for g, group in enumerate(optimizer.param_groups):
            for i, p in enumerate(group["params"]):
                out.append((self._parameters.name_of(p, f"param_groups[{g}][{i}]"), p))
        return out

    def _last_look(self) -> None:
        """Judge what is still alive: gradients nobody used, and values the program holds."""
        leaves = [t for t in live_tensors() if t.is_leaf and t.requires_grad and id(t) not in self._optimizer_params]
        pending = [(self._parameters.name_of(p, f"leaf tensor {tuple(p.shape)}"), p) for p in leaves if p.grad is not None]
        self._parameters.gradients(pending)
        self._parameters.judge_gradients()
        ignore = {id(p.grad) for p in leaves if p.grad is not None}
        self._sinks.at_exit(ignore)
        self._sinks.finish()

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
        return RunRecord(
            ops=list(self._log.ops.values()),
            events=list(self._log.events),
            sinks=list(self._log.sinks.values()),
            parameters=self._parameters.records(),
            steps=[s for s in self._steps if s.ops],
            coverage=coverage,
            environment=_environment(),
            settings=dict(self._settings),
            notes=list(self._notes),
            error=self._error,
            module_outputs=self._module_outputs,
            backwards=self._protocol.backwards,
            optimizer_steps=self._optimizer_steps,
            skipped_steps=self._protocol.skipped,
            scaler={"timeline": self._protocol.timeline} if self._protocol.timeline else None,
        )


def _choice(name: str, value: Any, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        raise SettingsError(f"setting {name} cannot be {value!r}", hint=f"one of {', '.join(allowed)}")
    return str(value)


def _environment() -> dict[str, Any]:
    return {"torch": torch.__version__, "python": platform.python_version(), "threads": torch.get_num_threads(), "platform": sys.platform}


