"""What no test passes with, and no second try mends: a run whose history does not replay, and a session that is stuck.

A plugin of pytest, which `tests/conftest.py` brings. A test fails of it even if the worker has recovered; one that is
about it says so by the mark `nondeterminism`. `tests/retest.py` reads what is written here.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Generator

import pytest
from temporalio.runtime import Runtime, TelemetryConfig

from perdure.temporal.core_log import core_logging

NEVER_AGAIN = "perdure/never-again"
"""Where pytest's cache has the tests of the last run that failed of it."""

_LOGGED = re.compile(r"TMPRL1100|nondeterminism error", re.IGNORECASE)
_FAILED_OF = re.compile(r"TMPRL1100|nondeterminism|SessionStuck", re.IGNORECASE)

_LATE = 0.3
"""Seconds by which the core's lines may come late."""


class _Lines(logging.Handler):
    """Keeps what workers, and the core under them, log of histories that do not replay."""

    def __init__(self) -> None:
        super().__init__()
        self._lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        line = self.format(record)
        if _LOGGED.search(line):
            self._lines.append(line)

    def take(self) -> list[str]:
        lines, self._lines = self._lines, []
        return lines


_LINES = _Lines()


class _Failures:
    """Writes down which tests failed of it."""

    def __init__(self, cache: pytest.Cache) -> None:
        self._cache = cache
        self._found: list[str] = []
        cache.set(NEVER_AGAIN, self._found)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and is_unforgivable("\n".join((report.longreprtext, *(text for _, text in report.sections)))):
            self._found.append(report.nodeid)
            self._cache.set(NEVER_AGAIN, self._found)


def is_unforgivable(text: str) -> bool:
    """Return whether what is told of a failed test speaks of a history that does not replay, or a stuck session."""
    return _FAILED_OF.search(text) is not None


def pytest_configure(config: pytest.Config) -> None:
    Runtime.set_default(Runtime(telemetry=TelemetryConfig(logging=core_logging(lambda: None))))
    logging.getLogger("temporalio").addHandler(_LINES)
    cache: pytest.Cache | None = getattr(config, "cache", None)
    # Of the processes that share the tests, the one that gives them out hears of all.
    if cache is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Failures(cache))


@pytest.fixture(autouse=True)
def _every_history_replays(request: pytest.FixtureRequest) -> Generator[None]:
    """No worker met a history that its code does not replay, though it may have recovered."""
    yield
    if request.node.get_closest_marker("nondeterminism") is not None:
        time.sleep(_LATE)
        _LINES.take()
    elif lines := _LINES.take():
        pytest.fail("a history did not replay, in this test or right before it:\n" + "\n".join(lines))
