"""What tests share: one in-memory Temporal server for the whole run, and a client of it.

Tests that use them are marked `server`, and give their app (and with it task queue and sessions) a name of its own.
"""

from __future__ import annotations

import logging
import os
import sys
import uuid
from collections.abc import AsyncGenerator, Generator

import pytest
from temporalio.client import Client
from temporalio.worker._workflow import _InterruptDeadlockError  # pyright: ignore[reportPrivateUsage]

from perdure.config import ConnectionConfig, connect
from perdure.serving.dev_server import DevServer, DevServerConfig
from tests.long_tests import mark_long
from tests.small_server import FEW_PARTITIONS
from tests.small_server import small_client as small_client
from tests.small_server import small_server as small_server

pytest_plugins = ["tests.crashed", "tests.hung", "tests.unforgiving", "tests.browser_summary"]


def pytest_configure() -> None:
    """Let every Temporal server that the tests start share two cores with them: one thread, garbage collected less."""
    for setting, value in {"GOMAXPROCS": "1", "GOGC": "400"}.items():
        os.environ.setdefault(setting, value)


@pytest.hookimpl(trylast=True)
def pytest_sessionstart() -> None:
    """Pass over what Temporal's deadlock detector raises in a `__del__`: it stops a thread that waits for a processor.

    Where it does matters to nobody, and the workflow task is done again.
    """
    told = sys.unraisablehook

    def tell(unraisable: sys.UnraisableHookArgs) -> None:
        if unraisable.exc_type is not _InterruptDeadlockError:
            told(unraisable)

    sys.unraisablehook = tell


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark long tests, and begin with a file that is long by itself: at the end other processes would wait for it."""
    items.sort(key=lambda item: item.path.name != "test_large_arguments.py")
    mark_long(items)


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Generator[None]:
    """A command that ran in this process has lines go to where they were captured, which is closed by now."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    levels = {name: logging.getLogger(name).level for name in ("perdure", "temporalio")}
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    for name, before in levels.items():
        logging.getLogger(name).setLevel(before)


@pytest.fixture(scope="session")
async def temporal_server() -> AsyncGenerator[str]:
    """The address of a Temporal server that ends with the test run."""
    # Else each run that hands over to the next waits for a second.
    at_once = {"history.workflowIdReuseMinimalInterval": "1ms"}
    async with DevServer(DevServerConfig(headless=True, dynamic_config=at_once | FEW_PARTITIONS)) as server:
        yield server.address


@pytest.fixture(scope="session")
async def client(temporal_server: str) -> Client:
    """A client of the test server, with Perdure's payloads."""
    return await connect(ConnectionConfig(address=temporal_server, namespace="default", tls=False))


@pytest.fixture
def app_name() -> str:
    """A name for an app that no other test has."""
    return f"app_{uuid.uuid4().hex[:12]}"
