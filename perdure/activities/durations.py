"""How long models and tools took in this process, so that steps which take long are steps of their own."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Generator
from contextlib import contextmanager
from typing import Literal

__all__ = ["Durations"]

_QUICK_SECONDS = 0.3
"""What takes longer gains nothing by an activity that it shares."""
_MOST = 1000
"""Names."""

Kind = Literal["model", "tool"]


class Durations:
    """How long each model and tool of an app took when it came back last.

    Attributes:
        unknown: Seconds that are taken for what has not come back yet.
    """

    unknown = 10 * _QUICK_SECONDS

    def __init__(self) -> None:
        """Know none."""
        self._seconds: OrderedDict[tuple[Kind, str], float] = OrderedDict()

    @contextmanager
    def measuring(self, kind: Kind, name: str) -> Generator[None]:
        """Take note of how long the block takes."""
        began = time.monotonic()
        try:
            yield
        finally:
            self._seconds[kind, name] = time.monotonic() - began
            if len(self._seconds) > _MOST:
                # A model may name tools that there are not.
                self._seconds.popitem(last=False)

    def is_quick(self, kind: Kind, name: str) -> bool:
        """Return whether a model or a tool is known to come back soon."""
        return self._seconds.get((kind, name), self.unknown) < _QUICK_SECONDS
