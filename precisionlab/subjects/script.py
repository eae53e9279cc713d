"""Running somebody's program as Python itself would: ``train.py ARGS``, ``-m pkg.mod ARGS``, a folder or zip with a ``__main__.py``.

As ``python`` does it: ``__name__`` is ``"__main__"`` and the module is in ``sys.modules`` under that name (so its classes can be
pickled), ``__file__``, ``__spec__`` and ``sys.argv`` are set, and ``sys.path[0]`` is the script's folder (the working directory for
``-m``). Imports no torch. Source: ``runpy`` and ``Modules/main.c`` of CPython 3.11, coverage.py's ``execfile.py``.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, ModuleType, TracebackType
from typing import Any

from precisionlab.errors import SubjectError

_OWN = str(Path(__file__).parents[1]) + os.sep


@dataclass(frozen=True)
class Script:
    """A program, found and compiled; nothing of it has run."""

    name: str
    """As the user wrote it."""
    code: CodeType
    arguments: tuple[str, ...]
    file: str
    argv0: str
    path0: str
    spec: Any = None
    package: str | None = None
    module: bool = False
    """Given with ``-m``."""


@dataclass(frozen=True)
class Ending:
    """How the program ended: by itself (``code`` 0, no ``error``), by ``SystemExit``, by an exception, or by a signal."""

    code: int
    error: BaseException | None = None
    signal: str = ""

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C ended it."""
        return isinstance(self.error, KeyboardInterrupt)


def find_script(name: str, arguments: tuple[str, ...] = (), *, module: bool = False) -> Script:
    """The program ``name``: a file, a folder or zip with ``__main__.py``, or with ``module`` a module name.

    Raises ``SubjectError`` when there is none, and ``SyntaxError`` when it does not compile.
    """
    return _find_module(name, arguments) if module else _find_file(name, arguments)


def _find_file(name: str, arguments: tuple[str, ...]) -> Script:
    path = os.path.abspath(name)
    if not os.path.exists(path):
        hint = f"-m {name} for a module" if importlib.util.find_spec(name.partition(".")[0]) and not name.endswith(".py") else ""
        raise SubjectError(f"there is no file {name}", hint=hint or "precisionlab run [OPTIONS] train.py [ARGS]")
    if os.path.isdir(path) or not path.endswith((".py", ".pyw")):
        spec = importlib.machinery.PathFinder.find_spec("__main__", [path])
        code = spec.loader.get_code("__main__") if spec is not None and spec.loader is not None else None  # type: ignore[attr-defined]
        if spec is not None and code is not None:
            return Script(name, code, arguments, str(spec.origin), name, path, spec, "")
        if os.path.isdir(path):
            raise SubjectError(f"{name} is a folder without a __main__.py", hint=f"{name}/train.py, or -m for a package")
    try:
        source = Path(path).read_bytes()
    except OSError as error:
        raise SubjectError(f"{name} cannot be read: {error.strerror}", hint="another file") from None
    try:
        code = compile(source, path, "exec", dont_inherit=True)
    except ValueError as error:
        raise SubjectError(f"{name} is no Python program: {error}", hint="precisionlab run [OPTIONS] train.py [ARGS]") from None
    return Script(name, code, arguments, path, name, os.path.dirname(os.path.realpath(path)))


def _find_module(name: str, arguments: tuple[str, ...]) -> Script:
    given = name
    with _first_on_path(os.getcwd()):
        try:
            spec = importlib.util.find_spec(name)
            if spec is not None and spec.submodule_search_locations is not None:
                name, spec = f"{name}.__main__", importlib.util.find_spec(f"{name}.__main__")
        except ModuleNotFoundError as error:
            if error.name is not None and (name == error.name or name.startswith(error.name + ".")):
                spec = None
            else:
                raise
        except (ValueError, ImportError) as error:
            raise SubjectError(f"-m {name}: {error}", hint="-m package.module") from None
        if spec is None or spec.loader is None:
            where = f"{name.replace('.', '/')}.py"
            raise SubjectError(f"there is no module {name}", hint=where if os.path.exists(where) else "-m package.module")
        code = spec.loader.get_code(name)  # type: ignore[attr-defined]
    if code is None:
        raise SubjectError(f"-m {name} has no Python code", hint="-m package.module")
    return Script(given, code, arguments, str(spec.origin), str(spec.origin), os.getcwd(), spec, spec.parent, module=True)


class _first_on_path:
    """``sys.path`` begins with a folder while it is entered."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def __enter__(self) -> None:
        sys.path.insert(0, self._folder)

    def __exit__(self, *error: object) -> None:
        if self._folder in sys.path:
            sys.path.remove(self._folder)


def prepare(script: Script) -> ModuleType:
    """Make ``sys.argv``, ``sys.path`` and ``__main__`` what the program expects. Returns the new ``__main__``."""
    main = ModuleType("__main__")
    loader = script.spec.loader if script.spec is not None else importlib.machinery.SourceFileLoader("__main__", script.file)
    vars(main).update(
        __file__=script.file, __builtins__=sys.modules["builtins"], __spec__=script.spec, __package__=script.package, __loader__=loader,
        __cached__=None,
    )  # fmt: skip
    sys.modules["__main__"] = main
    sys.argv[:] = [script.argv0, *script.arguments]
    if not getattr(sys.flags, "safe_path", False) and not sys.flags.isolated:
        sys.path[0:1] = [script.path0]
    return main


def execute(script: Script, main: ModuleType) -> Ending:
    """Run it to its end. ``SystemExit`` and exceptions are returned, not raised; a crash has printed the program's own traceback."""
    try:
        exec(script.code, vars(main))
    except SystemExit as error:
        return Ending(exit_code(error))
    except KeyboardInterrupt as error:
        return Ending(130, error)
    except BaseException as error:
        show(error)
        return Ending(1, error)
    return Ending(0)


def exit_code(error: SystemExit) -> int:
    """What Python makes of it: None is 0, numbers are themselves, anything else is printed to stderr and is 1."""
    if error.code is None:
        return 0
    if isinstance(error.code, int):
        return error.code & 0xFF
    print(error.code, file=sys.stderr, flush=True)
    return 1


def show(error: BaseException) -> None:
    """The traceback as Python prints it, by the program's own ``sys.excepthook`` if it has one, without our frames."""
    clean(error)
    try:
        sys.excepthook(type(error), error, error.__traceback__)
    except Exception:  # a hook of the program's own that fails, as Python itself handles it
        traceback.print_exception(error, file=sys.stderr)
    sys.stderr.flush()


def clean(error: BaseException) -> None:
    """Take the frames of precisionlab out of the traceback of ``error`` and of those it was raised from."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        one = waiting.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        one.__traceback__ = _without_ours(one.__traceback__)
        waiting += [one.__cause__, one.__context__, *getattr(one, "exceptions", ())]


def _without_ours(trace: TracebackType | None) -> TracebackType | None:
    """Without our frames, and without torch's that only lead to our dispatch mode and from it to the op."""
    frames: list[TracebackType] = []
    while trace is not None:
        frames.append(trace)
        trace = trace.tb_next
    drop = {i for i, one in enumerate(frames) if _is_ours(one)}
    for i in sorted(drop):
        before, after = i - 1, i + 1
        while before >= 0 and _file(frames[before]).endswith(_TO_THE_MODE):
            drop.add(before)
            before -= 1
        if after < len(frames) and _file(frames[after]).endswith(_FROM_THE_MODE):
            drop.add(after)
    out: TracebackType | None = None
    for i in reversed(range(len(frames))):
        if i not in drop:
            one = frames[i]
            out = TracebackType(out, one.tb_frame, one.tb_lasti, one.tb_lineno)
    return out


_TO_THE_MODE = tuple(os.path.join("torch", *parts) for parts in (("_compile.py",), ("_dynamo", "eval_frame.py")))
_FROM_THE_MODE = os.path.join("torch", "_ops.py")


def _file(trace: TracebackType) -> str:
    return trace.tb_frame.f_code.co_filename


def _is_ours(trace: TracebackType) -> bool:
    return _file(trace).startswith(_OWN) and not _file(trace).startswith(os.path.join(_OWN, "models", ""))
