"""``pl.audit``: the public face of an audit, with its start and end, its results, and its breakpoints."""

from __future__ import annotations

import functools
import inspect
import os
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from precisionlab.debugging import Breakpoints, Comparison, Hook, LastOp, Operand, compare, make_break, user_frame, where_in
from precisionlab.errors import AuditStateError, SettingsError
from precisionlab.observation import Observation
from precisionlab.report.model import Report

_running: audit | None = None


class audit(Observation):
    """Audit the PyTorch code that runs inside: ``with pl.audit() as a: ...``, ``@pl.audit()``, or ``a.start()`` / ``a.stop()``.

    ``model`` gives parameters and modules their names (else the outermost module that runs does), ``optimizer`` names parameters that
    no module has, ``scaler`` tells the loss scale at the start; all are optional and found by themselves as the program runs.
    Settings: ``preset`` (quick, standard, full), ``resync`` (after each optimizer step the twins of weights and state restart from the
    real values: step; or run on: never), ``steps`` (which to observe, see ``schedule.schedule_of``), ``max_shadow_bytes``, ``target`` (a
    profile, its file, or the name of a shipped one: the accumulation formats in the report are those of that machine), ``strict``
    (an op that cannot be shadowed makes the verdict unknown, and faults of the audit's own code raise instead of being noted; the
    default is the environment's ``PRECISIONLAB_STRICT=1``), and every threshold by name.

    A decorated function makes a new audit at each call: the last is ``function.audit``, its report ``function.report``.

    Raises ``SettingsError`` for unknown settings and ``AuditStateError`` when an audit already runs.
    """

    def __init__(self, model: nn.Module | None = None, optimizer: Any = None, scaler: Any = None, **settings: Any) -> None:
        _check_objects(model, optimizer, scaler)
        self._given = (model, optimizer, scaler, dict(settings))
        super().__init__(model, optimizer, scaler, **settings)
        self.last: LastOp | None = None
        """The op at which the audit last stopped in a debugger (see ``break_on``)."""
        self._breakpoints = Breakpoints(self, self._log, self._guard)
        self._report: Report | None = None
        self._started = ""
        self._pid = os.getpid()

    # -- start and stop -----------------------------------------------------------------------------------------------------------

    def start(self) -> audit:
        """Begin to audit. Returns itself."""
        global _running
        if _running is not None:
            raise _nested(self, _running)
        if self._report is not None:
            raise AuditStateError("this audit has ended", hint="make a new pl.audit() for another run")
        self._started = where_in(user_frame())
        self._pid, self._guard.thread = os.getpid(), threading.get_ident()
        _running = self
        try:
            self._install()
        except BaseException:
            self._uninstall()
            raise
        return self

    def stop(self) -> Report:
        """End the audit and return its report. To be called in the thread that started it."""
        if not self._active:
            raise AuditStateError("this audit is not running", hint="call start() first, or use it as a context manager")
        if self._guard.thread != threading.get_ident():
            raise AuditStateError("stop() in another thread than start()", hint="call both in the thread that runs the training")
        self._leave()
        return self.report

    def _uninstall(self) -> None:
        global _running
        if _running is self:
            _running = None
        super()._uninstall()

    def _leave(self) -> None:
        if not self._active or self._pid != os.getpid():
            return
        self._uninstall()
        self._last_look()
        self._report = self._judged()
        self.memory.clear()

    def __enter__(self) -> audit:
        return self.start()

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is not None:
            self._error = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}".rstrip(": ")
            self._notes.append(f"the program raised in step {self._log.step}: {self._error}")
        self._leave()

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise SettingsError(f"{function.__name__} runs after its call has returned", hint="with pl.audit(): inside it")

        @functools.wraps(function)
        def audited(*args: Any, **kwargs: Any) -> Any:
            model, optimizer, scaler, settings = self._given
            fresh = type(self)(model, optimizer, scaler, **settings)
            for wanted in self._breakpoints.breaks:
                fresh._breakpoints.add(wanted)
            fresh.start()
            audited.audit = fresh
            try:
                with _Started(fresh):
                    return function(*args, **kwargs)
            finally:
                audited.report = fresh.report

        audited.audit, audited.report = self, None
        return audited

    @property
    def active(self) -> bool:
        """Whether it runs now, in this process."""
        return self._active and self._pid == os.getpid()

    @property
    def in_own_thread(self) -> bool:
        """Whether this is the thread that is observed."""
        return self._guard.thread == threading.get_ident()

    # -- results ------------------------------------------------------------------------------------------------------------------

    @property
    def report(self) -> Report:
        """The report: of the whole audit after it ended, of what was seen so far inside it."""
        return self._report if self._report is not None else self._judged()

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

    def compare(self, tensor: torch.Tensor | Operand) -> Comparison:
        """A small table of where ``tensor`` (or an operand or result of ``audit.last``) differs from its fp64 twin, in ulps."""
        with torch.no_grad(), torch._C._DisableTorchDispatch():
            return compare(tensor.lo, tensor.hi) if isinstance(tensor, Operand) else compare(tensor, self.shadow(tensor))

    def break_on(self, what: Any, *, hook: Hook | None = None) -> audit:
        """Stop in a debugger, in the user's frame, at the first op with an event that would be the finding ``what``. Returns itself.

        ``what``: a code (``"PL101"``), the beginning of one (``"PL4"``), a kind (``"overflow"``), a function of an ``EventRecord``, or
        a verdict (``"broken"``; met where the sink is reached that makes it). Stops once; call again to stop again. The debugger is
        that of ``breakpoint()``, or ``hook(frame)``. What is typed there is not audited. Raises ``SettingsError`` for other words.
        """
        self._breakpoints.add(make_break(what, hook))
        return self


class _Started:
    """An audit that runs already, as a context manager."""

    def __init__(self, running: audit) -> None:
        self._running = running

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: Any) -> None:
        self._running.__exit__(*error)


def running() -> audit | None:
    """The audit that runs in this process now, also when its variable is lost: ``running().stop()``."""
    return _running


def _in_child() -> None:
    """A forked child (a data-loader worker) is not audited: it inherits everything and leaves it alone."""
    if _running is not None:
        _running._uninstall()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)


def _nested(new: audit, old: audit) -> AuditStateError:
    where = f" (started at {old._started})" if old._started else ""
    if new is old:
        return AuditStateError(f"this audit is already running{where}", hint="stop() it first; start() and `with` each start it")
    if threading.get_ident() != old._guard.thread:
        return AuditStateError(f"an audit is already running in another thread{where}", hint="one audit per process")
    return AuditStateError(
        f"an audit is already running{where}",
        hint="an audited function calls another or itself, or an earlier start() has no stop()"
        " (then precisionlab.session.running().stop()); use one audit around both parts: nested ones would measure each other",
    )


def _check_objects(model: Any, optimizer: Any, scaler: Any) -> None:
    if model is not None and not isinstance(model, nn.Module):
        hint = "@pl.audit() with brackets" if inspect.isroutine(model) else "model=the nn.Module, or nothing"
        raise SettingsError(f"model must be an nn.Module, not {type(model).__name__}", hint=hint)
    if optimizer is not None and not hasattr(optimizer, "param_groups"):
        raise SettingsError(f"optimizer must be a torch optimizer, not {type(optimizer).__name__}", hint="leave it out: they are found")
    if scaler is not None and not (hasattr(scaler, "get_scale") and hasattr(scaler, "is_enabled")):
        raise SettingsError(f"scaler must be a GradScaler, not {type(scaler).__name__}", hint="scalers are found by themselves")
