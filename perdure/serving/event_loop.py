"""How the commands that serve run: on uvloop, where it runs, and asyncio's own elsewhere (decision 010)."""

from __future__ import annotations

import asyncio
import gc
import os
from typing import TYPE_CHECKING, TypeVar

try:
    from uvloop import new_event_loop
except ImportError:  # Not on Windows and PyPy.
    new_event_loop = None

if TYPE_CHECKING:
    from collections.abc import Coroutine

_T = TypeVar("_T")

VARIABLE = "PERDURE_EVENT_LOOP"
"""The environment variable by which `asyncio` is chosen, for code that needs it."""


def run_serving(main: Coroutine[object, object, _T]) -> _T:
    """Run a coroutine to its end in a new event loop, as `asyncio.run` does."""
    factory = None if os.environ.get(VARIABLE) == "asyncio" else new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(main)


def spare_collector() -> None:
    """Have Python's collector leave out what there is by now, such as what imports made: it lasts as the process does.

    It would go over hundreds of thousands of objects again and again, some 5 % of a worker's time.
    """
    gc.collect()
    gc.freeze()
