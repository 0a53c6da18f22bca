"""Ends the process of a test that its timeout did not end, and prints what each of its threads does.

A plugin of pytest, which `tests/conftest.py` brings. pytest-timeout raises in the main thread, once: a callback of the
event loop may swallow that, or what cleans up behind the test may wait in turn. Then all of `make test` would wait.
"""

from __future__ import annotations

import faulthandler
import os
from collections.abc import Generator

import pytest

_STDERR = pytest.StashKey[int]()

_LATE = 180.0
"""Seconds that a test, and then its clean-up, may take beyond its timeout."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let a test of this plugin wait for less."""
    parser.addini("hung_after", "seconds beyond a test's timeout, after which its process is ended", default=str(_LATE))


def pytest_configure(config: pytest.Config) -> None:
    """Keep the process's own standard error, as each test's is captured."""
    config.stash[_STDERR] = os.dup(2)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """End the process if the test and its timeout have not."""
    _end_in(item, _timeout_of(item) + _late(item))
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Begin anew: pytest itself calls the end off where a test has failed."""
    _end_in(item, _late(item))


def _end_in(item: pytest.Item, seconds: float) -> None:
    faulthandler.dump_traceback_later(seconds, file=item.config.stash[_STDERR], exit=True)


def _late(item: pytest.Item) -> float:
    return float(item.config.getini("hung_after"))


def _timeout_of(item: pytest.Item) -> float:
    mark = item.get_closest_marker("timeout")
    return float(mark.args[0] if mark else item.config.getoption("timeout") or item.config.getini("timeout"))
