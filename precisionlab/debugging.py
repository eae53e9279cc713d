"""At a breakpoint: when to stop (``audit.break_on``), in which frame, what the op held, and how far a tensor is from its twin."""

from __future__ import annotations

import bdb
import builtins
import difflib
import linecache
import os
import pdb
import sys
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from html import escape
from types import CodeType, FrameType
from typing import Any

import torch

from precisionlab.checks.base import Fault, all_checks, check_for
from precisionlab.errors import SettingsError
from precisionlab.guarding import Guard
from precisionlab.records import EventRecord, Kind, Phase, SinkKind, SinkRecord, Verdict
from precisionlab.report.model import Finding
from precisionlab.shadow.call import UNMEASURED, OpCall, Pair
from precisionlab.shadow.memory import UNIT_ROUNDOFF
from precisionlab.shadow.sites import _classify
from precisionlab.trackers.log import RunLog

Tensor = torch.Tensor
Predicate = Callable[[EventRecord], Any]
Hook = Callable[[FrameType], Any]


# -- when to stop -----------------------------------------------------------------------------------------------------------------


@dataclass
class Break:
    """One ``break_on``: stops once. An event is met where it is raised, a finding where the sink that makes it is reached."""

    event: Predicate
    finding: Callable[[Finding], bool]
    words: str
    hook: Hook | None = None


def make_break(what: Any, hook: Hook | None) -> Break:
    """A finding code (``PL101``), the beginning of one (``PL4``), a verdict, a kind of fault, or a function of an ``EventRecord``.

    Raises ``SettingsError`` for anything else, naming what is near.
    """
    import precisionlab.checks.catalogue  # noqa: F401  registers the checks

    if callable(what) and not isinstance(what, str):
        return Break(what, lambda finding: False, getattr(what, "__name__", "the predicate"), hook)
    word = str(what)
    if word in (str(Verdict.RISKY), str(Verdict.BROKEN)):
        least = Verdict(word).severity
        return Break(lambda event: False, lambda finding: finding.verdict.severity >= least, f"a finding that is {word}", hook)
    if word in set(map(str, Kind)):
        return Break(lambda event: word in _kinds(event), lambda f: f.kind == word, word, hook)
    prefix = word.upper()
    known = list(all_checks())
    if word and any(code.startswith(prefix) for code in known):
        return Break(
            lambda event: any(c.startswith(prefix) for c in candidate_codes(event)), lambda f: f.code.startswith(prefix), prefix, hook
        )
    near = difflib.get_close_matches(word, [*known, *map(str, Kind), "broken", "risky"], n=1)
    raise SettingsError(
        f"break_on cannot stop at {what!r}",
        hint=f"did you mean {near[0]!r}?" if near else "a code (PL101), the beginning of one (PL4), broken, risky, or a kind (overflow)",
    )


def candidate_codes(event: EventRecord) -> frozenset[str]:
    """Codes of the findings that ``event`` may become, whichever sink it reaches."""
    import precisionlab.checks.catalogue  # noqa: F401  registers the checks

    sinks: Iterable[SinkRecord | None] = (
        None,
        *(SinkRecord(kind, "", event.site, frozenset((event.id,)), Verdict.BROKEN, "") for kind in SinkKind),
    )
    found = (check_for(Fault(event, sink, Verdict.BROKEN, (sink,) if sink is not None else ())) for sink in sinks)
    return frozenset(check.code for check in found if check is not None)


def _kinds(event: EventRecord) -> set[str]:
    return {str(all_checks()[code].kind) for code in candidate_codes(event)}


def sentence_of(event: EventRecord) -> tuple[str, str]:
    """Code and message of the finding that ``event`` alone would be."""
    fault = Fault(event, None, Verdict.BROKEN)
    check = check_for(fault)
    return (check.code, check.message(fault)) if check is not None else ("", str(event.kind))


class Breakpoints:
    """The breaks of one audit. It spies on the log only once there are any, so that audits without them pay nothing."""

    def __init__(self, audit: Any, log: RunLog, guard: Guard) -> None:
        self.breaks: list[Break] = []
        self._audit = audit
        self._log = log
        self._guard = guard
        self._hit: tuple[Break, EventRecord | Finding] | None = None
        self._judge_again = False

    def add(self, wanted: Break) -> None:
        """Watch for ``wanted`` from now on."""
        if not self.breaks:
            self._event, self._sink = self._log.event, self._log.sink
            self._log.event, self._log.sink = self._spy_event, self._spy_sink  # type: ignore[method-assign]
            self._guard.after = self.check
        self.breaks.append(wanted)

    def _spy_event(self, *args: Any, **kwargs: Any) -> int:
        known = self._event(*args, **kwargs)
        record = self._log.events[known]
        for wanted in list(self.breaks) if self._hit is None else ():
            try:
                met = wanted.event(record)
            except Exception as error:
                self.breaks.remove(wanted)
                said = f"{type(error).__name__}: {error}"
                print(f"precisionlab: break_on: {wanted.words} raised {said}; it is off", file=sys.stderr)
                self._guard.errors.setdefault(f"the predicate {wanted.words} of break_on", (1, said))
                continue
            if met:
                self._hit = (wanted, record)
                break
        return known

    def _spy_sink(self, *args: Any, **kwargs: Any) -> None:
        before = len(self._log.sinks)
        self._sink(*args, **kwargs)
        self._judge_again = self._judge_again or len(self._log.sinks) > before

    def check(self, call: OpCall | None) -> None:
        """After each look of the audit: stop where a break was met. Raises what the debugger or hook raises."""
        if self._judge_again and self._hit is None:
            self._judge_again = False
            findings = self._audit.report.findings
            self._hit = next(((wanted, f) for wanted in self.breaks for f in findings if wanted.finding(f)), None)
        if self._hit is None:
            return
        (wanted, met), self._hit = self._hit, None
        if wanted in self.breaks:
            self.breaks.remove(wanted)
        self._stop(wanted, met, call)

    def _stop(self, wanted: Break, met: EventRecord | Finding, call: OpCall | None) -> None:
        frame = user_frame()
        site = met.site if isinstance(met, EventRecord) else met
        code, text = sentence_of(met) if isinstance(met, EventRecord) else (met.code, f"{met.verdict}: {met.message}")
        with torch.no_grad(), torch._C._DisableTorchDispatch():
            here = f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
            self._audit.last = LastOp.of(call, here) if call is not None else LastOp(site.op, site.module, site.phase, site.source)
        print(
            f"precisionlab: stopped for {wanted.words} in step {self._log.step}, at {where_in(frame)}\n"
            f"  {code}: {text}\n"
            "  try: print(audit.last), audit.compare(tensor), audit.where(tensor), audit.shadow(tensor)",
            file=sys.stderr,
            flush=True,
        )
        try:
            stop_in(frame, self._audit, wanted.hook, self._guard.sleeping)
        except BaseException as error:
            self._guard.passing = error
            raise


# -- where to stop ----------------------------------------------------------------------------------------------------------------


def user_frame() -> FrameType:
    """The innermost running frame that is neither torch's nor ours."""
    frame: FrameType | None = sys._getframe(1)
    last = frame
    while frame is not None:
        last = frame
        if _classify(frame.f_code) is True:
            return frame
        frame = frame.f_back
    assert last is not None
    return last


class _Debugger(pdb.Pdb):
    """pdb that opens its prompt at once in the given frame, with the audit asleep whenever it is open."""

    def __init__(self, sleeping: Callable[[], AbstractContextManager[None]]) -> None:
        super().__init__()
        self._sleeping = sleeping

    def interaction(self, frame: Any, trace: Any) -> None:
        with self._sleeping():
            super().interaction(frame, trace)

    def open_in(self, frame: FrameType) -> None:
        """The prompt, and stepping afterwards where the user asked for it (n and s both go to the next line of ``frame``).

        Raises ``bdb.BdbQuit`` when the user quits.
        """
        self.reset()
        self.interaction(frame, None)
        if self.quitting:
            raise bdb.BdbQuit
        if self.stoplineno == -1 and not self.breaks:
            return
        outer: FrameType | None = frame
        while outer is not None:
            outer.f_trace = self.trace_dispatch
            self.botframe = outer
            outer = outer.f_back
        if self.stoplineno != -1 and self.returnframe is None:
            self.set_next(frame)
        sys.settrace(self.trace_dispatch)


def stop_in(frame: FrameType, audit: Any, hook: Hook | None, sleeping: Callable[[], AbstractContextManager[None]]) -> None:
    """Hand over to ``hook``, the configured debugger, or pdb, in ``frame``; ``audit`` is a name there while it lasts."""
    own = "audit" not in vars(builtins)
    if own:
        builtins.audit = audit  # type: ignore[attr-defined]
    try:
        if hook is not None:
            with sleeping():
                hook(frame)
        elif sys.breakpointhook is not sys.__breakpointhook__ or os.environ.get("PYTHONBREAKPOINT", "") not in ("", "pdb.set_trace"):
            with sleeping():
                exec(_breakpoint_at(frame), frame.f_globals, dict(frame.f_locals))
        else:
            _Debugger(sleeping).open_in(frame)
    finally:
        if own:
            del builtins.audit  # type: ignore[attr-defined]


def _breakpoint_at(frame: FrameType) -> CodeType:
    """``breakpoint()`` as if it stood on the running line of ``frame``: debuggers look at the frame that called them."""
    code = compile("\n" * (frame.f_lineno - 1) + "breakpoint()", frame.f_code.co_filename, "exec")
    return code.replace(co_name=frame.f_code.co_name)


def where_in(frame: FrameType) -> str:
    """``train.py:41: loss.backward()``."""
    path, line = frame.f_code.co_filename, frame.f_lineno
    return f"{os.path.basename(path)}:{line}: {linecache.getline(path, line, frame.f_globals).strip()}"


# -- what the op had --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Operand:
    """A copy of a real tensor (``lo``) and of its fp64 twin (``hi``)."""

    lo: Tensor
    hi: Tensor

    @classmethod
    def of(cls, pair: Pair, before: Tensor | None = None) -> Operand:
        lo = pair.lo.detach() if before is None else before
        return cls(lo.clone(), pair.hi.detach().clone())

    def __str__(self) -> str:
        dtype = str(self.lo.dtype).removeprefix("torch.")
        return f"{dtype} {tuple(self.lo.shape)}, |lo| <= {_largest(self.lo):.4g}, |hi| <= {_largest(self.hi):.4g}"


@dataclass(frozen=True)
class LastOp:
    """The op at which the audit stopped. ``operands`` and ``results`` are copies; an operand that the op wrote has its new twin."""

    op: str
    module: str
    phase: Phase
    source: str
    operands: list[Operand] = field(default_factory=list)
    results: list[Operand] = field(default_factory=list)
    local_error: Any = None
    """``ops.local.LocalError``: what the op's own arithmetic did, where it was measured."""

    @classmethod
    def of(cls, call: OpCall, source: str) -> LastOp:
        local = None if call.local is UNMEASURED else call.local
        operands = [Operand.of(p, call.before.get(id(p.lo))) for p in call.inputs]
        return cls(call.info.name, call.module, call.phase, source, operands, [Operand.of(p) for p in call.outputs], local)

    def __str__(self) -> str:
        head = " ".join(part for part in (self.op, f"in {self.module}" if self.module else "", f"({self.phase})", self.source) if part)
        lines = [head, *(f"  operand {i}: {x}" for i, x in enumerate(self.operands))]
        lines += [f"  result {i}: {x}" for i, x in enumerate(self.results)]
        if self.local_error is not None:
            rho = self.local_error.rho_max
            lines.append(f"  local error: {self.local_error.local_u:.3g} u" + (f", rho {rho:.3g}" if rho is not None else ""))
        return "\n".join(lines)


def _largest(t: Tensor) -> float:
    return float(t.detach().abs().to(torch.float64).max()) if t.numel() and t.dtype is not torch.bool else 0.0


# -- how far from the twin --------------------------------------------------------------------------------------------------------

SHOWN = 10
"""Elements that a comparison lists."""


@dataclass(frozen=True)
class Comparison:
    """Where a tensor differs from its fp64 twin. Errors are in ulps: spacings of the tensor's dtype at the twin's value.

    Zeros of either sign are equal, and so are two equal infinities or two NaNs; non-finite on one side only is an infinite error.
    """

    dtype: str
    shape: tuple[int, ...]
    worst: list[tuple[tuple[int, ...], float, float, float]]
    """(index, lo, hi, error in ulps), worst first; only elements that differ."""
    histogram: dict[str, int]
    """Number of elements by error: exact, <=1/2, <=1, <=2, <=4, ... ulps, non-finite."""

    def rows(self) -> list[tuple[str, str, str, str]]:
        """The worst elements as text."""
        return [(", ".join(map(str, index)) or "-", f"{lo:.8g}", f"{hi:.8g}", f"{ulps:.4g}") for index, lo, hi, ulps in self.worst]

    def __str__(self) -> str:
        table = [("index", "lo", "hi", "ulps"), *self.rows()]
        widths = [max(len(row[i]) for row in table) for i in range(4)]
        lines = [f"{self.dtype} {self.shape} against its fp64 twin"]
        lines += ["  " + "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in table]
        lines.append("  elements by error in ulps: " + (", ".join(f"{name}: {count}" for name, count in self.histogram.items()) or "none"))
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        cell = 'style="text-align:right;padding:2px 10px 2px 0"'
        head = "".join(f"<th {cell}>{name}</th>" for name in ("index", "lo", "hi", "ulps"))
        body = "".join("<tr>" + "".join(f"<td {cell}>{escape(text)}</td>" for text in row) + "</tr>" for row in self.rows())
        counts = escape(", ".join(f"{name}: {count}" for name, count in self.histogram.items()) or "none")
        title = escape(f"{self.dtype} {self.shape} against its fp64 twin")
        return f"<div><p>{title}</p><table><tr>{head}</tr>{body}</table><p>elements by error in ulps: {counts}</p></div>"


def compare(lo: Tensor, hi: Tensor) -> Comparison:
    """``lo`` against ``hi`` of the same shape. Complex numbers as pairs of reals (a last dimension of 2); integers in units of 1."""
    name = str(lo.dtype).removeprefix("torch.")
    lo, hi = lo.detach().resolve_conj().resolve_neg(), hi.detach().resolve_conj().resolve_neg()
    if lo.is_complex():
        lo, hi = torch.view_as_real(lo), torch.view_as_real(hi)
    a, b = lo.cpu().to(torch.float64), hi.cpu().to(torch.float64)
    ulps = (a - b).abs() / _spacing(b, lo.dtype)
    ulps[(a == b) | (a.isnan() & b.isnan())] = 0.0
    ulps[a.isfinite() != b.isfinite()] = torch.inf
    flat = ulps.reshape(-1).nan_to_num(nan=torch.inf, posinf=torch.inf)
    count = min(SHOWN, int((flat > 0).sum()))
    order = flat.argsort(descending=True, stable=True)[:count]
    places = torch.stack(torch.unravel_index(order, lo.shape), 1).tolist() if lo.dim() and count else [()] * count
    a, b = a.reshape(-1), b.reshape(-1)
    worst = [(tuple(place), float(a[i]), float(b[i]), float(flat[i])) for place, i in zip(places, order.tolist(), strict=True)]
    return Comparison(name, tuple(lo.shape), worst, _histogram(flat))


def _spacing(values: Tensor, dtype: torch.dtype) -> Tensor:
    """ulp of ``dtype`` at the magnitude of each value: 2u * 2^floor(log2 |x|), not below the smallest subnormal; 1 for integers."""
    u = UNIT_ROUNDOFF.get(dtype)
    if u is None:
        return torch.ones_like(values)
    lowest = torch.finfo(dtype).smallest_normal
    exponent = torch.frexp(values.abs().clamp(lowest, torch.finfo(dtype).max).nan_to_num(nan=1.0)).exponent - 1
    return torch.ldexp(torch.ones_like(values), exponent) * (2.0 * u)


def _histogram(ulps: Tensor) -> dict[str, int]:
    counts: dict[str, int] = {}
    finite = ulps[ulps.isfinite()]
    exact = int((finite == 0).sum())
    if exact:
        counts["exact"] = exact
    rest = finite[finite > 0]
    bins = rest.log2().ceil().clamp(min=-1).to(torch.int64)
    for power, count in zip(*(t.tolist() for t in torch.unique(bins, return_counts=True)), strict=True):
        counts["<=1/2" if power == -1 else f"<={2**power}" if power < 20 else f"<=2^{power}"] = count
    if finite.numel() < ulps.numel():
        counts["non-finite"] = ulps.numel() - finite.numel()
    return counts
