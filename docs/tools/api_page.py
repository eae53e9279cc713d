"""The page of the Python API, from the docstrings of ``precisionlab.__all__``: see ``generate.py``."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import itertools
import re
import textwrap
from collections.abc import Iterator
from enum import Enum
from types import ModuleType
from typing import Any

RETURNED = (
    "precisionlab.report.model.OpVerdict",
    "precisionlab.report.model.Column",
    "precisionlab.debugging.Comparison",
    "precisionlab.debugging.LastOp",
    "precisionlab.debugging.Operand",
    "precisionlab.planning.search.Proposal",
    "precisionlab.plans.change.Change",
)
"""Types without a public name that public calls return."""

AS_JSON = {"Finding": "finding", "OpVerdict": "op", "Column": "column"}
"""Types whose fields the JSON reference explains, and where."""


def joined(text: str) -> str:
    """``text`` in one line, in Markdown's quotes for code."""
    return re.sub(r"\s+", " ", text.replace("``", "`")).strip()


def prose(text: str | None) -> list[str]:
    """A docstring as Markdown: its paragraphs, one line each."""
    paragraphs = re.split(r"\n\s*\n", inspect.cleandoc(text or ""))
    return [line for paragraph in paragraphs if paragraph.strip() for line in (joined(paragraph), "")]


def attribute_texts(owner: type) -> dict[str, str]:
    """Name -> the string below its assignment in a class body, or below ``self.name = ...`` in ``__init__``."""
    found: dict[str, str] = {}
    for cls in reversed(owner.__mro__):
        if not cls.__module__.startswith("precisionlab"):
            continue
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(cls)))
        except (OSError, TypeError):
            continue
        body = tree.body[0].body if isinstance(tree.body[0], ast.ClassDef) else []
        for block in (body, *(f.body for f in body if isinstance(f, ast.FunctionDef) and f.name == "__init__")):
            for statement, below in itertools.pairwise(block):
                name = _assigned(statement)
                if name and isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant) and isinstance(below.value.value, str):
                    found[name] = joined(below.value.value)
    return found


def _assigned(statement: ast.stmt) -> str | None:
    target = statement.targets[0] if isinstance(statement, ast.Assign) else getattr(statement, "target", None)
    if isinstance(target, ast.Name):
        return target.id
    return target.attr if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self" else None


def api_page() -> str:
    """Every public name: signature, docstring, fields, methods."""
    import precisionlab as pl

    lines = ["# Python API", "", "Generated from the docstrings by `./dev docs`; do not edit.", ""]
    lines += ["```python", "import precisionlab as pl", "```", ""]
    for name in sorted((n for n in pl.__all__ if n != "__version__"), key=str.lower):
        lines += _entry(f"pl.{name}", getattr(pl, name))
    lines += ["## What they return", "", "Types that have no public name of their own.", ""]
    for path in RETURNED:
        module, _, name = path.rpartition(".")
        lines += _entry(name, getattr(importlib.import_module(module), name), "###")
    lines += ["## Errors", ""]
    errors = importlib.import_module("precisionlab.errors")
    lines += [f"- `{n}` (exit code {e.exit_code}): {joined(e.__doc__ or '')}" for n, e in vars(errors).items() if _is_error(e, errors)]
    return "\n".join(lines)


def _is_error(value: Any, module: ModuleType) -> bool:
    return isinstance(value, type) and issubclass(value, Exception) and value.__module__ == module.__name__


def _entry(name: str, value: Any, level: str = "##") -> list[str]:
    if isinstance(value, ModuleType):
        return _module(name, value)
    lines = [f"{level} {name}", ""]
    if isinstance(value, type) and issubclass(value, Enum):
        lines += [*prose(value.__doc__), *(f"- `{member.value}`{_tail(attribute_texts(value).get(member.name, ''))}" for member in value)]
        return [*lines, "", *_members(value)]
    lines += ["```python", _signature(name, value), "```", "", *prose(value.__doc__)]
    if isinstance(value, type):
        lines += [*_fields(value), *_members(value)]
    return lines


def _module(name: str, module: ModuleType) -> list[str]:
    lines = [f"## {name}", "", *prose(module.__doc__)]
    for inner in sorted(n for n in module.__all__ if inspect.isfunction(getattr(module, n))):
        function = getattr(module, inner)
        lines += [f"- `{_signature(f'{name}.{inner}', function)}`{_tail(joined(function.__doc__ or ''))}"]
    return [*lines, ""]


def _signature(name: str, value: Any) -> str:
    """``name(arguments) -> result`` on one line, annotations as they are written."""
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return name
    parameters = [
        p.replace(annotation=p.empty if isinstance(value, type) and p.name == "self" else p.annotation)
        for p in signature.parameters.values()
        if p.name != "self"
    ]
    plain = [p.replace(default=_Named("...")) if _is_opaque(p.default) else p for p in parameters]
    shown = signature.replace(parameters=plain)
    if isinstance(value, type):
        shown = shown.replace(return_annotation=inspect.Signature.empty)
    return name + re.sub(r"'([^']*)'", r"\1", _unquoted(shown))


def _unquoted(signature: inspect.Signature) -> str:
    """Annotations are strings already: they lose their quotes, string defaults keep them (as double ones)."""
    parameters = [p.replace(default=_Named(f'"{p.default}"')) if type(p.default) is str else p for p in signature.parameters.values()]
    return str(signature.replace(parameters=parameters))


def _is_opaque(default: Any) -> bool:
    return (callable(default) and default is not inspect.Parameter.empty) or type(default).__name__ == "_HAS_DEFAULT_FACTORY_CLASS"


class _Named:
    """A default that is shown as a word."""

    def __init__(self, word: str) -> None:
        self.word = word

    def __repr__(self) -> str:
        return self.word


def _fields(cls: type) -> list[str]:
    """Fields and documented attributes, those with a sentence of their own."""
    texts = attribute_texts(cls)
    if dataclasses.is_dataclass(cls):
        if cls.__name__ == "Thresholds":
            return ["Its fields: [thresholds](thresholds.md).", ""]
        rows = [(f.name, str(f.type), texts[f.name]) for f in dataclasses.fields(cls) if f.name in texts]
        if cls.__name__ in AS_JSON:
            return [f"Fields as in the JSON report: [{AS_JSON[cls.__name__]}](json.md#{AS_JSON[cls.__name__]}).", ""]
    else:
        rows = [(name, "", text) for name, text in texts.items() if not name.startswith("_")]
    lines = [f"- `{name}{': ' + kind if kind else ''}`{_tail(text)}" for name, kind, text in rows]
    return [*lines, ""] if lines else []


def _members(cls: type) -> list[str]:
    lines = [f"- `{shown}`{_tail(text)}" for shown, text in _documented(cls)]
    return [*lines, ""] if lines else []


def _documented(cls: type) -> Iterator[tuple[str, str]]:
    for name, value in vars(cls).items():
        if name.startswith("_") or not getattr(value, "__doc__", None):
            continue
        if isinstance(value, property):
            yield f".{name}", joined(value.__doc__ or "")
        elif isinstance(value, (classmethod, staticmethod)) or inspect.isfunction(value):
            yield _signature(f".{name}", getattr(cls, name)), joined(inspect.getdoc(getattr(cls, name)) or "")


def _tail(text: str) -> str:
    return f": {text}" if text else ""
