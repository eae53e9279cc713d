"""Makes the pages of ``docs/reference`` from the program itself. ``python docs/tools/generate.py [--check]``, or ``./dev docs``.

The pages are committed, so that they can be read on a code host; ``--check`` fails when one of them is out of date.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from api_page import api_page, attribute_texts, joined

REFERENCE = Path(__file__).resolve().parents[1] / "reference"


def head(title: str, made_from: str) -> list[str]:
    """The first lines of a generated page."""
    return [f"# {title}", "", f"Generated from {made_from} by `./dev docs`; do not edit.", ""]


def table(names: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> list[str]:
    """A Markdown table with one line a row."""
    return [
        f"| {' | '.join(names)} |",
        f"|{'---|' * len(names)}",
        *(f"| {' | '.join(_cell(text) for text in row)} |" for row in rows),
        "",
    ]


def _cell(text: str) -> str:
    """Without bars. Renderers differ on how to escape one in code: there it becomes a stroke."""
    parts = re.split(r"(`[^`]*`)", joined(text))
    return "".join(part.replace("|", "/" if part.startswith("`") else "&#124;") for part in parts)


# -- command line -------------------------------------------------------------------------------------------------------------------


def cli_page() -> str:
    """Every command with its arguments and options, as ``--help`` has them."""
    from typer.main import get_command

    from precisionlab.cli.app import app

    lines = [*head("Command line", "the definitions behind `precisionlab --help`"), *exit_codes()]
    for path, command in _commands(get_command(app), "precisionlab"):
        lines += _command(path, command)
    return "\n".join(lines)


def exit_codes() -> list[str]:
    """The table of exit codes, from the docstrings of ``ExitCode``."""
    from precisionlab.cli.codes import ExitCode

    docs = attribute_texts(ExitCode)
    rows = [(f"`{int(code)}`", docs.get(code.name, code.name.capitalize() + ".")) for code in ExitCode]
    return ["## Exit codes", "", *table(("code", "meaning"), rows)]


def _commands(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    yield path, command
    for name, child in getattr(command, "commands", {}).items():
        yield from _commands(child, f"{path} {name}")


def _command(path: str, command: Any) -> list[str]:
    context = command.context_class(command, info_name=path)
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = [p for p in command.params if p.param_type_name == "option"]
    usage = " ".join(
        [
            path,
            "[OPTIONS]",
            *(_placeholder(a) for a in arguments),
            *(["COMMAND ..."] if hasattr(command, "commands") else []),
        ]
    )
    lines = [f"## {path}", "", "```text", usage, "```", "", joined(command.help or ""), ""]
    named = [(f"`{_placeholder(a)}`", a.help or "") for a in arguments]
    if named:
        lines += table(("argument", "meaning"), named)
    rows = [_option(option, context) for option in options]
    if rows:
        lines += table(("option", "meaning"), rows)
    if command.epilog:
        lines += _examples(command.epilog)
    return lines


def _option(option: Any, context: Any) -> tuple[str, str]:
    spelled, text = option.get_help_record(context)
    return f"`{spelled}`", re.sub(r"\[default: \((.*?)\)", r"[default: \1", text)


def _placeholder(argument: Any) -> str:
    word = (argument.metavar or argument.name).upper()
    word = word if argument.nargs == 1 else f"{word}..."
    return word if argument.required else f"[{word}]"


def _examples(epilog: str) -> list[str]:
    text = joined(epilog)
    lead, _, rest = text.partition(": ")
    return [f"{lead}:", "", "```text", *(part.strip() for part in rest.split(" | ")), "```", ""]


# -- JSON report --------------------------------------------------------------------------------------------------------------------


def json_page() -> str:
    """The JSON report, object by object, from its schema."""
    import precisionlab.report

    schema = json.loads(Path(precisionlab.report.__file__).with_name("schema.json").read_text(encoding="utf-8"))
    lines = head("JSON report", "`precisionlab/report/schema.json`")
    lines += [
        schema["description"] + " The order of keys and rows is stable: the same program, seed and versions give the same bytes. "
        "`pl.Report.to_dict()` gives the same as Python values.",
        "",
        "`number` is a JSON number or one of the strings `nan`, `inf`, `-inf`. Names end in their unit: `_u` are units of roundoff of the "
        "storage format, `_log2` binades, `_share` parts of 1.",
        "",
        "## report",
        "",
        *_fields(schema),
    ]
    for name, definition in sorted(schema["$defs"].items()):
        if definition.get("properties"):
            lines += [f"## {name}", ""]
            lines += [definition["description"], ""] if "description" in definition else []
            lines += _fields(definition)
    return "\n".join(lines)


def _fields(definition: dict[str, Any], prefix: str = "") -> list[str]:
    return table(("field", "type", "meaning"), list(_rows(definition, prefix)))


def _rows(definition: dict[str, Any], prefix: str) -> Iterator[tuple[str, str, str]]:
    required = set(definition.get("required", ()))
    for name, field in definition["properties"].items():
        optional = "" if name in required else "; may be missing"
        yield f"`{prefix}{name}`", _type(field) + optional, field.get("description", "")
        inner, mark = _inner(field)
        if inner is not None:
            yield from _rows(inner, f"{prefix}{name}{mark}.")


def _inner(field: dict[str, Any]) -> tuple[dict[str, Any] | None, str]:
    """The object that a field holds in place, and how a path goes through it."""
    for choice in (field, *field.get("anyOf", ())):
        if choice.get("properties"):
            return choice, ""
        if choice.get("items", {}).get("properties"):
            return choice["items"], "[]"
    return None, ""


def _type(field: dict[str, Any]) -> str:
    if "$ref" in field:
        name = field["$ref"].rpartition("/")[2]
        return {"number": "number", "number_or_null": "number or null"}.get(name) or (
            f"`{name}`" if name in ("verdict", "phase", "evidence", "counts") else f"[{name}](#{name})"
        )
    if "anyOf" in field:
        return " or ".join(sorted((_type(choice) for choice in field["anyOf"]), key=lambda word: word == "null"))
    if "const" in field:
        return f"`{field['const']}`"
    if "enum" in field:
        return " or ".join("null" if word is None else f"`{word}`" for word in field["enum"])
    kind = field.get("type", "any")
    if kind == "array":
        return f"list of {_type(field['items'])}" if "items" in field else "list"
    if kind == "object" and isinstance(field.get("additionalProperties"), dict):
        return f"object: name to {_type(field['additionalProperties'])}"
    return " or ".join(kind) if isinstance(kind, list) else str(kind)


# -- finding codes ------------------------------------------------------------------------------------------------------------------

FAMILIES = {
    "PL1": "Range: overflow, underflow, domain, casts",
    "PL2": "Gradients",
    "PL3": "Weight updates, optimizer state, averages",
    "PL4": "Loss scale and order of the training loop",
    "PL5": "Precision: cancellation, accumulation, growth, decisions",
    "PL6": "Casts and plans",
    "PL9": "The audit itself",
}


def codes_page() -> str:
    """Every finding code with the text of ``precisionlab explain``, and the scenarios that show it."""
    import precisionlab.checks.catalogue  # noqa: F401  registers the checks
    from precisionlab.checks.base import all_checks
    from precisionlab.checks.sections import sections, summary
    from precisionlab.scenarios import all_scenarios

    scenarios = all_scenarios()
    checks = all_checks()
    lines = head("Finding codes", "the docstrings of the checks")
    lines += ["The same text as `precisionlab explain CODE`, with the [scenarios](../scenarios.md) in which each can be seen.", ""]
    for family, words in FAMILIES.items():
        rows = [(f"[{c.code}](#{c.code.lower()})", c.title, str(c.kind)) for c in checks.values() if c.code.startswith(family)]
        lines += [f"**{words}**", "", *table(("code", "title", "kind"), rows)]
    for check in checks.values():
        lines += [f"## {check.code}", "", f"**{check.title}** ({check.kind}). {summary(check)}", ""]
        for heading, text in sections(check).items():
            if heading == "Smallest example":
                lines += [f"**{heading}**", "", "```python", text, "```", ""]
            else:
                lines += [f"**{heading}.** {text}", ""]
        shown = [f"`{scenario.name}`" for scenario in scenarios if check.code in scenario.codes]
        if shown:
            lines += [f"**See it happen** with `precisionlab scenarios run NAME`: {', '.join(shown)}.", ""]
    return "\n".join(lines)


# -- thresholds ---------------------------------------------------------------------------------------------------------------------


def thresholds_page() -> str:
    """Every threshold with its default and its sentence."""
    from precisionlab import Thresholds

    rows = [(f"`{name}`", f"{default:.6g}", sentence) for name, default, sentence in Thresholds.describe()]
    return "\n".join(
        [
            *head("Thresholds", "`precisionlab.Thresholds`"),
            "Each can be set by name: in `[tool.precisionlab]` of `pyproject.toml`, with `--set NAME=VALUE`, and in "
            "`pl.audit(NAME=VALUE)`.",
            "",
            "`u` is the unit roundoff of the storage format: 2^-11 in fp16, 2^-8 in bf16, 2^-24 in fp32. Where a sentence gives a "
            'margin, "quiet" is the largest value over healthy and repaired programs and "faulty" the smallest over programs that '
            "must be convicted.",
            "",
            *table(("name", "default", "meaning"), rows),
        ]
    )


# -- all of them --------------------------------------------------------------------------------------------------------------------

PAGES: dict[str, Callable[[], str]] = {
    "cli.md": cli_page,
    "api.md": api_page,
    "json.md": json_page,
    "codes.md": codes_page,
    "thresholds.md": thresholds_page,
}


def render(name: str) -> str:
    """One page as text, with one newline at its end."""
    return PAGES[name]().rstrip() + "\n"


def main(words: list[str]) -> int:
    """Write the pages; with ``--check`` only say which are out of date, and return 1 when any is."""
    check, stale = "--check" in words, []
    for name in PAGES:
        path, text = REFERENCE / name, render(name)
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(name)
        if not check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    for name in stale:
        print(f"docs/reference/{name} {'is out of date: ./dev docs makes it' if check else 'made'}")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
