"""What keeps an audit from breaking the program it watches.

The audit's own faults are counted by name and noted, unless it is strict; it looks away in other threads, in forked children and
while the user types at a breakpoint; and its dispatch mode comes off the stack wherever it stands on it.
"""

from __future__ import annotations

import bdb
import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

from torch import nn
from torch.utils._python_dispatch import _disable_current_modes, _get_current_dispatch_mode_stack, _pop_mode, _push_mode

from precisionlab.shadow.call import OpCall, tensors_of
from precisionlab.shadow.mode import ShadowMode
from precisionlab.shadow.sites import ModuleStack
from precisionlab.trackers.patches import Patches


class Guard:
    """The state that all parts of one audit ask before they look."""

    def __init__(self, strict: bool) -> None:
        self.strict = strict
        self.errors: dict[str, tuple[int, str]] = {}
        """Part of the audit -> how often it failed, and its first error."""
        self.thread = threading.get_ident()
        self.asleep = False
        """The user types at a breakpoint."""
        self.strangers: set[int] = set()
        """Other threads that ran modules or optimizers."""
        self.passing: BaseException | None = None
        """An exception that the user's breakpoint hook raised: not ours to swallow."""
        self.after: Callable[[OpCall | None], None] | None = None
        """Called after each look, outside of the guard: stops where ``break_on`` asks for it."""

    def looks(self) -> bool:
        """Whether a hook that fires now concerns this audit."""
        here = threading.get_ident()
        if here == self.thread:
            return not self.asleep
        self.strangers.add(here)
        return False

    def caught(self, where: str, error: Exception) -> None:
        """Count a fault of the audit's own code; raise it where the audit is strict or it is the user's own."""
        if self.strict or error is self.passing or isinstance(error, bdb.BdbQuit):
            raise error
        count, text = self.errors.get(where, (0, ""))
        self.errors[where] = (count + 1, text or f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}".rstrip(": "))

    @contextlib.contextmanager
    def guarding(self, where: str) -> Iterator[None]:
        """A ``with`` block of the audit's own code."""
        try:
            yield
        except Exception as error:
            self.caught(where, error)

    def notes(self) -> list[str]:
        """What a reader must know of it, one sentence each."""
        said = [
            f"internal error in {where} ({count} times, first {text}): what it watches may be missing; please report it"
            for where, (count, text) in sorted(self.errors.items())
        ]
        if self.strangers:
            count = len(self.strangers)
            said.append(f"modules or optimizers ran in {count} other threads: only the one that started the audit is observed")
        return said

    @contextlib.contextmanager
    def sleeping(self) -> Iterator[None]:
        """The user types: no mode is on, and no hook looks. Everything is as before afterwards, also after an exception."""
        before, self.asleep = self.asleep, True
        try:
            with _disable_current_modes():
                yield
        finally:
            self.asleep = before


class GuardedMode(ShadowMode):
    """The dispatch mode, with faults in the making of twins turned into unshadowed ops."""

    guard: Guard

    def off(self) -> None:
        """Take the mode off the stack of this thread, wherever on it it stands; nothing where it is not on it."""
        stack = _get_current_dispatch_mode_stack()
        if not any(mode is self for mode in stack):
            return
        above = []
        while stack[-1] is not self:
            above.append(_pop_mode())
            stack = _get_current_dispatch_mode_stack()
        self.__exit__(None, None, None)
        for mode in reversed(above):
            _push_mode(mode)

    def _prepare(self, info: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            return super()._prepare(info, args, kwargs)
        except Exception as error:
            self.guard.caught(f"the twins of {info.name}", error)
            call = OpCall(info, args, kwargs)
            call.obstacle = f"internal error: {type(error).__name__}"
            return call, [], {}

    def _shadow(self, info: Any, prepared: Any, out: Any) -> None:
        try:
            super()._shadow(info, prepared, out)
        except Exception as error:
            self.guard.caught(f"the twins of {info.name}", error)
            self._give_up(info, prepared[0], tensors_of(out), error)


class GuardedModules(ModuleStack):
    """The module stack of the audited thread."""

    def __init__(self, guard: Guard) -> None:
        super().__init__()
        self._guard = guard

    def _enter(self, module: nn.Module, args: Any) -> None:
        if self._guard.looks():
            try:
                super()._enter(module, args)
            except Exception as error:
                self._guard.caught("module names", error)

    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:
        if self._guard.looks():
            super()._leave(module, args, output)


class GuardedPatches(Patches):
    """Wrapped entry points whose own faults do not reach the program: its call is made once and its result returned."""

    def __init__(self, guard: Guard) -> None:
        super().__init__()
        self._guard = guard

    def wrap(self, owner: Any, name: str, around: Callable[..., Any]) -> None:
        """See ``Patches.wrap``."""
        guard = self._guard

        def guarded(original: Any, *args: Any, **kwargs: Any) -> Any:
            if not guard.looks():
                return original(*args, **kwargs)
            results: list[Any] = []
            raised: list[BaseException] = []

            def once(*given: Any, **named: Any) -> Any:
                try:
                    results.append(original(*given, **named))
                except BaseException as error:
                    raised.append(error)
                    raise
                return results[-1]

            try:
                out = around(once, *args, **kwargs)
            except Exception as error:
                if raised:
                    raise
                guard.caught(name, error)
                out = results[-1] if results else original(*args, **kwargs)
            if guard.after is not None:
                guard.after(None)
            return out

        super().wrap(owner, name, guarded)
