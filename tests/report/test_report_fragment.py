from __future__ import annotations

from html.parser import HTMLParser

from report_gold import assert_gold
from sample_reports import make_finding

from precisionlab.report.fragment import MAX_BYTES, render_fragment
from precisionlab.report.model import Report


def test_fragment_gold(broken: Report) -> None:
    assert_gold("broken.html", render_fragment(broken) + "\n")


def test_everything_from_the_program_is_escaped(broken: Report) -> None:
    broken.findings = [make_finding(message="<script>alert(1)</script>", module='"><img src=x>', advice="a < b & c")]
    broken.record.notes.append("<b>note</b>")
    fragment = render_fragment(broken)
    assert "<script" not in fragment and "<img" not in fragment and "<b>note" not in fragment
    assert "a &lt; b &amp; c" in fragment


def test_fragment_stays_small_however_much_was_found(broken: Report) -> None:
    broken.findings = [make_finding(i, message="<&" * 5000, advice='"' * 5000) for i in range(500)]
    broken.record.notes = [f"{i}" + "&" * 1000 for i in range(500)]
    assert len(render_fragment(broken).encode()) < MAX_BYTES


def test_tags_are_balanced(broken: Report) -> None:
    class Balance(HTMLParser):
        def __init__(self) -> None:
            super().__init__()
            self.open: list[str] = []

        def handle_starttag(self, tag: str, attrs: object) -> None:
            if tag != "br":
                self.open.append(tag)

        def handle_endtag(self, tag: str) -> None:
            assert self.open.pop() == tag

    balance = Balance()
    balance.feed(render_fragment(broken))
    assert not balance.open


def test_notebook_shows_the_fragment(broken: Report) -> None:
    assert broken._repr_html_() == render_fragment(broken)
