"""google.adk's memory over what is kept beside the artifacts: any worker finds what another one has kept."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from google.adk.events.event import Event as AdkEvent
from google.adk.memory.base_memory_service import BaseMemoryService, SearchMemoryResponse
from google.adk.memory.in_memory_memory_service import InMemoryMemoryService
from google.adk.sessions.session import Session

from perdure.artifacts.memories import Memories

__all__ = ["KeptMemory"]

_NO_SESSION = "__unknown_session_id__"
"""As in ADK."""


class KeptMemory(BaseMemoryService):
    """Keeps sessions, and searches them as google.adk's `InMemoryMemoryService` does: by words."""

    def __init__(self, memories: Memories) -> None:
        """Search what is kept there."""
        self._memories = memories

    async def add_session_to_memory(self, session: Session) -> None:
        """Keep the events of a session."""
        await self._memories.add(session.app_name, session.user_id, session.id, _dumped(session.events))

    async def add_events_to_memory(
        self,
        *,
        app_name: str,
        user_id: str,
        events: Sequence[AdkEvent],
        session_id: str | None = None,
        custom_metadata: Mapping[str, object] | None = None,
    ) -> None:
        """Keep some events, of no session where none is named; the metadata is for other services, as in ADK."""
        await self._memories.add(app_name, user_id, session_id or _NO_SESSION, _dumped(events))

    async def delete_memory(self, *, app_name: str, user_id: str, memory_id: str | None = None) -> None:
        """Forget an event, by its id, for good."""
        if memory_id:
            await self._memories.forget(app_name, user_id, memory_id)

    async def search_memory(self, *, app_name: str, user_id: str, query: str) -> SearchMemoryResponse:
        """Return what a user's sessions have said that fits a query."""
        searched = InMemoryMemoryService()
        for session, events in (await self._memories.of(app_name, user_id)).items():
            known = [AdkEvent.model_validate(event) for event in events]
            await searched.add_session_to_memory(Session(id=session, app_name=app_name, user_id=user_id, events=known))
        return await searched.search_memory(app_name=app_name, user_id=user_id, query=query)


def _dumped(events: Iterable[AdkEvent]) -> list[dict[str, Any]]:
    return [event.model_dump(mode="json", by_alias=True, exclude_none=True) for event in events]
