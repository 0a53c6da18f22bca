"""Waits until there is something new in a session, for a page that is open."""

from __future__ import annotations

import asyncio

from perdure.api.auth.standing import Standing
from perdure.api.base.backend import Backend
from perdure.api.base.statuses import CredentialExpired
from perdure.messages.keys import SessionKey

_LIVE_FOR = 25.0
"""Seconds for which a page waits for news before it asks again."""


async def has_news(backend: Backend, key: SessionKey, seen: int, standing: Standing) -> bool:
    """Wait for news of a session; return whether there are some, or the page has to ask again.

    Args:
        backend: Where the session is.
        key: Which session.
        seen: The journal's length, as the page knows it.
        standing: For how long whoever asks is let in.
    """
    growing = asyncio.ensure_future(backend.runner_of(key).grown(**key.arguments, length=seen))
    closing = asyncio.ensure_future(backend.closing.wait())
    try:
        await asyncio.wait({growing, closing}, timeout=_LIVE_FOR, return_when=asyncio.FIRST_COMPLETED)
        if not growing.done():
            return False
        growing.result()
        await standing.check()
    except CredentialExpired:
        # The page asks again, and is told.
        return False
    finally:
        growing.cancel()
        closing.cancel()
    return True
