"""The server of the proofs."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest
from temporalio.client import Client

from perdure.prove.proof import proof_server


@pytest.fixture(scope="module")
async def proof_client() -> AsyncGenerator[Client]:
    async with proof_server() as client:
        yield client
