"""Every block of the documentation is run, or says why it is not."""

from __future__ import annotations

import ast
import textwrap

import pytest

from tests.docs.blocks import PAGES, REASONS, Block, blocks_of, commands_of
from tests.docs.playing import READERS, check_printed

BLOCKS = [block for page in PAGES for block in blocks_of(page)]


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.place)
def test_a_block_is_run_or_says_why_not(block: Block) -> None:
    known = block.reason in REASONS or block.is_fragment or block.file is not None or not block.mark
    assert known, f"{block.place}: {block.mark!r} is no mark; see tests/docs/blocks.py"
    assert block.language in {"sh", "console", "python", "", "js", "nginx", "yaml", *READERS}
    if block.file is not None:
        before = block.page.read_text(encoding="utf-8").splitlines()[: block.line - 2]
        assert block.file in "\n".join([*before, *block.text.splitlines()[:1]]), "the page does not name the file"


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.place)
def test_a_block_can_be_read(block: Block) -> None:
    """Also where it is not run."""
    if block.language == "python":
        text = block.text
        if block.reason == "stands in an agent's code":
            text = f"async def _run_async_impl(self, ctx):\n{textwrap.indent(text, '    ')}"
        compile(text, block.place, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    elif block.language in READERS:
        READERS[block.language](block.text)
    elif block.is_shell:
        assert list(commands_of(block))


def test_no_page_opens_a_block_that_is_not_found() -> None:
    for page in PAGES:
        fences = [line for line in page.read_text(encoding="utf-8").splitlines() if line.lstrip().startswith("```")]
        assert len(fences) == 2 * len(blocks_of(page)), page.name


def test_what_is_printed_is_compared_but_for_what_differs_from_run_to_run() -> None:
    printed = "begin\n  call adk-2f6b0f2e-0000-4000-8000-000000000000 took 0.25 s\nend"
    check_printed(["call CALL_ID took 1.5 s", "end"], printed)
    check_printed(["beg…"], printed)
    for lines in (["end", "begin"], ["call CALL_ID took long"], ["middle"]):
        with pytest.raises(AssertionError):
            check_printed(lines, printed)
