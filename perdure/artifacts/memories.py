"""Keeps what sessions say, for later sessions of the same user: each event by itself, beside the artifacts."""

from __future__ import annotations

import hashlib
import json
import time
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

from google.genai import types

from perdure.artifacts.sealing import SealedArtifacts
from perdure.artifacts.service import USER_PREFIX

__all__ = ["Memories"]

_MOST_KEPT = 20_000
"""Events that a process keeps in memory, over all users."""

_MARK = types.Part(text="forgotten")


class Memories:
    """The events that the sessions of users have given to their memory. Encrypted where histories are."""

    def __init__(self, artifacts: SealedArtifacts) -> None:
        """Keep them where an app's artifacts are, under a name of their own."""
        self._artifacts = artifacts
        self._known: OrderedDict[tuple[str, str, str], dict[str, Any]] = OrderedDict()

    async def add(self, app: str, user: str, session: str, events: Iterable[dict[str, Any]]) -> None:
        """Keep those events of a session that have a content, and are neither kept nor forgotten yet.

        Args:
            app: The app.
            user: The user.
            session: The session.
            events: JSON of events, each with an `id`.

        Raises:
            ArtifactError: One cannot be stored.
        """
        there, now = set(await self._names(app, user)), time.time()
        for number, event in enumerate(events):
            name = _name(session, event["id"])
            content: dict[str, Any] = event.get("content") or {}
            if not {name, _forgotten(event["id"])} & there and content.get("parts"):
                await self._artifacts.save_sealed(
                    content=json.dumps({"session": session, "event": event, "kept": [now, number]}),
                    mime_type="application/json",
                    filename=name,
                    key=name,
                    **_whose(app, user),
                )

    async def of(self, app: str, user: str) -> dict[str, list[dict[str, Any]]]:
        """Return a user's events by session, sessions and events in the order in which they were kept.

        Raises:
            ArtifactError: One is encrypted, and the keys here do not open it.
        """
        names = await self._names(app, user)
        loaded = [await self._load(app, user, name) for name in names]
        found: dict[str, list[dict[str, Any]]] = {}
        for kept in sorted(filter(None, loaded), key=lambda kept: kept["kept"]):
            if _forgotten(kept["event"]["id"]) not in names:
                found.setdefault(kept["session"], []).append(kept["event"])
        return found

    async def forget(self, app: str, user: str, event: str) -> None:
        """Forget an event that is kept, by its id, for good.

        Raises:
            ArtifactError: One is encrypted, and the keys here do not open it.
        """
        sessions = [session for session, events in (await self.of(app, user)).items() if event in map(_id, events)]
        if sessions:
            mark = _forgotten(event)
            await self._artifacts.save_artifact(filename=mark, artifact=_MARK, key=mark, **_whose(app, user))
        for session in sessions:
            name = _name(session, event)
            self._known.pop((app, user, name), None)
            await self._artifacts.delete_artifact(filename=name, **_whose(app, user))

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


def _id(event: dict[str, Any]) -> str:
    return str(event["id"])


def _whose(app: str, user: str) -> dict[str, str]:
    # No app has a slash in its name, so no artifact of an app stands among them.
    return {"app_name": f"{app}/memory", "user_id": user}


def _name(session: str, event: str) -> str:
    return USER_PREFIX + _digest(f"{len(session)}:{session}{event}")


def _forgotten(event: str) -> str:
    """Return the name of what tells that an event is forgotten."""
    return f"{USER_PREFIX}forgotten-{_digest(event)}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:40]
