"""Sessions as Temporal's listings tell of them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from pydantic import BaseModel, ConfigDict
from temporalio.client import Client, WorkflowExecution, WorkflowExecutionStatus

from perdure.journal.open_calls import SessionStatus
from perdure.messages.keys import SessionKey
from perdure.messages.search_attributes import APP, PENDING_TOOLS, STATUS


class ListedSession(BaseModel):
    """A session in a listing."""

    model_config = ConfigDict(frozen=True)

    app_name: str
    user_id: str
    id: str
    workflow_id: str
    status: SessionStatus | None = None
    """As of the last change; `None` where the server has no search attributes."""
    closed: bool = False
    """Its workflow was terminated, timed out or failed; the next message, answer or resume brings it back."""
    started: float
    """Seconds since the epoch at which the workflow's newest run started."""
    pending_tools: tuple[str, ...] | None = None
    """Names of the tools that wait for an answer; `None` where the server has no search attributes."""

    @property
    def key(self) -> SessionKey:
        """Names the session."""
        return SessionKey(self.app_name, self.user_id, self.id)


async def list_apps(client: Client) -> list[str]:
    """Return the names of the apps that have sessions in the namespace.

    Raises:
        RPCError: The namespace lacks Perdure's search attributes.
    """
    found = {SessionKey.parse(run.id).app async for run in client.list_workflows(f"{APP.name} IS NOT NULL")}
    return sorted(found)


def listed(execution: WorkflowExecution) -> ListedSession:
    """Return the session whose workflow a listing tells of."""
    key = SessionKey.parse(execution.id)
    status: Any = execution.typed_search_attributes.get(STATUS)
    tools = execution.typed_search_attributes.get(PENDING_TOOLS)
    return ListedSession(
        app_name=key.app,
        user_id=key.user,
        id=key.session,
        workflow_id=execution.id,
        status=status,
        closed=execution.status != WorkflowExecutionStatus.RUNNING,
        started=execution.start_time.timestamp(),
        pending_tools=None if status is None else tuple(tools or ()),
    )


async def list_runs(client: Client, app: str, user_id: str | None) -> AsyncIterator[ListedSession]:
    """Yield the sessions of an app, or of one of its users; one whose run goes on anew may come twice."""
    query = f"WorkflowType = '{app}' AND ExecutionStatus != 'ContinuedAsNew'"
    if user_id is not None:
        # Encoded, so there is no quote in it.
        query += f" AND WorkflowId STARTS_WITH '{SessionKey(app, user_id, '').workflow_id}'"
    async for execution in client.list_workflows(query):
        if execution.id.count("/") != 2:
            # Somebody started a workflow of the app's type by hand; it is no session.
            continue
        session = listed(execution)
        if user_id is None or session.user_id == user_id:
            yield session
