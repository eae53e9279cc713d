"""The reference is what the program says of itself."""

from __future__ import annotations

import pytest

from .conftest import generate
from .pages import DOCS


@pytest.mark.parametrize("name", sorted(generate.PAGES))
def test_page_is_what_the_program_says(name: str) -> None:
    assert (DOCS / "reference" / name).read_text(encoding="utf-8") == generate.render(name), "out of date: ./dev docs makes it"


def test_reference_holds_no_page_that_nothing_generates() -> None:
    assert {path.name for path in (DOCS / "reference").iterdir()} == set(generate.PAGES)


def test_check_names_the_page_that_is_out_of_date(tmp_path, monkeypatch, capsys) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(generate, "REFERENCE", tmp_path)
    monkeypatch.setattr(generate, "PAGES", {"thresholds.md": generate.PAGES["thresholds.md"]})
    assert generate.main(["--check"]) == 1
    assert "thresholds.md is out of date" in capsys.readouterr().out
    assert generate.main([]) == 0
    assert generate.main(["--check"]) == 0


def test_every_public_name_has_a_section() -> None:
    import precisionlab

    page = (DOCS / "reference" / "api.md").read_text(encoding="utf-8")
    assert [n for n in precisionlab.__all__ if n != "__version__" and f"## pl.{n}\n" not in page] == []
