"""The route of AG-UI: one request is one run, answered by a stream of the protocol's events."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from ag_ui.core import RunAgentInput
from ag_ui.encoder import EventEncoder
from fastapi import APIRouter
from fastapi.responses import StreamingResponse
from pydantic import model_validator

from perdure.api.adk.schemas import storable
from perdure.api.ag_ui.intake import Intake
from perdure.api.ag_ui.runs import Run
from perdure.api.auth.identity import IdentityOf
from perdure.api.auth.standing import Standing, StandingOf
from perdure.api.base.backend import BackendOf, Segment, check_reserved
from perdure.api.base.bodies import CheckedRoute
from perdure.api.base.users import UserOf
from perdure.api.v1.addressing import Where
from perdure.messages.keys import SessionKey

# The protocol has its own schema: https://ag-ui.com/spec/1.0/schema.json
router = APIRouter(route_class=CheckedRoute, prefix="/ag-ui", include_in_schema=False)

_ENCODER = EventEncoder()


class RunInput(RunAgentInput):
    """A run's request, with nothing in it that cannot be stored."""

    @model_validator(mode="before")
    @classmethod
    def _check_text(cls, value: Any) -> Any:
        return value if isinstance(value, cls) else storable(value)


@router.post("/{app_name}", response_class=StreamingResponse)
async def run_agent(
    app_name: Segment, body: RunInput, backend: BackendOf, identity: IdentityOf, standing: StandingOf, user: UserOf
) -> StreamingResponse:
    """Run, and stream the run's events. Whoever leaves does not stop the invocation, and joins it by another run."""
    check_reserved(app_name)
    key = SessionKey(app_name, user, body.thread_id)
    where = Where(key, backend.runner_of(key))
    async with backend.patience():
        await backend.check_served(app_name)
    run = Run(body, Intake(body, where, backend, identity), where, backend)
    headers = {"cache-control": "no-cache"}
    return StreamingResponse(_frames(run, standing), media_type=_ENCODER.get_content_type(), headers=headers)


async def _frames(run: Run, standing: Standing) -> AsyncGenerator[str, None]:
    async with aclosing(run.events(standing)) as events:
        async for event in events:
            yield _ENCODER.encode(event)
