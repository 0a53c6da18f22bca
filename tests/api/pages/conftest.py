"""One app, worker and server for each module, and one browser for all."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import AsyncGenerator

import pytest
from playwright.async_api import Browser, async_playwright
from temporalio.client import Client

from tests.api.pages.support import Pages, pages_and_worker

_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@pytest.fixture(scope="module")
async def pages(client: Client) -> AsyncGenerator[Pages]:
    """The pages of an app that asks for all kinds of answers."""
    async with pages_and_worker(client, f"app_{uuid.uuid4().hex[:12]}") as running:
        yield running


@pytest.fixture(scope="session")
async def browser() -> AsyncGenerator[Browser]:
    """Chromium."""
    path = os.environ.get("PERDURE_CHROMIUM") or shutil.which("chromium")
    if path is None:
        pytest.skip("there is no Chromium: install it as `chromium`, or name it by PERDURE_CHROMIUM")
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=path, args=list(_FLAGS))
        yield browser
        await browser.close()
