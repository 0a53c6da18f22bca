"""What pytest gives the tests of google.adk's agents."""

from __future__ import annotations

import pytest

from perdure.steps.code import suspended_code


@pytest.fixture(params=["kept", "from the top"])
def suspended(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Code is kept where it waits; or it is not, so that each step runs it from its top: the log is the same."""
    if request.param == "from the top":
        monkeypatch.setattr(suspended_code, "_MOST_KEPT", 0)
    return request.param
