"""``precisionlab explain CODE``: what a finding means and how to repair it. Offline, without torch."""

from __future__ import annotations

import difflib
import json
import textwrap
from typing import Annotated, Any

import typer

from precisionlab.checks.base import Check
from precisionlab.cli.guard import guarded
from precisionlab.cli.options import OutputFormat
from precisionlab.errors import SettingsError

EPILOG = "Examples: precisionlab explain PL101 | precisionlab explain pl5 | precisionlab explain overflow | precisionlab explain --all"


def explain(
    code: Annotated[
        str | None,
        typer.Argument(metavar="CODE", help="a code (PL101), its first digits (PL1), or a word of its title", show_default=False),
    ] = None,
    all: Annotated[bool, typer.Option("--all", help="every code")] = False,
    format: Annotated[OutputFormat, typer.Option(help="how to print")] = OutputFormat.TABLE,
    debug: Annotated[bool, typer.Option("--debug", help="tracebacks")] = False,
) -> None:
    """Say what a finding code means, why it hurts, how it is measured, and how to repair it."""
    with guarded(debug):
        checks = _load()
        if not all and code is None:
            raise SettingsError("explain needs a code", hint="precisionlab explain PL101, or --all")
        chosen = list(checks.values()) if code is None else find(code, checks)
        if format is OutputFormat.JSON:
            typer.echo(json.dumps([as_dict(check) for check in chosen], indent=2, ensure_ascii=False))
        elif len(chosen) == 1:
            typer.echo(as_text(chosen[0]))
            if _has_scenario(chosen[0].code):
                typer.echo(f"\nsee it happen: precisionlab scenarios run {chosen[0].code}")
        elif all:
            typer.echo("\n\n\n".join(as_text(check) for check in chosen))
        else:
            typer.echo("\n".join(f"{check.code}  {check.title}" for check in chosen))


def find(wanted: str, checks: dict[str, type[Check]]) -> list[type[Check]]:
    """The checks that ``wanted`` names: by code, by the first digits of it, or by words of the title or the kind.

    Raises ``SettingsError`` with the nearest code when there is none.
    """
    text = wanted.strip().lower()
    code = text if text.startswith("pl") else f"pl{text}" if text.isdigit() else text
    exact = [check for name, check in checks.items() if name.lower() == code]
    if exact:
        return exact
    by_prefix = [check for name, check in checks.items() if name.lower().startswith(code)]
    by_title = [check for check in checks.values() if text in check.title.lower() or text == str(check.kind)]
    found = (by_prefix if text else []) or by_title
    if found:
        return found
    names = {name.lower(): name for name in checks} | {check.title.lower(): check.code for check in checks.values()}
    near = difflib.get_close_matches(code, names, n=1, cutoff=0.4)
    hint = f"{names[near[0]]} ({checks[names[near[0]]].title})" if near else "precisionlab explain --all lists every code"
    raise SettingsError(f"there is no finding code {wanted!r}", hint=hint)


def as_text(check: type[Check]) -> str:
    """Code and title, then the sections as they stand in the docstring."""
    from precisionlab.checks.sections import sections, summary

    title = f"{check.code}  {check.title}  [{check.kind}]"
    parts = [f"{title}\n{'=' * len(title)}", summary(check)]
    parts += [f"{heading}\n{textwrap.indent(text, '    ')}" for heading, text in sections(check).items()]
    return "\n\n".join(part for part in parts if part)


def as_dict(check: type[Check]) -> dict[str, Any]:
    """The same as data."""
    from precisionlab.checks.sections import sections, summary

    return {"code": check.code, "title": check.title, "kind": str(check.kind), "summary": summary(check), "sections": sections(check)}


def _has_scenario(code: str) -> bool:
    """Whether the library of scenarios shows this finding."""
    from precisionlab.scenarios.catalogue import recorded

    return any(finding.startswith(code) for entry in recorded().values() for finding in entry["findings"])


def _load() -> dict[str, type[Check]]:
    import precisionlab.checks.catalogue  # noqa: F401  (registers the checks)
    from precisionlab.checks.base import all_checks

    return all_checks()
