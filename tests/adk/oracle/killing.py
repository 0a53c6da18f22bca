"""Kills the server in the middle of a turn, and starts it again."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests.adk.oracle.values import Json

_LOOKS = 0.01
"""Seconds between looks at the ledger."""


@dataclass
class Killing:
    """Kills once in each turn, when the ledger has the N-th model call, or effect, of the turn."""

    what: str
    """`model` or `effect`."""
    number: int
    """From 1."""
    ledger: Path
    restart: Callable[[], None]
    expected: Json
    """What ADK did."""
    patience: float = 60
    """Seconds that a killed turn has to come to its end."""
    kills: int = 0

    def during(self, send: Callable[[], object]) -> bool:
        """Send; returns whether the server was killed meanwhile."""
        begin = self.ledger.stat().st_size
        sending = threading.Thread(target=_quietly, args=(send,), daemon=True)
        sending.start()
        while sending.is_alive():
            with self.ledger.open("rb") as file:
                file.seek(begin)
                seen = file.read().count(f'"{self.what}": '.encode())
            if seen >= self.number:
                self.restart()
                self.kills += 1
                return True
            time.sleep(_LOOKS)
        return False


def _quietly(send: Callable[[], object]) -> None:
    # The server is killed meanwhile; what it did is read from the session.
    with suppress(OSError, ValueError):
        send()
