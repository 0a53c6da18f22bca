"""Bounds how long a page waits for a session: a person waits for the page."""

from __future__ import annotations

import asyncio

from perdure.api.base.backend import Backend

_LOOK_SECONDS = 15.0
"""How long a page waits for a session at the most."""


def patience_of_page(backend: Backend) -> asyncio.Timeout:
    """Return a block that gives up with `TimeoutError`, as that of the other requests, but sooner."""
    return asyncio.timeout(min(backend.config.patience.total_seconds(), _LOOK_SECONDS))
