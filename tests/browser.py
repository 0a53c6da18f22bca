"""Chromium, for the tests of pages."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncGenerator

import pytest
from playwright.async_api import Browser, async_playwright

from tests.browser_summary import NO_BROWSER

_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@pytest.fixture(scope="session")
async def browser() -> AsyncGenerator[Browser]:
    """Chromium."""
    path = os.environ.get("PERDURE_CHROMIUM") or shutil.which("chromium")
    if path is None:
        pytest.skip(NO_BROWSER)
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=path, args=list(_FLAGS))
        yield browser
        await browser.close()
