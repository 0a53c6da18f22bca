"""One app, worker and server for each module, and one browser for all."""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator

import pytest
from temporalio.client import Client

from tests.api.pages.support import Pages, pages_and_worker
from tests.browser import browser as browser


@pytest.fixture(scope="module")
async def pages(client: Client) -> AsyncGenerator[Pages]:
    """The pages of an app that asks for all kinds of answers."""
    async with pages_and_worker(client, f"app_{uuid.uuid4().hex[:12]}") as running:
        yield running
