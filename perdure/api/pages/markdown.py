"""Renders what models write, as Markdown, into HTML in which nothing runs or loads. Pure.

Raw HTML is text, pictures are not shown, and links lead to the web or to mail; the pages' Content-Security-Policy
stands behind that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from markdown_it.utils import EnvType, OptionsDict
from markupsafe import Markup, escape

from perdure.api.pages.formats import in_order

MOST_CHARACTERS = 20_000
"""A longer text is shown as it was written: the worst of this length takes some half a second to render."""

_MOST_AT_ONCE = 100_000
"""Characters that are rendered for one page, the newest texts first."""

_KEPT = 300
_SCHEMES = ("https://", "http://", "mailto:")


def render_newest(texts: Iterable[str]) -> Mapping[str, Markup]:
    """Return the HTML of as many texts as one page may take, by text; `texts` begins with the newest."""
    left = _MOST_AT_ONCE
    found: dict[str, Markup] = {}
    for text in texts:
        if text not in found and len(text) <= min(left, MOST_CHARACTERS):
            left -= len(text)
            found[text] = render_markdown(text)
    return found


@lru_cache(_KEPT)
def render_markdown(text: str) -> Markup:
    """Return a text's HTML."""
    # In the HTML, since an entity stands for a character, too.
    return Markup(in_order(_parser().render(text)))  # noqa: S704 -- the renderer escapes all that the text holds


@lru_cache(1)
def _parser() -> MarkdownIt:
    # Lines stay lines: agents that know nothing of Markdown answer, too.
    parser = _Parser("commonmark", {"html": False, "breaks": True}, renderer_cls=_Renderer)
    return parser.enable(["table", "strikethrough"]).disable("image")


class _Parser(MarkdownIt):
    def validateLink(self, url: str) -> bool:
        """Take no path of this server, and no script."""
        return url.strip().lower().startswith(_SCHEMES)


class _Renderer(RendererHTML):
    """Renders tokens; each method those of its name."""

    def link_open(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        address = escape(tokens[idx].attrs["href"])
        if not address:
            # `[text]()` would lead to the page itself.
            return "<a>"
        return f'<a href="{address}" target="_blank" rel="noopener noreferrer nofollow">'

    def heading_open(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        # Below the headings of the page, whatever rank it has in the answer.
        return '<p class="heading" role="heading" aria-level="2">'

    def heading_close(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        return "</p>\n"

    def fence(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        code = escape(tokens[idx].content)
        return f'<pre class="code" tabindex="0" role="group" aria-label="Code"><code>{code}</code></pre>\n'

    code_block = fence

    def table_open(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        return '<div class="scroll" tabindex="0" role="group" aria-label="Table"><table>\n'

    def table_close(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        return "</table></div>\n"

    def td_open(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        # How it is aligned would be a style, which the policy does not let in.
        return "<td>"

    def th_open(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        return '<th scope="col">'
