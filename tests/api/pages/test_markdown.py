"""What becomes of a model's Markdown: a few elements, and nothing that runs, loads or leads into this server."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.api.pages.markdown import MOST_CHARACTERS, render_markdown, render_newest

ELEMENTS = {"p", "br", "em", "strong", "s", "a", "ul", "ol", "li", "blockquote", "hr", "pre", "code"} | {
    "div",
    "table",
    "thead",
    "tbody",
    "tr",
    "th",
    "td",
}
ATTRIBUTES = {
    "a": {"href", "target", "rel"},
    "p": {"class", "role", "aria-level"},
    "pre": {"class", "tabindex", "role", "aria-label"},
    "div": {"class", "tabindex", "role", "aria-label"},
    "th": {"scope"},
    "ol": {"start"},
}


class _Checked(HTMLParser):
    """Refuses what no answer may become; keeps the links and the text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.text = ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in ELEMENTS, tag
        assert {name for name, _ in attrs} <= ATTRIBUTES.get(tag, set()), attrs
        self.links += [value or "" for name, value in attrs if name == "href"]

    def handle_data(self, data: str) -> None:
        self.text += data

    def handle_comment(self, data: str) -> None:
        raise AssertionError(data)

    def handle_decl(self, decl: str) -> None:
        raise AssertionError(decl)

    def handle_pi(self, data: str) -> None:
        raise AssertionError(data)


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("**a** and `b`", "<p><strong>a</strong> and <code>b</code></p>\n"),
        ("one\ntwo", "<p>one<br />\ntwo</p>\n"),
        ("# Title", '<p class="heading" role="heading" aria-level="2">Title</p>\n'),
        ("- a\n- b", "<ul>\n<li>a</li>\n<li>b</li>\n</ul>\n"),
        (
            "```python\nx < 1\n```",
            '<pre class="code" tabindex="0" role="group" aria-label="Code"><code>x &lt; 1\n</code></pre>\n',
        ),
        (
            '[a](https://x.example/?a=1&b="2)',
            '<p><a href="https://x.example/?a=1&amp;b=%222" target="_blank" rel="noopener noreferrer nofollow">'
            "a</a></p>\n",
        ),
    ],
)
def test_markdown_becomes_html(text: str, html: str) -> None:
    assert render_markdown(text) == html


def test_a_table_is_one_that_scrolls() -> None:
    html = render_markdown("| a | b |\n| :-: | --: |\n| 1 | 2 |")
    assert '<div class="scroll" tabindex="0"' in html
    assert '<th scope="col">a</th>' in html
    assert "<td>2</td>" in html
    assert "style" not in html


@pytest.mark.parametrize(
    "text",
    [
        "<script>alert(1)</script>",
        "a <img src=x onerror=alert(1)> b",
        "<!-- a -->",
        "<?php a ?>",
        "<svg/onload=alert(1)>",
        "![a](https://evil.example/pixel.png)",
        "[a](javascript:alert(1))",
        "[a](JaVaScRiPt:alert(1))",
        "[a](java&#10;script:alert(1))",
        "[a](data:text/html,<script>alert(1)</script>)",
        "[a](vbscript:x)",
        "[a](/sign-out)",
        "[a](//evil.example)",
        "[a](\\\\evil.example)",
        "[a]: javascript:alert(1)\n\n[a]",
        "<javascript:alert(1)>",
        "[a]()",
        "[a](<>)",
        '[a](https://x.example "t\\" onmouseover=alert(1)")',
        '```" onload=alert(1)\nx\n```',
        "`<b>`",
        "&lt;script&gt;",
        "| <script> |\n| - |\n| <img src=x> |",
    ],
)
def test_hostile_markdown_is_text(text: str) -> None:
    found = _Checked(render_markdown(text))
    assert all(link.startswith("https://x.example") or link.startswith("https://evil") for link in found.links)


def test_what_would_turn_the_order_is_written_out_and_languages_are_left_alone() -> None:
    assert "\\u202e" in render_markdown("a\u202eb &#x202e; c")
    assert "\u202e" not in render_markdown("a\u202eb &#x202e; c")
    # Joiners: a family, and a Persian word.
    for text in ("\U0001f468\u200d\U0001f469", "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645"):
        assert text in render_markdown(text)


_PARTS = st.sampled_from(
    ["[", "](", ")", "<", ">", "`", "```\n", "*", "_", "|", "\n", "- ", "# ", "&#x", ";", "!", "~~"]
)
_TEXTS = st.lists(
    _PARTS | st.sampled_from(["javascript:", "https://x.example", "<script>", "a", " ", '"']) | st.text(max_size=4)
)


@settings(max_examples=400, deadline=None)
@given(_TEXTS)
def test_no_text_becomes_anything_else(parts: Any) -> None:
    found = _Checked(render_markdown("".join(parts)))
    assert all(link.startswith(("http://", "https://", "mailto:")) for link in found.links)


def test_a_page_renders_the_newest_texts_as_far_as_they_go() -> None:
    long = ["x" * (MOST_CHARACTERS - number) for number in range(7)]
    found = render_newest(["short", "y" * (MOST_CHARACTERS + 1), *long, "short"])
    assert list(found) == ["short", *long[:5]]
