"""One app, worker and HTTP server for each module."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest
from temporalio.client import Client

from tests.api.support import Api, api_and_worker


@pytest.fixture(scope="module")
async def api(client: Client) -> AsyncGenerator[Api]:
    """The API of an app that does as it is told."""
    async with api_and_worker(client) as running:
        yield running
