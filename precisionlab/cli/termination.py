"""SIGTERM ends a run with its report: schedulers and torchrun send it, and by default a process dies of it at once."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any


class ReportOnTermination:
    """While entered, SIGTERM calls ``write`` and then ends the process as it would have ended: by the signal.

    A handler of the script's own takes its place, and forked children (data-loader workers) have the default again.
    """

    def __init__(self, write: Callable[[], object]) -> None:
        self._write = write
        self._pid = os.getpid()
        self._held = False

    def __enter__(self) -> ReportOnTermination:
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._terminated)
            if hasattr(os, "register_at_fork"):
                # held back across the fork: Python forgets a signal that reaches the child before it has the default again
                os.register_at_fork(before=self._hold, after_in_parent=self._release, after_in_child=self._release_child)
        return self

    def __exit__(self, *error: object) -> None:
        self._restore()

    def _restore(self) -> None:
        if signal.getsignal(signal.SIGTERM) == self._terminated:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def _hold(self) -> None:
        self._held = signal.getsignal(signal.SIGTERM) == self._terminated
        if self._held:
            self._held = signal.SIGTERM not in signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

    def _release(self) -> None:
        if self._held:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})

    def _release_child(self) -> None:
        self._restore()
        self._release()

    def _terminated(self, number: int, frame: FrameType | None) -> None:
        try:
            if os.getpid() == self._pid:
                signal.signal(signal.SIGTERM, signal.SIG_IGN)  # launchers send it to the process and to its group
                self._write()
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)


@contextlib.contextmanager
def termination_ignored() -> Iterator[None]:
    """SIGTERM does nothing inside, unless the script handles it: torchrun sends it to all ranks when the first has ended with findings."""
    if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    before: Any = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
