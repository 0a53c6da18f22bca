"""Where a server listens."""

from __future__ import annotations

import threading

import pytest

from perdure.serving import sockets
from perdure.serving.sockets import listen


def test_an_address_that_is_about_to_be_free_is_waited_for() -> None:
    """As behind a process that was killed, whose child ends a moment later."""
    before = listen("127.0.0.1", 0)
    port = before.getsockname()[1]
    ends = threading.Timer(0.3, before.close)
    ends.start()
    with listen("127.0.0.1", port) as listener:
        assert listener.getsockname()[1] == port
    ends.join()


def test_an_address_that_stays_in_use_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "_IN_USE_SECONDS", 0.2)
    with listen("127.0.0.1", 0) as before, pytest.raises(OSError, match="in use"):
        listen("127.0.0.1", before.getsockname()[1])
