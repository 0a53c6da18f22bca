"""What `mkdocs.yml` cannot say: a hook of mkdocs, which runs in an environment that has nothing of Perdure's."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

_DOCS = Path(__file__).parent.parent.parent / "docs"
_LINK = re.compile(r"\[([^\]]+)\]\((\.\./[^)#]+)\)")


def on_config(config: Any) -> None:
    """Put the decisions into the navigation, their list first."""
    [last] = [section["How it works"] for section in config.nav if "How it works" in section]
    records = sorted((_DOCS / "decisions").glob("[0-9]*.md"))
    last.append({"Decisions": ["decisions/README.md", *(f"decisions/{path.name}" for path in records)]})


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Leave the words of links to files of the repository beside `docs`, which the site has not."""
    folder = (_DOCS / page.file.src_uri).parent

    def kept(link: re.Match[str]) -> str:
        return link[0] if (folder / link[2]).resolve().is_relative_to(_DOCS) else link[1]

    return _LINK.sub(kept, markdown)
