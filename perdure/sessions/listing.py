"""Sessions as Temporal's listings tell of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any, cast

from pydantic import BaseModel, ConfigDict, PrivateAttr
from temporalio.api.common.v1 import Payload
from temporalio.client import Client, WorkflowExecution, WorkflowExecutionStatus

from perdure.journal.open_calls import PendingCall, SessionStatus
from perdure.messages.keys import SessionKey
from perdure.messages.search_attributes import APP, PENDING_TOOLS, STATUS
from perdure.messages.waiting import WAITING_MEMO, WaitingCalls
from perdure.rules.model_calls import LIMIT
from perdure.views.pages import awaited_tool


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
    _waiting: Payload | None = PrivateAttr(default=None)
    """What waits, as it stands in the memo."""

    @property
    def key(self) -> SessionKey:
        """Names the session."""
        return SessionKey(self.app_name, self.user_id, self.id)

    def with_memo(self, memo: Mapping[str, Payload]) -> ListedSession:
        """Take what the memo of its workflow tells; returns itself."""
        self._waiting = memo.get(WAITING_MEMO)
        return self

    async def listed_calls(self, client: Client) -> tuple[PendingCall, ...] | None:
        """Return the calls that wait, as the listing has them; `None` if only the session's history tells.

        Of a closed session it does, and where the memo is not of the calls that the search attributes tell of.

        Raises:
            Exception: They are encrypted, and the keys are not here; or another version wrote them.
        """
        if self.closed or not self.pending_tools or self._waiting is None:
            return None
        [found] = await client.data_converter.decode(
            [self._waiting], [cast("type[WaitingCalls | None]", WaitingCalls | None)]
        )
        calls = found.calls if found is not None else ()
        return calls if {*map(awaited_tool, calls)} == {*self.pending_tools} - {LIMIT} else None


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
    session = ListedSession(
        app_name=key.app,
        user_id=key.user,
        id=key.session,
        workflow_id=execution.id,
        status=status,
        closed=execution.status != WorkflowExecutionStatus.RUNNING,
        started=execution.start_time.timestamp(),
        pending_tools=None if status is None else tuple(tools or ()),
    )
    return session.with_memo(execution.raw_info.memo.fields)


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
