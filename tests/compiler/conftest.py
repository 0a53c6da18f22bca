"""What pytest gives the tests of loading."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Generator

import pytest


@pytest.fixture
def imports_as_they_were() -> Generator[None]:
    """Take back what a test has imported, and put on the module search path."""
    path, modules = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if not name.startswith(("perdure", "google", "temporalio", "pydantic")):
            del sys.modules[name]
    importlib.invalidate_caches()
