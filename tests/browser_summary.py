"""Says at the end of a test run how many tests did not run for want of a browser: no small part of what pages do."""

from __future__ import annotations

from collections.abc import Generator

import pytest

NO_BROWSER = "there is no Chromium: install it as `chromium`, or name it by PERDURE_CHROMIUM"
"""Why such a test is skipped."""


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> Generator[None]:
    """Say it behind all else."""
    yield
    skipped: list[pytest.TestReport] = terminalreporter.stats.get("skipped", [])
    if missing := sum(NO_BROWSER in str(report.longrepr) for report in skipped):
        terminalreporter.write_line(f"{missing} tests in a browser did not run: {NO_BROWSER}", yellow=True)
