"""Where an op ran: module path, phase, the user's source line; for backward ops the forward site they belong to.

The module path comes from a stack kept by torch's global forward hooks. Source and phase come from one walk up the Python frames.
In backward, ``torch._C._current_autograd_node()._sequence_nr()`` is the number that ``_get_sequence_nr() - 1`` gave while the forward
op was dispatched, so the forward site is known.
"""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Callable
from types import CodeType
from typing import Any

import torch
from torch import nn

from precisionlab.records import Phase

_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_OWN = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_OWN_PROGRAMS = tuple(os.path.join(_OWN, d) + os.sep for d in ("models", "scenarios"))
_SKIP_NAMES = {"contextlib.py", "functools.py", "runpy.py"}
_PHASE_FILES = {
    os.path.join("torch", "nn", "utils", "clip_grad.py"): Phase.CLIP,
    os.path.join("torch", "amp", "grad_scaler.py"): Phase.SCALER,
}
_ENGINE = "_engine_run_backward"
"""The Python function of torch.autograd that runs backward passes."""
_MAX_SEQUENCES = 1_000_000
_OWN_FRAMES = 3
"""Frames that are surely ours: ``_walk``, ``locate`` and its caller."""

_code_kind: dict[int, tuple[CodeType, Any]] = {}
"""id of a code object -> the object (kept, so that its id stays its own) and its kind. Code objects hash slowly: all their bytecode."""


def _classify(code: CodeType) -> Any:
    """True for a user's frame, a ``Phase`` for torch code that tells the phase, False for other frames to skip."""
    path = code.co_filename
    if path.startswith(_TORCH):
        for ending, phase in _PHASE_FILES.items():
            if path.endswith(ending):
                return phase
        return Phase.OPTIMIZER if f"{os.sep}torch{os.sep}optim{os.sep}" in path else False
    if path.startswith(_OWN):
        return path.startswith(_OWN_PROGRAMS)
    return not (path.startswith("<frozen") or os.path.basename(path) in _SKIP_NAMES)


def _kind_of(code: CodeType) -> Any:
    known = _code_kind.get(id(code))
    if known is None:
        known = _code_kind[id(code)] = (code, _classify(code))
    return known[1]


class Place:
    """A user's line: code object and line number, shared by all its sites."""

    __slots__ = ("function", "line", "path")

    def __init__(self, path: str, line: int, function: str) -> None:
        self.path = path
        self.line = line
        self.function = function


NOWHERE = Place("", 0, "")


class ModuleStack:
    """Paths of the modules whose forward is running. Hooks are global in torch, so no module is touched."""

    def __init__(self) -> None:
        self.paths: list[str] = []
        self.roots: list[nn.Module] = []
        self._names: weakref.WeakKeyDictionary[nn.Module, dict[int, str]] = weakref.WeakKeyDictionary()
        self._handles: list[Any] = []
        self.on_exit: Any = None
        """Called as ``on_exit(module, path, output, depth)`` after a module's forward; depth 0 is an outermost module."""
        self.on_enter: Callable[[nn.Module], None] | None = None
        """Called before a module's forward."""
        self.after: Callable[[nn.Module], None] | None = None
        """Called after a module's forward, also where it raised."""
        self.preferred: nn.Module | None = None

    def install(self) -> None:
        """Register the global hooks. Undone by ``remove``."""
        from torch.nn.modules import module as hooks

        self._handles = [
            hooks.register_module_forward_pre_hook(self._enter),
            hooks.register_module_forward_hook(self._leave, always_call=True),
        ]

    def remove(self) -> None:
        """Take the hooks away again."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self.paths.clear()
        self.roots.clear()

    @property
    def path(self) -> str:
        """Path of the innermost running module; empty outside of modules."""
        return self.paths[-1] if self.paths else ""

    def name_of(self, module: nn.Module) -> str:
        """Path of ``module`` below the outermost running module; the class name of a root."""
        for root in (self.preferred, self.roots[0] if self.roots else None):
            if root is not None:
                found = self._names_of(root).get(id(module))
                if found is not None:
                    return found
        return f"{self.paths[-1]}.{type(module).__name__}" if self.paths else type(module).__name__

    def _names_of(self, root: nn.Module) -> dict[int, str]:
        names = self._names.get(root)
        if names is None:
            names = {id(m): name or type(m).__name__ for name, m in root.named_modules()}
            self._names[root] = names
        return names

    def _enter(self, module: nn.Module, args: Any) -> None:
        if not self.roots:
            self.roots.append(module)
            if id(module) not in self._names_of(module):
                del self._names[module]
        else:
            self.roots.append(self.roots[0])
        self.paths.append(self.name_of(module))
        if self.on_enter is not None:
            self.on_enter(module)

    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:
        if self.after is not None:
            self.after(module)
        if not self.paths:
            return
        path = self.paths.pop()
        self.roots.pop()
        if self.on_exit is not None:
            self.on_exit(module, path, output, len(self.paths))


class Locator:
    """Answers, for the op being dispatched: which module, phase and user's line."""

    def __init__(self, modules: ModuleStack) -> None:
        self.modules = modules
        self.sequences: dict[int, tuple[str, Place]] = {}
        self.in_optimizer = 0
        """Depth of optimizer.step calls (torch's global step hooks)."""
        self._places: dict[tuple[int, int], Place] = {}

    def locate(self) -> tuple[str, Phase, Place, bool]:
        """``(module path, phase, place, is_backward)`` of the running op."""
        modules = self.modules
        node = torch._C._current_autograd_node()
        if node is not None and not (modules.paths and torch.is_grad_enabled()):
            found = self.sequences.get(node._sequence_nr())
            if found is not None:
                return found[0], Phase.BACKWARD, found[1], True
            _, place = self._walk()
            return "", Phase.BACKWARD, place, True
        told, place = self._walk()
        path = modules.paths[-1] if modules.paths else ""
        if told is not None:
            phase = told
        elif self.in_optimizer:
            phase = Phase.OPTIMIZER
        else:
            phase = Phase.FORWARD
        if phase is Phase.FORWARD and torch.is_grad_enabled():
            sequences = self.sequences
            sequences[torch.autograd._get_sequence_nr() - 1] = (path, place)
            if len(sequences) > _MAX_SEQUENCES:
                for key in list(sequences)[: _MAX_SEQUENCES // 2]:
                    del sequences[key]
        return path, phase, place, False

    def recomputed_place(self) -> Place:
        """The user's line that runs inside a backward pass, called by it; ``NOWHERE`` for ops of the pass itself."""
        frame = sys._getframe(1)
        while frame is not None and frame.f_code.co_name != _ENGINE:
            if _kind_of(frame.f_code) is True:
                return self._walk()[1]
            frame = frame.f_back  # type: ignore[assignment]
        return NOWHERE

    def _walk(self) -> tuple[Phase | None, Place]:
        told: Phase | None = None
        frame = sys._getframe(_OWN_FRAMES)
        while frame is not None:
            code = frame.f_code
            known = _code_kind.get(id(code))
            if known is None:
                known = _code_kind[id(code)] = (code, _classify(code))
            kind = known[1]
            if kind is True:
                key = (id(code), frame.f_lineno)
                place = self._places.get(key)
                if place is None:
                    name = code.co_qualname if sys.version_info >= (3, 11) else code.co_name
                    place = self._places[key] = Place(code.co_filename, frame.f_lineno, name)
                return told, place
            if kind is not False and told is None:
                told = kind
            frame = frame.f_back  # type: ignore[assignment]
        return told, NOWHERE


def short_path(path: str) -> str:
    """A path as the report prints it: relative to the working directory or to site-packages, else the file name."""
    if not path:
        return ""
    for mark in ("site-packages" + os.sep, "dist-packages" + os.sep):
        if mark in path:
            return path.split(mark, 1)[1]
    relative = os.path.relpath(path) if os.path.isabs(path) else path
    return os.path.basename(path) if relative.startswith("..") else relative
