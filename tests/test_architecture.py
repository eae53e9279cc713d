"""The direction of dependencies, read from the imports."""

from __future__ import annotations

import ast
from pathlib import Path

import precisionlab

ROOT = Path(precisionlab.__file__).parent

MEASURING = ["errors", "thresholds", "records", "formats", "plans", "backends", "ops", "shadow", "trackers"]
"""Each may import what stands before it."""
JUDGING = ["errors", "thresholds", "records", "formats", "plans", "checks", "report"]
TORCH_FREE = {"errors", "thresholds", "records", "formats", "plans", "checks", "report", "cli"}


def _imports(path: Path) -> set[str]:
    """Modules imported anywhere in a file outside of ``if TYPE_CHECKING``."""
    tree = ast.parse(path.read_text())
    hidden = {
        id(child)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        for child in ast.walk(node)
    }
    found: set[str] = set()
    for node in ast.walk(tree):
        if id(node) in hidden:
            continue
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return found


def _part(path: Path) -> str:
    relative = path.relative_to(ROOT)
    return relative.parts[0] if len(relative.parts) > 1 else relative.stem


def _own(modules: set[str]) -> set[str]:
    return {m.split(".")[1] for m in modules if m.startswith("precisionlab.")}


def test_imports_point_in_one_direction() -> None:
    wrong = []
    for path in sorted(ROOT.rglob("*.py")):
        part = _part(path)
        for chain in (MEASURING, JUDGING):
            if part in chain:
                later = set(chain[chain.index(part) + 1 :])
                wrong += [f"{path.relative_to(ROOT)} imports {other}" for other in sorted(_own(_imports(path)) & later)]
    assert wrong == []


def test_measuring_and_judging_meet_only_in_the_session() -> None:
    judging, measuring = {"checks", "report"}, {"ops", "shadow", "trackers"}
    wrong = [
        f"{path.relative_to(ROOT)} imports {other}"
        for path in sorted(ROOT.rglob("*.py"))
        for own, foreign in ((judging, measuring), (measuring, judging))
        if _part(path) in own
        for other in sorted(_own(_imports(path)) & foreign)
    ]
    assert wrong == []


def test_the_judging_half_imports_no_torch() -> None:
    wrong = [str(p.relative_to(ROOT)) for p in sorted(ROOT.rglob("*.py")) if _part(p) in TORCH_FREE - {"cli"} and "torch" in _imports(p)]
    assert wrong == []
