"""The site builds without a network, and its pages load nothing from elsewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from .pages import ROOT


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocs")
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    folder = tmp_path_factory.mktemp("site")
    build(load_config(str(ROOT / "mkdocs.yml"), site_dir=str(folder), strict=True))
    return folder


def test_site_has_a_page_for_every_part(site: Path) -> None:
    pages = ("index", "how-to/audit-a-model", "explanation/shadow", "reference/codes", "decisions/0001-twins-belong-to-storages")
    assert [p for p in pages if not (site / f"{p}.html").exists()] == []
    assert not (site / "tools").exists()


def test_pages_load_nothing_from_elsewhere(site: Path) -> None:
    loading = re.compile(r"<(?:script|img|iframe|link)\b[^>]*\b(?:src|href)=[\"']?(?:https?:)?//[^>]*>")
    foreign = [f"{path.name}: {tag}" for path in site.rglob("*.html") for tag in loading.findall(path.read_text(encoding="utf-8"))]
    assert [tag for tag in foreign if 'rel="canonical"' not in tag] == []


def test_marks_of_blocks_stay_off_the_page(site: Path) -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in site.rglob("*.html"))
    assert "```" not in text and "no-run" not in text
