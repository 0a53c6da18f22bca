"""What the tests in a browser share: a window that nothing may go wrong in, what has the focus, and who can use it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

from playwright.async_api import Browser, BrowserContext, Page, expect

from tests.api.pages.support import Pages

_AXE = (files("axe_playwright_python") / "axe.min.js").read_text()
_EDGES = (Path(__file__).parent / "edges.js").read_text()

PATIENCE = 20_000
"""Milliseconds for which an expectation may come true."""
expect.set_options(timeout=PATIENCE)


@asynccontextmanager
async def opened(
    browser: Browser,
    pages: Pages,
    who: str = "mia approver operator",
    *,
    may_fail: str = "status of 422",
    **options: Any,
) -> AsyncGenerator[Page]:
    """Open a page in a window of its own, and check at the end that nothing went wrong in it.

    What fails of requests, as a form that is shown again with its mistakes (422), Chromium writes to its console.
    """
    problems: list[str] = []
    outside: list[str] = []
    context: BrowserContext = await browser.new_context(base_url=pages.url, extra_http_headers={"x-as": who}, **options)
    context.set_default_timeout(PATIENCE)

    def watch(page: Page) -> None:
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda line: problems.append(line.text) if line.type == "error" else None)
        page.on("dialog", lambda dialog: problems.append(f"dialog {dialog.message}"))
        page.on("request", lambda request: None if request.url.startswith(pages.url) else outside.append(request.url))

    context.on("page", watch)
    try:
        yield await context.new_page()
    finally:
        await context.close()
    wrong = [problem for problem in problems if may_fail not in problem]
    assert wrong == [], wrong
    assert outside == [], outside


async def focused(page: Page) -> str:
    """Return what has the focus: its text, or what kind of field it is."""
    return await page.evaluate(
        """() => { const one = document.activeElement;
           return one.textContent.trim() && one.tagName !== "TEXTAREA" ? one.textContent.trim()
             : `${one.tagName.toLowerCase()} ${one.name || ""}`.trim(); }"""
    )


async def accessibility(page: Page) -> list[str]:
    """Return what breaks the rules of axe-core, or has too little contrast at the edges of its inputs."""
    await page.evaluate(_AXE)
    broken: list[str] = await page.evaluate(
        """async () => (await axe.run()).violations.map(
             (one) => `${one.impact} ${one.id}: ${one.nodes.map((node) => node.html).join(" ").slice(0, 300)}`)"""
    )
    return broken + await page.evaluate(_EDGES)
