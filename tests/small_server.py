"""A second Temporal server, on which sessions continue as new all the time and no search attribute can be added."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest
from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest
from temporalio.client import Client

from perdure.config import ConnectionConfig, connect
from perdure.serving.dev_server import DevServer, DevServerConfig

FEW_PARTITIONS = {
    "matching.numTaskqueueReadPartitions": 1,
    "matching.numTaskqueueWritePartitions": 1,
}
"""Each test has a task queue of its own, and a server as it comes starts four parts of each."""

HISTORY_EVENTS = 40
_KEYWORDS = 10
"""Keyword attributes that a namespace can have with SQL visibility."""


@pytest.fixture(scope="session")
async def small_server() -> AsyncGenerator[str]:
    """The address of a server that suggests to continue as new after a few history events."""
    settings = FEW_PARTITIONS | {"limit.historyCount.suggestContinueAsNew": HISTORY_EVENTS}
    async with DevServer(DevServerConfig(headless=True, dynamic_config=settings)) as server:
        yield server.address


@pytest.fixture(scope="session")
async def small_client(small_server: str) -> Client:
    """A client of that server, after all the keywords that its namespace can have were given to others."""
    client = await connect(ConnectionConfig(address=small_server, namespace="default", tls=False))
    keyword = IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD
    taken = {f"Taken{number}": keyword for number in range(_KEYWORDS)}
    request = AddSearchAttributesRequest(namespace="default", search_attributes=taken)
    await client.operator_service.add_search_attributes(request)
    return client
