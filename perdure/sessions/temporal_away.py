"""Notes that Temporal has gone away under somebody who waits, says so once, and ends the wait when it stays away."""

from __future__ import annotations

import time

from perdure.errors import ConnectionFailed
from perdure.logs import get_logger

_AWAY = 25.0
"""Seconds. Temporal's client has asked for some ten of them again by itself by the time that it says so."""

_logger = get_logger("perdure.client")


class TemporalAway:
    """What one client knows of whether its server answers."""

    def __init__(self, target: str) -> None:
        """Make it for the server at an address, with which all is well."""
        self._target = target
        self._since: float | None = None

    def is_over(self) -> None:
        """Note that the server has answered."""
        self._since = None

    @property
    def patience(self) -> float | None:
        """Seconds for which the next request may still be waited for; `None` while the server answers."""
        return None if self._since is None else max(0.0, self._since + _AWAY - time.monotonic())

    def lasts(self, asked: float) -> None:
        """Note that a request has failed since the server is away.

        Args:
            asked: When the request was made, by the monotonic clock.

        Raises:
            ConnectionFailed: It has been away for long enough that it is not about to be back.
        """
        if self._since is None:
            self._since = asked
            _logger.warning(f"Temporal does not answer at {self._target}; asking again")
        away = time.monotonic() - self._since
        if away >= _AWAY:
            raise ConnectionFailed(
                f"Temporal has not answered at {self._target} for {away:.0f} s; what runs there goes on when it is"
                " back, so look again then"
            )
