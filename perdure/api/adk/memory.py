"""The route that gives a session to its user's memory."""

from __future__ import annotations

from fastapi import APIRouter, HTTPException

from perdure.api.adk.artifacts import service_of
from perdure.api.adk.schemas import UpdateMemoryRequest
from perdure.api.base.backend import BackendOf, Segment
from perdure.api.base.bodies import CheckedRoute
from perdure.artifacts.memories import Memories
from perdure.errors import SessionNotFound

router = APIRouter(route_class=CheckedRoute, tags=["memory"])


@router.patch("/apps/{app_name}/users/{user_id}/memory")
async def add_session_to_memory(
    app_name: Segment, user_id: Segment, backend: BackendOf, body: UpdateMemoryRequest
) -> None:
    """Give all events of a session to its user's memory, which agents of google.adk's search."""
    runner = backend.runner(app_name, user_id)
    memories = Memories(service_of(backend))
    async with backend.patience():
        try:
            logged = [event async for event in runner.events(user_id=user_id, session_id=body.session_id)]
        except SessionNotFound as error:
            raise HTTPException(404, "Session not found") from error
    events = [event.model_dump(mode="json", by_alias=True, exclude_none=True) for event in logged]
    await memories.add(app_name, user_id, body.session_id, events)
