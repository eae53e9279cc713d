"""From ``model.py``, ``model.py:name`` or ``pkg.mod:name`` to an imported module, with honest errors. No torch in here."""

from __future__ import annotations

import ast
import contextlib
import difflib
import importlib
import importlib.util
import os
import re
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from precisionlab.errors import SubjectError

SUBJECT_MODULE = "__precisionlab_subject__"
"""The name a subject file is imported under, so that code below ``if __name__ == "__main__"`` does not run."""

_DOTTED = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")


@dataclass(frozen=True)
class Target:
    """What a TARGET on the command line means: a file or a module, and perhaps the name of an object in it."""

    text: str
    path: Path | None
    module: str
    name: str

    @property
    def where(self) -> str:
        """The file or module as the user wrote it."""
        return str(self.path) if self.path is not None else self.module


def parse_target(text: str) -> Target:
    """Splits at the last colon that is not a drive letter. Raises ``SubjectError`` for text that names neither file nor module."""
    place, colon, name = text.rpartition(":")
    if not colon or (len(place) == 1 and name[:1] in ("\\", "/")):
        place, name = text, ""
    elif not _DOTTED.fullmatch(name):
        raise SubjectError(
            f"{text!r} has no name after the colon" if not name else f"{name!r} in {text!r} is not a name", hint="model.py:name"
        )
    if place and (place.endswith(".py") or os.sep in place or Path(place).exists()):
        return Target(text, Path(place), SUBJECT_MODULE, name)
    if _DOTTED.fullmatch(place):
        return Target(text, None, place, name)
    raise SubjectError(f"{text!r} is neither a Python file nor a module", hint="model.py, model.py:name or package.module:name")


def import_target(target: Target) -> ModuleType:
    """Imports the file or module; its folder (or the current one) is first on ``sys.path`` only meanwhile.

    Raises ``SubjectError`` when it does not exist, has a syntax error, or raises while it is imported.
    """
    if target.path is None:
        return _import_module(target)
    check_source(target.path)
    return _import_file(target)


def check_source(path: Path) -> None:
    """Raises ``SubjectError`` for a file that does not exist, or with the line of a syntax error; nothing is run."""
    try:
        compile(_read(path), str(path), "exec", dont_inherit=True)
    except SyntaxError as error:
        line = f": {error.text.strip()}" if error.text else ""
        raise SubjectError(f"{path}:{error.lineno}: syntax error: {error.msg}{line}", hint=f"python -m py_compile {path}") from None
    except ValueError as error:
        raise SubjectError(f"{path} is not Python source: {error}", hint="give a .py file") from None


def top_level_lines(module: ModuleType) -> dict[str, int]:
    """Name -> line of everything the module's source binds at top level; empty when there is no source."""
    try:
        tree = ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return {}
    lines: dict[str, int] = {}
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            lines[node.name] = node.lineno
        else:
            lines.update({n.id: n.lineno for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)})
    return lines


def blame(error: BaseException, inside: str) -> str:
    """``file.py:12: NameError: ...``: the exception with the innermost line of the file or folder ``inside`` that it passed."""
    said = str(error).strip().splitlines()
    text = f"{type(error).__name__}: {said[0]}" if said else type(error).__name__
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename.startswith(inside)]
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno}: {text}" if frames else text


def _read(path: Path) -> bytes:
    if path.is_dir():
        raise SubjectError(f"{path} is a folder", hint=f"give the file in it: {path / 'model.py'}")
    try:
        return path.read_bytes()
    except FileNotFoundError:
        folder = path.parent
        files = sorted(p.name for p in folder.glob("*.py")) if folder.is_dir() else []
        near = difflib.get_close_matches(path.name, files, n=1)
        found = f"; {folder}{os.sep} has {', '.join(files[:5])}" if files else ""
        raise SubjectError(f"there is no file {path}{found}", hint=str(folder / near[0]) if near else "check the path") from None
    except OSError as error:
        raise SubjectError(f"{path} cannot be read: {error.strerror}", hint="check its permissions") from None


@contextlib.contextmanager
def _first_on_path(folder: str) -> Iterator[None]:
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove(folder)


def _import_file(target: Target) -> ModuleType:
    assert target.path is not None
    path = target.path.resolve()
    spec = importlib.util.spec_from_file_location(SUBJECT_MODULE, path)
    if spec is None or spec.loader is None:
        raise SubjectError(f"{target.path} is not a Python file", hint="give a .py file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[SUBJECT_MODULE] = module
    try:
        with _first_on_path(str(path.parent)):
            spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        sys.modules.pop(SUBJECT_MODULE, None)
        raise _import_error(target, error, str(path.parent)) from error
    return module


def _import_module(target: Target) -> ModuleType:
    try:
        with _first_on_path(os.getcwd()):
            return importlib.import_module(target.module)
    except ModuleNotFoundError as error:
        if error.name and (target.module == error.name or target.module.startswith(f"{error.name}.")):
            hint = f"{target.module}.py for a file" if not target.name else "is the package installed, or the current folder its parent?"
            raise SubjectError(f"there is no module {error.name!r}", hint=hint) from None
        raise _import_error(target, error, os.getcwd()) from error
    except (Exception, SystemExit) as error:
        raise _import_error(target, error, os.getcwd()) from error


def _import_error(target: Target, error: BaseException, inside: str) -> SubjectError:
    said = blame(error, inside)
    if isinstance(error, ModuleNotFoundError) and error.name:
        return SubjectError(
            f"{target.where} was found, but it imports {error.name!r}, which is not installed here ({said})",
            hint=f"install {error.name.partition('.')[0]} into {sys.executable}'s environment",
        )
    if isinstance(error, SystemExit):
        return SubjectError(f"{target.where} exits while it is imported ({said})", hint="move that under if __name__ == '__main__'")
    return SubjectError(
        f"{target.where} raises while it is imported ({said})", hint=f"python {target.path}" if target.path else "import it in Python"
    )
