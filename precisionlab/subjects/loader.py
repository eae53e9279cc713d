"""Which object of an imported module is the subject. Needs torch, to know an ``nn.Module`` when it sees one."""

from __future__ import annotations

import difflib
import inspect
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import torch

from precisionlab.errors import SubjectError
from precisionlab.subjects.bare import bare_subject
from precisionlab.subjects.inputs import InputSpec
from precisionlab.subjects.randomness import seed_everything
from precisionlab.subjects.subject import Subject
from precisionlab.subjects.target import Target, blame, import_target, parse_target, top_level_lines

PARTS = ("model", "batch", "loss")
"""The three names that make a file a subject."""
CONVENTIONAL = ("subject", "make_subject")


def load_subject(text: str, *, inputs: InputSpec | None = None, seed: int = 0) -> Subject:
    """The subject that TARGET means. Seeds the random number generators first: a file may build its model while imported.

    Raises ``SubjectError`` when the file or module cannot be imported, or holds no subject or several.
    """
    target = parse_target(text)
    seed_everything(seed)
    return choose_subject(import_target(target), target, inputs)


def choose_subject(module: ModuleType, target: Target, inputs: InputSpec | None = None) -> Subject:
    """The subject in an imported module, by the first rule that applies.

    The name given; ``model``, ``batch`` and ``loss``; ``subject`` or ``make_subject``; a single ``Subject``; a single module or module
    class that can be built without arguments.
    """
    found = _Contents(module, target)
    chosen = _named(found, target.name, inputs) if target.name else _unnamed(found, inputs)
    chosen.name = chosen.name or target.text
    return chosen


@dataclass
class _Contents:
    """What a module holds that could be audited."""

    module: ModuleType
    target: Target
    lines: dict[str, int] = field(init=False)
    subjects: dict[str, Subject] = field(init=False)
    classes: dict[str, type[torch.nn.Module]] = field(init=False)
    instances: dict[str, torch.nn.Module] = field(init=False)

    def __post_init__(self) -> None:
        names = {name: value for name, value in vars(self.module).items() if not name.startswith("_")}
        self.lines = top_level_lines(self.module)
        self.subjects = {name: value for name, value in names.items() if isinstance(value, Subject)}
        self.instances = {name: value for name, value in names.items() if isinstance(value, torch.nn.Module)}
        self.classes = {
            name: value
            for name, value in names.items()
            if isinstance(value, type) and issubclass(value, torch.nn.Module) and value.__module__ == self.module.__name__
        }

    def get(self, name: str) -> Any:
        return getattr(self.module, name, None)

    def at(self, name: str) -> str:
        """``GPT (model.py:10)``."""
        return (
            f"{name} ({self.target.path.name if self.target.path else self.module.__name__}:{self.lines[name]})"
            if name in self.lines
            else name
        )

    def listing(self) -> str:
        """Everything found that could be meant, with lines."""
        groups = [
            ("the names", [name for name in PARTS if self.get(name) is not None]),
            ("subjects", list(self.subjects)),
            ("modules", [name for name in self.instances if name not in PARTS]),
            ("module classes", list(self.classes)),
        ]
        said = [f"{label} {', '.join(self.at(name) for name in names)}" for label, names in groups if names]
        return f"found: {'; '.join(said)}" if said else "found no nn.Module, no Subject and none of the names model, batch and loss"


def _named(found: _Contents, name: str, inputs: InputSpec | None) -> Subject:
    value: Any = found.module
    for part in name.split("."):
        if not hasattr(value, part):
            public = [n for n in dir(value) if not n.startswith("_")]
            near = difflib.get_close_matches(part, public, n=1)
            raise SubjectError(
                f"{found.target.where} has no {name!r}; {found.listing()}", hint=f"{found.target.where}:{near[0] if near else 'NAME'}"
            )
        value = getattr(value, part)
    return _as_subject(found, name, value, inputs)


def _unnamed(found: _Contents, inputs: InputSpec | None) -> Subject:
    present = [name for name in PARTS if found.get(name) is not None]
    if len(present) == len(PARTS):
        return _assemble(found, found.get("model"))
    for name in CONVENTIONAL:
        if found.get(name) is not None:
            return _as_subject(found, name, found.get(name), inputs)
    if len(found.subjects) == 1:
        return next(iter(found.subjects.values()))
    if len(found.subjects) > 1:
        raise SubjectError(
            f"{found.target.where} has several subjects; {found.listing()}", hint=f"{found.target.where}:{next(iter(found.subjects))}"
        )
    if present and inputs is None:
        missing = [name for name in PARTS if name not in present]
        raise SubjectError(
            f"{found.target.where} has {' and '.join(present)} but no {' and no '.join(missing)}; {found.listing()}",
            hint=f"add {' and '.join(missing)}" + (" (loss(model, batch) returns a tensor of one element)" if "loss" in missing else ""),
        )
    return _only_module(found, inputs)


def _only_module(found: _Contents, inputs: InputSpec | None) -> Subject:
    buildable = {name: cls for name, cls in found.classes.items() if _takes_nothing(cls)}
    candidates = {**found.instances, **buildable}
    if len(candidates) == 1:
        name, value = next(iter(candidates.items()))
        return _bare(found, name, value, inputs)
    if not candidates:
        extra = ", but every class needs arguments" if found.classes else ""
        raise SubjectError(
            f"{found.target.where} has nothing to audit{extra}; {found.listing()}",
            hint="export model, batch and loss(model, batch), or build the model in a function: model = lambda: GPT(vocab=256)",
        )
    where = found.target.where
    raise SubjectError(
        f"{where} has several models; {found.listing()}", hint=f"{where}:{next(reversed(candidates))}, or export model, batch and loss"
    )


def _as_subject(found: _Contents, name: str, value: Any, inputs: InputSpec | None) -> Subject:
    """A named object as a subject: a ``Subject``, a module, a module class, or a function that returns one of these."""
    if isinstance(value, Subject):
        return value
    if isinstance(value, torch.nn.Module) or (isinstance(value, type) and issubclass(value, torch.nn.Module)):
        return _with_parts(found, name, value, inputs)
    if callable(value) and _takes_nothing(value):
        try:
            built = value()
        except Exception as error:
            raise SubjectError(
                f"{found.at(name)} raises ({blame(error, str(found.module.__file__))})", hint="it is called without arguments"
            ) from error
        if isinstance(built, Subject):
            return built
        if isinstance(built, torch.nn.Module):
            return _with_parts(found, name, value, inputs)
        raise SubjectError(f"{found.at(name)} returns {type(built).__name__}", hint="return a precisionlab.Subject or an nn.Module")
    raise SubjectError(
        f"{found.at(name)} is {_a(value)}, which cannot be audited; {found.listing()}",
        hint="name a Subject, a module or a function building one",
    )


def _with_parts(found: _Contents, name: str, model: Any, inputs: InputSpec | None) -> Subject:
    if inputs is None and found.get("batch") is not None and found.get("loss") is not None:
        return _assemble(found, model)
    return _bare(found, name, model, inputs)


def _assemble(found: _Contents, model: Any) -> Subject:
    return Subject(model, found.get("batch"), found.get("loss"), found.get("optimizer"), found.get("sizes"))


def _bare(found: _Contents, name: str, model: Any, inputs: InputSpec | None) -> Subject:
    if inputs is None:
        raise SubjectError(
            f"{found.at(name)} is a model without a batch and a loss",
            hint="--input-size 8,128 (and --input-dtype int64 --input-high 50257 for token ids), or export batch and loss(model, batch)",
        )
    if isinstance(model, type) and not _takes_nothing(model):
        raise SubjectError(f"{found.at(name)} cannot be built without arguments", hint="name a function that builds it: model.py:build")
    return bare_subject(model, inputs)


def _takes_nothing(function: Any) -> bool:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    return all(p.default is not p.empty or p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters)


def _a(value: Any) -> str:
    if callable(value):
        return "a function that needs arguments" if not isinstance(value, type) else "a class"
    return f"of type {type(value).__name__}"
