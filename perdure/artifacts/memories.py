"""Keeps what sessions say, for later sessions of the same user: each event by itself, beside the artifacts."""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

from perdure.artifacts.sealing import SealedArtifacts
from perdure.artifacts.service import USER_PREFIX

__all__ = ["Memories"]

_MOST_KEPT = 20_000
"""Events that a process keeps in memory, over all users."""


class Memories:
    """The events that the sessions of users have given to their memory. Encrypted where histories are."""

    def __init__(self, artifacts: SealedArtifacts) -> None:
        """Keep them where an app's artifacts are, under a name of their own."""
        self._artifacts = artifacts
        self._known: OrderedDict[tuple[str, str, str], dict[str, Any]] = OrderedDict()

    async def add(self, app: str, user: str, session: str, events: Iterable[dict[str, Any]]) -> None:
        """Keep those events of a session that have a content, and are not kept yet.

        Args:
            app: The app.
            user: The user.
            session: The session.
            events: JSON of events, each with an `id`.

        Raises:
            ArtifactError: One cannot be stored.
        """
        there = set(await self._names(app, user))
        for event in events:
            name = _name(session, event["id"])
            content: dict[str, Any] = event.get("content") or {}
            if name not in there and content.get("parts"):
                await self._artifacts.save_sealed(
                    content=json.dumps({"session": session, "event": event}),
                    mime_type="application/json",
                    filename=name,
                    key=name,
                    **_whose(app, user),
                )

    async def of(self, app: str, user: str) -> dict[str, list[dict[str, Any]]]:
        """Return a user's events by session, sessions and events in the order in which they began.

        Raises:
            ArtifactError: One is encrypted, and the keys here do not open it.
        """
        found: dict[str, list[dict[str, Any]]] = {}
        for name in await self._names(app, user):
            kept = await self._load(app, user, name)
            if kept is not None:
                found.setdefault(kept["session"], []).append(kept["event"])
        for events in found.values():
            events.sort(key=_time)
        return dict(sorted(found.items(), key=lambda item: _time(item[1][0])))

    async def _names(self, app: str, user: str) -> list[str]:
        return await self._artifacts.list_artifact_keys(**_whose(app, user))

    async def _load(self, app: str, user: str, name: str) -> dict[str, Any] | None:
        known = self._known.get((app, user, name))
        if known is not None:
            return known
        part = await self._artifacts.load_artifact(filename=name, **_whose(app, user))
        if part is None or part.inline_data is None:
            return None
        kept: dict[str, Any] = json.loads(part.inline_data.data or b"{}")
        self._known[app, user, name] = kept
        if len(self._known) > _MOST_KEPT:
            self._known.popitem(last=False)
        return kept


def _time(event: dict[str, Any]) -> float:
    return float(event.get("timestamp", 0.0))


def _whose(app: str, user: str) -> dict[str, str]:
    # No app has a slash in its name, so no artifact of an app stands among them.
    return {"app_name": f"{app}/memory", "user_id": user}


def _name(session: str, event: str) -> str:
    digest = hashlib.sha256(f"{len(session)}:{session}{event}".encode()).hexdigest()
    return f"{USER_PREFIX}{digest[:40]}"
