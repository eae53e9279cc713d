"""``audit_subject``: training steps of a subject in low precision, under the audit."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from precisionlab.errors import PrecisionLabError, SettingsError, SubjectError
from precisionlab.records import Verdict
from precisionlab.report.model import Report
from precisionlab.subjects.batches import check_batch, make_batch
from precisionlab.subjects.loops import DEFAULT_OPTIMIZER, LOOPS, Loop
from precisionlab.subjects.randomness import seeded
from precisionlab.subjects.subject import Subject
from precisionlab.subjects.words import Kernels, LowDtype, Mode, parse_dtype, parse_kernels, parse_mode

Progress = Callable[[int, int], None]
"""Called as ``progress(step, steps)`` before each step; steps count from 1."""


@dataclass(frozen=True)
class Outcome:
    """The report, and what ended the run early: an exception of the subject, Ctrl-C, or nothing."""

    report: Report
    error: BaseException | None


def audit_subject(
    subject: Subject,
    dtype: object = "fp16",
    mode: object = "amp",
    steps: int = 2,
    seed: int = 0,
    kernels: object = "auto",
    progress: Progress | None = None,
    **settings: Any,
) -> Report:
    """The report on ``steps`` training steps of ``subject`` in ``dtype``.

    ``dtype``: fp16, bf16 or fp32. ``mode``: amp, pure or master (see ``Mode``). ``kernels``: auto, native or fast (see ``Kernels``).
    ``settings`` are those of ``pl.audit``. The same seed gives the same report; the caller's random state is restored.

    When the subject raises in some step, the report of what ran before is returned with ``report.record.error`` set, and its verdict
    is ``unknown`` unless something was found.

    Raises ``SettingsError`` for a word or setting that does not exist, ``SubjectError`` for a subject that breaks its contract,
    ``UntrustworthyError`` where there is nothing to judge (an empty batch, an integer loss).
    """
    outcome = run_subject(subject, dtype, mode, steps, seed, kernels, progress, **settings)
    if outcome.error is not None and not isinstance(outcome.error, Exception):
        raise outcome.error
    return outcome.report


def run_subject(
    subject: Subject,
    dtype: object = "fp16",
    mode: object = "amp",
    steps: int = 2,
    seed: int = 0,
    kernels: object = "auto",
    progress: Progress | None = None,
    watch: Callable[..., Any] | None = None,
    init_scale: float | None = None,
    **settings: Any,
) -> Outcome:
    """``audit_subject``, with the exception that ended the run; Ctrl-C is one of them.

    ``watch`` makes the audit, in place of ``pl.audit`` and with its arguments. ``init_scale``: the first loss scale, of fp16 runs.
    """
    if not isinstance(subject, Subject):
        raise SubjectError(
            f"audit_subject needs a Subject, got {type(subject).__name__}", hint="pl.Subject(model=..., batch=..., loss=...)"
        )
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise SettingsError(f"steps must be a positive integer, got {steps!r}", hint="steps=2")
    low, how, wanted = parse_dtype(dtype), parse_mode(mode), parse_kernels(kernels)
    with seeded(seed):
        loop = _make_loop(subject, low, how, init_scale)
        chosen = resolve_kernels(wanted, low, loop.device)
        outcome, reached = _run(loop, steps, chosen, progress, watch, settings)
    _describe(outcome, loop, reached, steps)
    outcome.report.record.settings.update(
        subject=subject.name,
        dtype=str(low),
        mode=str(how),
        steps=steps,
        seed=seed,
        kernels=str(chosen),
        device=loop.device.type,
        optimizer=_optimizer_name(loop),
    )
    return outcome


def resolve_kernels(wanted: Kernels, dtype: LowDtype, device: torch.device) -> Kernels:
    """``auto`` becomes ``fast`` on a CPU without instructions for ``dtype``, else ``native``."""
    if wanted is not Kernels.AUTO:
        return wanted
    if device.type != "cpu" or dtype is LowDtype.FP32:
        return Kernels.NATIVE
    needed = ("amx_fp16", "avx512_fp16") if dtype is LowDtype.FP16 else ("amx_bf16", "avx512_bf16", "bf16")
    capabilities = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    return Kernels.NATIVE if any(capabilities.get(name) for name in needed) else Kernels.FAST


def _make_loop(subject: Subject, dtype: LowDtype, mode: Mode, init_scale: float | None = None) -> Loop:
    try:
        return LOOPS[mode](subject, dtype, init_scale)
    except PrecisionLabError:
        raise
    except Exception as error:
        raise SubjectError(f"the model or optimizer could not be built ({_said(error)})", hint="--debug shows where") from error


def _run(
    loop: Loop, steps: int, kernels: Kernels, progress: Progress | None, watch: Callable[..., Any] | None, settings: dict[str, Any]
) -> tuple[Outcome, int]:
    from precisionlab.session import audit

    watcher = (watch or audit)(model=loop.model, optimizer=loop.optimizer, scaler=loop.scaler, kernels=str(kernels), **settings)
    error: BaseException | None = None
    step = 0
    try:
        with watcher:
            for step in range(steps):
                if progress is not None:
                    progress(step + 1, steps)
                with _unobserved():
                    batch = make_batch(loop.subject, step)
                    loop.notes.extend(check_batch(batch, step))
                loop.step(batch)
    except PrecisionLabError as raised:
        if step == 0:
            raise
        error = raised
    except (Exception, KeyboardInterrupt) as raised:
        if isinstance(raised, Exception) and _is_ours(raised) and not _out_of_memory(raised):
            raise
        error = raised
    return Outcome(watcher.report, error), step + 1


def _describe(outcome: Outcome, loop: Loop, reached: int, steps: int) -> None:
    """Writes what a reader must know into the record: the loop's notes, the error, that nothing could be judged."""
    report, record = outcome.report, outcome.report.record
    record.notes.extend(note for note in dict.fromkeys(loop.notes) if note not in record.notes)
    if outcome.error is not None:
        _drop_raw_error_notes(report)
        record.error = f"step {reached} of {steps}: {_said(outcome.error)}"
        before = f"steps 1 to {reached - 1} and " if reached > 2 else "step 1 and " if reached == 2 else ""
        record.notes.append(f"cut short in {record.error}; the report covers {before}what ran of step {reached}")
        if _out_of_memory(outcome.error):
            record.notes.append(
                "out of memory: try a smaller batch, --preset quick, or --set max_shadow_bytes=2e9 (twins beyond it are dropped)"
            )
    if record.coverage.shadowed == 0 and outcome.error is None:
        record.notes.append(
            "no floating-point op was shadowed: an integer-only model has no rounding to judge"
            if record.coverage.ops == 0
            else "no op could be shadowed"
        )
    untold = outcome.error is not None or record.coverage.shadowed == 0 or loop.damaged
    if untold and report.verdict is not Verdict.BROKEN and not report.findings:
        report.verdict = Verdict.UNKNOWN


def _drop_raw_error_notes(report: Report) -> None:
    """The audit notes the exception in its own words; ``_describe`` says it with the step and the line."""
    raw = report.record.error
    for notes in (report.record.notes, report.notes):
        notes[:] = [note for note in notes if not raw or raw not in note]


def _is_ours(error: Exception) -> bool:
    """Whether the measuring part of the audit raised. Errors of ops pass through the dispatch mode: those are the subject's."""
    trace = error.__traceback__
    while trace is not None:
        path = Path(trace.tb_frame.f_code.co_filename)
        if path == _OWN / "session.py" or any(path.is_relative_to(_OWN / part) for part in ("trackers", "checks", "report")):
            return True
        trace = trace.tb_next
    return False


@contextlib.contextmanager
def _unobserved() -> Iterator[None]:
    """The batch is data: what makes it is not part of the program under audit."""
    with _disable_current_modes(), torch._C.DisableTorchFunction():
        yield


def _out_of_memory(error: BaseException) -> bool:
    words = str(error).lower()
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or (
        isinstance(error, RuntimeError) and ("out of memory" in words or "not enough memory" in words)
    )


def _said(error: BaseException) -> str:
    """``ValueError: bad shape (model.py:12)``, with the innermost line that is neither torch's nor ours."""
    lines = str(error).strip().splitlines()
    text = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    where = ""
    trace = error.__traceback__
    while trace is not None:
        path = Path(trace.tb_frame.f_code.co_filename)
        if not any(path.is_relative_to(folder) for folder in _NOT_THE_USERS) or path.is_relative_to(_OWN / "models"):
            where = f" ({path.name}:{trace.tb_lineno})"
        trace = trace.tb_next
    return text + where


_OWN = Path(__file__).parents[1]
_NOT_THE_USERS = (_OWN, Path(torch.__file__).parent, Path(contextlib.__file__).parent)


def _optimizer_name(loop: Loop) -> str:
    if loop.optimizer is None:
        return "none"
    return DEFAULT_OPTIMIZER if loop.subject.optimizer is None else type(loop.optimizer).__name__
