"""The blocks of a page, and what the invisible comment right above one says of it.

Without a comment a block is run: a shell's by a shell, Python's as a program, data is parsed, and a block that names no
language is what the block before it prints. A comment says otherwise:

- `<!-- file: shop/agent.py -->`: the block is that file; the page names it where readers see it, too.
- `<!-- fragment -->`: lines out of some program. They run after those of `given/PAGE.py`, and data is parsed.
- `<!-- not run: needs a cluster -->`: why it does not run, in the words of `REASONS`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])

REASONS = frozenset(
    {
        "needs a cluster",
        "needs a cloud service",
        "needs Docker",
        "needs a proxy",
        "sets the machine up",
        "takes long",
        "is tested elsewhere",
        "stands in an agent's code",
    }
)
"""Why a block may be left out."""

_BLOCK = re.compile(
    r"(?:^ *<!-- *(?P<mark>[^\n]*?) *-->\n)?"
    r"^(?P<indent> *)```(?P<language>\w*)[^\n]*\n(?P<text>.*?)^(?P=indent)```[ ]*$",
    re.MULTILINE | re.DOTALL,
)
_EXIT_CODE = re.compile(r"# .*?\bexit code (\d+)")


@dataclass(frozen=True)
class Block:
    """A block of a page."""

    page: Path
    line: int
    """Where it begins, from 1."""
    language: str
    text: str
    mark: str
    """What the comment above it says; empty without one."""

    @property
    def place(self) -> str:
        return f"{self.page.name}:{self.line}"

    @property
    def file(self) -> str | None:
        """The file that the block is."""
        return self.mark.removeprefix("file: ") if self.mark.startswith("file: ") else None

    @property
    def reason(self) -> str | None:
        """Why it is not run."""
        return self.mark.removeprefix("not run: ") if self.mark.startswith("not run: ") else None

    @property
    def is_fragment(self) -> bool:
        return self.mark == "fragment"

    @property
    def is_shell(self) -> bool:
        return self.language in ("sh", "console")


@dataclass(frozen=True)
class Command:
    """A command of a block, and what the page says of its end."""

    text: str
    exit_code: int
    printed: tuple[str, ...]
    """Lines that it prints, as far as the page shows them."""


def blocks_of(page: Path) -> list[Block]:
    """Return the blocks of a page, in order."""
    source = page.read_text(encoding="utf-8")
    return [
        Block(
            page=page,
            line=source.count("\n", 0, found.start("indent")) + 1,
            language=found["language"],
            text=re.sub(rf"^{found['indent']}", "", found["text"], flags=re.MULTILINE),
            mark=found["mark"] or "",
        )
        for found in _BLOCK.finditer(source)
    ]


def commands_of(block: Block) -> Iterator[Command]:
    """Yield the commands of a shell's block; where lines begin with `$ `, the others are what is printed."""
    prompts = any(line.startswith("$ ") for line in block.text.splitlines())
    typed: list[str] = []
    printed: list[str] = []
    for line in [*block.text.splitlines(), "$ " if prompts else ""]:
        if prompts and not line.startswith("$ ") and not _is_open(typed):
            printed.append(line)
            continue
        if typed and not _is_open(typed):
            yield _command(typed, printed)
            typed, printed = [], []
        typed.append(line.removeprefix("$ "))


def _is_open(lines: list[str]) -> bool:
    """Return whether a command goes on in the next line."""
    if not lines:
        return False
    try:
        shlex.split("\n".join(lines), comments=True)
    except ValueError:
        return True
    return lines[-1].endswith("\\")


def _command(lines: list[str], printed: list[str]) -> Command:
    text = "\n".join(lines)
    said = _EXIT_CODE.search(text)
    return Command(text=text, exit_code=int(said[1]) if said else 0, printed=tuple(printed))
