"""An update that the server or the connection lost on its way is sent again, and is taken once."""

from __future__ import annotations

from typing import Any

import pytest
from temporalio.client import (
    Client,
    Interceptor,
    OutboundInterceptor,
    StartWorkflowUpdateInput,
    WorkflowUpdateHandle,
)
from temporalio.service import RPCError, RPCStatusCode

from perdure.journal.events import USER
from perdure.messages.session import RESPOND, SEND_MESSAGE
from tests.workflows.support import PENDING, User, agent, calls, long_running, make_app, responses, serving, text

pytestmark = pytest.mark.server


class Losing(Interceptor):
    """Loses the first update of each name: on its way there, or on the way back, when it has been taken."""

    def __init__(self, error: RPCError, *, taken: bool) -> None:
        self.sent: list[tuple[str, str | None]] = []
        self._error = error
        self._taken = taken

    def intercept_client(self, next: OutboundInterceptor) -> OutboundInterceptor:
        losing = self

        class Outbound(OutboundInterceptor):
            async def start_workflow_update(self, input: StartWorkflowUpdateInput) -> WorkflowUpdateHandle[Any]:
                return await losing.send(input, super().start_workflow_update)

        return Outbound(next)

    async def send(self, input: StartWorkflowUpdateInput, on: Any) -> WorkflowUpdateHandle[Any]:
        first = input.update not in {name for name, _ in self.sent}
        self.sent.append((input.update, input.update_id))
        if first:
            if self._taken:
                await on(input)
            raise self._error
        return await on(input)


def lost(status: RPCStatusCode, message: str) -> RPCError:
    return RPCError(message, status, b"")


LOST = [
    lost(RPCStatusCode.ABORTED, "update was aborted."),
    lost(RPCStatusCode.UNKNOWN, "transport error"),
    lost(RPCStatusCode.FAILED_PRECONDITION, "Unable to perform workflow execution update due to failed workflow task."),
]


@pytest.mark.parametrize("taken", [False, True])
@pytest.mark.parametrize("error", LOST, ids=["aborted", "cut off", "task failed"])
async def test_an_update_that_was_lost_is_sent_again_and_taken_once(
    client: Client, app_name: str, error: RPCError, taken: bool
) -> None:
    losing = Losing(error, taken=taken)
    clerk = agent("clerk", [calls("ask"), text("read")], tools=[long_running("ask")])
    async with serving(client, make_app(app_name, clerk)) as user:
        settings = {**client.config(), "interceptors": [losing]}
        sender = User(Client(**settings), app_name)  # pyright: ignore[reportArgumentType] -- the SDK's TypedDict
        await sender.create()
        waiting = await sender.run("hello")
        [call] = waiting.pending
        await sender.answered({call.id: {"ok": True}})
        events = await user.events()
        assert [event.text for event in events if event.author == USER and event.text] == ["hello"]
        assert responses(events, "ask") == [PENDING, {"ok": True}]
        for name in (SEND_MESSAGE, RESPOND):
            ids = [id for sent, id in losing.sent if sent == name]
            assert len(ids) == 2
            assert len(set(ids)) == 1
