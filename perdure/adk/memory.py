"""google.adk's memory over what is kept beside the artifacts: any worker finds what another one has kept."""

from __future__ import annotations

from google.adk.events.event import Event as AdkEvent
from google.adk.memory.base_memory_service import BaseMemoryService, SearchMemoryResponse
from google.adk.memory.in_memory_memory_service import InMemoryMemoryService
from google.adk.sessions.session import Session

from perdure.artifacts.memories import Memories

__all__ = ["KeptMemory"]


class KeptMemory(BaseMemoryService):
    """Keeps sessions, and searches them as google.adk's `InMemoryMemoryService` does: by words."""

    def __init__(self, memories: Memories) -> None:
        """Search what is kept there."""
        self._memories = memories

    async def add_session_to_memory(self, session: Session) -> None:
        """Keep the events of a session."""
        events = [event.model_dump(mode="json", by_alias=True, exclude_none=True) for event in session.events]
        await self._memories.add(session.app_name, session.user_id, session.id, events)

    async def search_memory(self, *, app_name: str, user_id: str, query: str) -> SearchMemoryResponse:
        """Return what a user's sessions have said that fits a query."""
        searched = InMemoryMemoryService()
        for session, events in (await self._memories.of(app_name, user_id)).items():
            known = [AdkEvent.model_validate(event) for event in events]
            await searched.add_session_to_memory(Session(id=session, app_name=app_name, user_id=user_id, events=known))
        return await searched.search_memory(app_name=app_name, user_id=user_id, query=query)
