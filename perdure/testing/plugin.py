"""The pytest plugin: the fixture `perdure`. pytest finds it by Perdure's entry point, so nothing is to be switched on.

It is imported at the start of every pytest where Perdure is installed, so it imports nothing until a test asks for it.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Generator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from perdure.testing.fixture import Perdure
    from perdure.testing.server import Server

_FIXTURE = "perdure"
_FOUND = pytest.StashKey["Perdure"]()
_ASYNC_MARKS = ("asyncio", "anyio", "trio")


@pytest.hookimpl(tryfirst=True)
def pytest_configure() -> None:
    """Keep pytest-asyncio from warning of a setting of its own, which no test with the fixture depends on."""
    warnings.filterwarnings("ignore", "(?s).*asyncio_default_fixture_loop_scope", pytest.PytestDeprecationWarning)


@pytest.fixture(scope="session")
def perdure_server() -> Generator[Server]:
    """The Temporal server of the test run; it starts with the first test that serves an app."""
    from perdure.testing.server import Server

    server = Server()
    yield server
    server.close()


@pytest.fixture
def perdure(
    request: pytest.FixtureRequest, perdure_server: Server, tmp_path_factory: pytest.TempPathFactory
) -> Generator[Perdure]:
    """Serve agents for the test, durable, with scripts in place of their models: docs/testing.md."""
    from perdure.testing.fixture import Perdure

    found = Perdure(perdure_server, request.node.name, lambda: tmp_path_factory.mktemp(_FIXTURE))
    request.node.stash[_FOUND] = found
    yield found
    found.close()


@pytest.hookimpl
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run an async test that uses the fixture where no plugin for async tests has taken it."""
    if _FOUND not in pyfuncitem.stash or not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    if any(pyfuncitem.get_closest_marker(mark) for mark in _ASYNC_MARKS):
        return None
    import asyncio

    names = inspect.signature(pyfuncitem.obj).parameters
    asyncio.run(pyfuncitem.obj(**{name: value for name, value in pyfuncitem.funcargs.items() if name in names}))
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show what the agents of a failed test did."""
    report = yield
    found = item.stash.get(_FOUND, None)
    if found is not None and report.when == "call" and report.failed:
        report.sections += [(f"what happened in {whose}", text) for whose, text in found.transcripts() if text]
    return report
