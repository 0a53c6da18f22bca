"""The site as `make site` builds it, in a real browser: phone and desk, light and dark, nothing from elsewhere."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.async_api import Browser

from tests.api.pages.browsing import accessibility
from tests.browser import browser as browser
from tests.docs.blocks import ROOT

SITE = ROOT / "site"
PAGES = ("index.html", "start.html", "from-adk.html", "from-temporal.html", "errors.html", "reference/agents.html")

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(not (SITE / "index.html").exists(), reason="`make site` has not built the site"),
]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 380])
async def test_the_site_is_read_on_any_screen(browser: Browser, scheme: Any, width: int) -> None:
    viewport: Any = {"width": width, "height": 800}
    context = await browser.new_context(color_scheme=scheme, viewport=viewport, reduced_motion="reduce")
    page = await context.new_page()
    outside: list[str] = []
    page.on("request", lambda request: outside.append(request.url) if request.url.startswith("http") else None)
    wrong: list[str] = []
    try:
        for name in PAGES:
            await page.goto((SITE / name).as_uri())
            found = [one for one in await accessibility(page) if one.startswith(("serious", "critical"))]
            wrong += [f"{name}: {one}" for one in found]
            if await page.evaluate("document.documentElement.scrollWidth") > width:
                wrong.append(f"{name}: wider than the screen")
    finally:
        await context.close()
    assert wrong == []
    assert outside == []
