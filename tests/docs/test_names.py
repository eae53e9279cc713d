"""What the documentation names exists: links, anchors, finding codes, commands and their options, public names, files."""

from __future__ import annotations

import importlib
import re
import shlex
from functools import cache
from typing import Any

import pytest
from typer.main import get_command

import precisionlab as pl
from precisionlab.checks.catalogue import all_checks
from precisionlab.cli.app import app
from precisionlab.debugging import LastOp
from precisionlab.records import RunRecord

from .pages import ALL, DOCS, ROOT, anchors, blocks, links, spans

NAMES = [str(page.relative_to(ROOT)) for page in ALL]
BY_NAME = pytest.mark.parametrize("name", NAMES)
OTHER_OPTIONS = {"--check", "--all", "--nproc-per-node", "--standalone", "--lr", "--no-isolation"}
"""Of ./dev, of torchrun, of the scripts in the examples."""
OWNERS: dict[str, Any] = {
    "pl": pl,
    "precisionlab": pl,
    "audit": pl.audit,
    "audit.last": LastOp,
    "audit.report": pl.Report,
    "report": pl.Report,
    "report.record": RunRecord,
}
"""What a name in the documentation stands for."""


@BY_NAME
def test_links_lead_somewhere(name: str) -> None:
    page = ROOT / name
    dead = []
    for link in links(page):
        if re.match(r"https?:|mailto:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            dead.append(link)
    assert dead == []


@pytest.mark.parametrize("name", [n for n in NAMES if n.startswith("docs/")])
def test_pages_of_the_site_link_only_to_pages_of_the_site(name: str) -> None:
    page = ROOT / name
    outside = [link for link in links(page) if not re.match(r"https?:|#", link) and DOCS not in (page.parent / link).resolve().parents]
    assert outside == []


@BY_NAME
def test_finding_codes_exist(name: str) -> None:
    known = list(all_checks())
    named = set(re.findall(r"\bPL\d{1,3}\b", (ROOT / name).read_text(encoding="utf-8")))
    assert sorted(code for code in named if not any(k.startswith(code) for k in known)) == []


@BY_NAME
def test_commands_and_options_exist(name: str) -> None:
    page = ROOT / name
    lines = [span for span in spans(page) if span.startswith("precisionlab ")]
    for block in blocks(page):
        if block.language in ("console", "text", "bash", "sh", ""):
            lines += [line.removeprefix("$ ") for line in block.text.splitlines() if line.removeprefix("$ ").startswith("precisionlab ")]
        if block.language in ("yaml", "yml"):
            lines += re.findall(r"precisionlab .*", block.text)
    assert [line for line in lines if _wrong(line)] == []


@BY_NAME
def test_scenarios_exist(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    named = set(re.findall(r"precisionlab scenarios (?:run|show|try|quiz) ([a-z0-9][\w-]*)", text))
    assert sorted(named - set(pl.scenarios.names())) == []


@BY_NAME
def test_options_alone_exist(name: str) -> None:
    known = OTHER_OPTIONS | {option for command in _tree().values() for option in _options(command)}
    alone = {
        word for span in spans(ROOT / name) if not span.startswith("precisionlab ") for word in re.findall(r"(?<![\w-])--[a-z][\w-]*", span)
    }
    assert sorted(alone - known) == []


@BY_NAME
def test_public_names_exist(name: str) -> None:
    page = ROOT / name
    text = "\n".join([*spans(page), *(b.text for b in blocks(page) if b.language == "python")])
    named = set(re.findall(r"(?<![\w./-])(?:pl|audit|report)(?:\.[A-Za-z_]\w*)+", text))
    assert sorted(n for n in named if not re.fullmatch(r".*\.(json|md|py|html|svg)", n) and not _exists(n)) == []


@BY_NAME
def test_files_and_modules_in_code_exist(name: str) -> None:
    wrong = []
    in_the_wheel = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    for span in spans(ROOT / name):
        word = span.split()[0]
        if (
            re.fullmatch(r"(precisionlab|tests|docs|bench|scenarios)/[\w./-]+", word)
            and not (ROOT / word).exists()
            and f'"{word}"' not in in_the_wheel
        ):
            wrong.append(span)
        if re.fullmatch(r"precisionlab(\.\w+)+", word) and not _exists(word):
            wrong.append(span)
        if word == "./dev" and not re.search(rf"^\./dev {re.escape(span.split()[1])}\b", (ROOT / "dev").read_text(), re.MULTILINE):
            wrong.append(span)
    assert wrong == []


@cache
def _tree() -> dict[str, Any]:
    """``"scenarios run"`` -> its command."""
    found: dict[str, Any] = {}

    def walk(command: Any, path: str) -> None:
        found[path] = command
        for name, child in getattr(command, "commands", {}).items():
            walk(child, f"{path} {name}".strip())

    walk(get_command(app), "")
    return found


def _options(command: Any) -> set[str]:
    return {"-h", "--help"} | {o for p in command.params if p.param_type_name == "option" for o in (*p.opts, *p.secondary_opts)}


def _wrong(line: str) -> bool:
    """Whether a line names a command or an option that does not exist. After the script of ``run``, options are the script's."""
    words = shlex.split(line.split("   #")[0].split(" | ")[0], comments=True)[1:]
    path = ""
    while words and f"{path} {words[0]}".strip() in _tree():
        path = f"{path} {words.pop(0)}".strip()
    command = _tree()[path]
    if words and hasattr(command, "commands") and not words[0].startswith("-") and words[0].islower() and words[0].isalpha():
        return path != ""  # a sentence that begins with the program's name is no command line
    taking = {o for p in command.params if p.param_type_name == "option" and not p.is_flag for o in p.opts}
    value_follows = False
    for word in words:
        if value_follows:
            value_follows = False
        elif word.startswith("-") and len(word) > 1:
            option = word.partition("=")[0]
            if option not in _options(command):
                return True
            value_follows = option in taking and "=" not in word
        elif path == "run":
            return False
    return False


def _exists(name: str) -> bool:
    head = max((owner for owner in OWNERS if f"{name}.".startswith(f"{owner}.")), key=len)
    rest = name[len(head) :].strip(".").split(".") if name != head else []
    found = OWNERS[head]
    walked = "precisionlab" if head in ("pl", "precisionlab") else None
    for part in rest:
        walked = f"{walked}.{part}" if walked else None
        if hasattr(found, part) or part in getattr(found, "__dataclass_fields__", {}):
            found = getattr(found, part, None)
            if found is None:
                return True
            continue
        try:
            found = importlib.import_module(walked) if walked else None
        except ImportError:
            return False
        if found is None:
            return False
    return True


def test_a_wrong_option_a_wrong_command_and_a_wrong_name_are_found() -> None:
    assert _wrong("precisionlab audit model.py --dtypes fp16")
    assert _wrong("precisionlab scenarios lst")
    assert not _wrong("precisionlab run --steps 1:2 train.py --lr 1")
    assert not _exists("pl.audits") and not _exists("report.finding") and _exists("pl.Report.to_dict")


def test_every_page_by_hand_is_in_the_navigation() -> None:
    yaml = pytest.importorskip("yaml")
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
    listed = re.findall(r"[\w/-]+\.md", str(nav))
    assert [p for p in listed if not (DOCS / p).exists()] == []
    folders = ("how-to", "explanation", "reference")
    assert [
        str(p.relative_to(DOCS)) for f in folders for p in sorted((DOCS / f).glob("*.md")) if str(p.relative_to(DOCS)) not in listed
    ] == []


def test_workflows_shown_are_yaml() -> None:
    yaml = pytest.importorskip("yaml")
    shown = [b for page in ALL for b in blocks(page) if b.language in ("yaml", "yml")]
    assert shown and all(isinstance(yaml.safe_load(b.text), dict) for b in shown)
