"""Tools that a person must approve, in ADK's wire format (SEMANTICS.md, "Confirmations")."""

from __future__ import annotations

from typing import Any

import pytest
from temporalio.client import Client

from perdure.agents import FunctionTool, ToolContext
from perdure.errors import CallAnswered, InvalidMessage
from perdure.journal.events import REQUEST_CONFIRMATION
from perdure.messages.keys import SessionKey
from perdure.sessions.lifecycle import Lifecycle
from tests.workflows.support import ONCE, GatedModel, User, agent, calls, make_app, responses, serving, text

pytestmark = pytest.mark.server

REJECTED = {"error": "This tool call is rejected."}
ASKED = {"error": "This tool call requires confirmation, please approve or reject."}


class Payments:
    """A tool that pays, and keeps what it paid."""

    def __init__(self, ask: Any = True, *, fail: int = 0) -> None:
        self.paid: list[int] = []
        self.asked: list[int] = []

        def pay(amount: int) -> dict[str, int]:
            """Pay."""
            self.paid.append(amount)
            if len(self.paid) <= fail:
                raise RuntimeError("the bank is closed")
            return {"paid": amount}

        def is_large(amount: int) -> bool:
            self.asked.append(amount)
            return amount > 100

        self.tool = FunctionTool(pay, require_confirmation=is_large if ask == "large" else ask, retry=ONCE)


async def paying(user: User, *, waits: bool = True) -> str:
    """Send a message whose agent pays; returns the id of the request to confirm."""
    view = await user.run("pay")
    assert view.status == ("waiting" if waits else "finished")
    return (await user.pending())[REQUEST_CONFIRMATION]


@pytest.mark.parametrize("confirmed", [True, False])
@pytest.mark.parametrize("cached", [0, 100])
async def test_a_person_decides(client: Client, app_name: str, confirmed: bool, cached: int) -> None:
    payments = Payments()
    model = GatedModel([calls("pay", amount=5), text("done")])
    async with serving(client, make_app(app_name, agent("clerk", model, [payments.tool])), cached=cached) as user:
        await user.create()
        request = await paying(user)
        assert payments.paid == []
        log = await user.log()
        assert log[1:] == ["clerk calls pay", f"clerk calls {REQUEST_CONFIRMATION}", "clerk got pay"]
        assert (await user.answered({request: {"confirmed": confirmed}})).status == "finished"
        assert responses(await user.events(), "pay") == [ASKED, {"paid": 5} if confirmed else REJECTED]
        assert payments.paid == ([5] if confirmed else [])
        assert REQUEST_CONFIRMATION not in str(model.requests[-1].contents)


async def test_a_predicate_says_which_calls_need_it(client: Client, app_name: str) -> None:
    payments = Payments("large")
    both = {"calls": [{"name": "pay", "args": {"amount": amount}} for amount in (7, 700)]}
    async with serving(client, make_app(app_name, agent("clerk", [both, text("done")], [payments.tool]))) as user:
        await user.create()
        request = await paying(user)
        assert payments.paid == [7]
        assert sorted(payments.asked) == [7, 700]
        assert (await user.answered({request: {"confirmed": True}})).status == "finished"
        assert payments.paid == [7, 700]
        assert responses(await user.events(), "pay") == [{"paid": 7}, ASKED, {"paid": 700}]


@pytest.mark.parametrize("answer", [{}, {"confirmed": "yes"}, {"confirm": True}, "yes", True, {"confirmed": None}])
async def test_a_malformed_decision_is_refused(client: Client, app_name: str, answer: Any) -> None:
    payments = Payments()
    clerk = agent("clerk", [calls("pay", amount=5), text("done")], [payments.tool])
    async with serving(client, make_app(app_name, clerk)) as user:
        await user.create()
        request = await paying(user)
        with pytest.raises(InvalidMessage, match='"confirmed": true'):
            await user.answer({request: answer})
        await user.signal({"id": request, "response": answer})
        assert (await user.answered({request: {"confirmed": True}})).status == "finished"
        assert payments.paid == [5]
        with pytest.raises(CallAnswered):
            await user.answer({request: {"confirmed": False}})


async def test_a_decision_as_adks_web_page_sends_it(client: Client, app_name: str) -> None:
    payments = Payments()
    clerk = agent("clerk", [calls("pay", amount=5), text("done")], [payments.tool])
    async with serving(client, make_app(app_name, clerk)) as user:
        await user.create()
        request = await paying(user)
        assert (await user.answered({request: {"response": '{"confirmed": true}'}})).status == "finished"
        assert payments.paid == [5]


async def test_several_confirmations_of_one_answer(client: Client, app_name: str) -> None:
    payments = Payments()
    both = {"calls": [{"name": "pay", "args": {"amount": amount}} for amount in (1, 2)]}
    async with serving(client, make_app(app_name, agent("clerk", [both, text("done")], [payments.tool]))) as user:
        await user.create()
        waiting = await user.run("pay")
        first, second = (call.id for call in waiting.pending)
        assert (await user.answered({second: {"confirmed": False}})).status == "waiting"
        assert payments.paid == []
        assert (await user.answered({first: {"confirmed": True}})).status == "finished"
        assert payments.paid == [1]
        assert responses(await user.events(), "pay") == [ASKED, ASKED, {"paid": 1}, REJECTED]


async def test_what_was_confirmed_and_failed_is_not_asked_again(client: Client, app_name: str) -> None:
    payments = Payments(fail=1)
    clerk = agent("clerk", [calls("pay", amount=5), text("done")], [payments.tool])
    async with serving(client, make_app(app_name, clerk)) as user:
        await user.create()
        failed = await user.answered({await paying(user): {"confirmed": True}})
        assert (failed.status, failed.failures[0].step) == ("failed", "pay")
        assert (await user.resumed(failed.id)).status == "finished"
        assert payments.paid == [5, 5]
        assert responses(await user.events(), "pay") == [ASKED, {"paid": 5}]


@pytest.mark.parametrize("confirmed", [True, False])
async def test_in_an_app_that_is_not_resumable_the_decision_starts_an_invocation(
    client: Client, app_name: str, confirmed: bool
) -> None:
    payments = Payments()
    clerk = agent("clerk", [calls("pay", amount=5), text("done")], [payments.tool])
    async with serving(client, make_app(app_name, clerk, resumable=False)) as user:
        await user.create()
        request = await paying(user, waits=False)
        asked = (await user.view()).invocations[0]
        with pytest.raises(InvalidMessage):
            await user.answer({request: {"maybe": 1}})
        view = await user.answered({request: {"confirmed": confirmed}})
        assert (view.status, view.id != asked.id) == ("finished", True)
        assert responses(await user.events(), "pay") == [ASKED, {"paid": 5} if confirmed else REJECTED]
        assert (await user.log())[-1] == "clerk: done"
        assert await user.pending() == {}


class Asking:
    """A tool that asks by itself, and a sibling that fails the first time."""

    def __init__(self) -> None:
        self.paid: list[bool] = []
        self.worked = 0

        async def pay(tool_context: ToolContext) -> str:
            """Pay, once somebody has approved it."""
            if tool_context.tool_confirmation is None:
                tool_context.request_confirmation(hint="Pay?")
                return "asked"
            self.paid.append(tool_context.tool_confirmation.confirmed)
            return "paid"

        async def work() -> str:
            """Work."""
            self.worked += 1
            if self.worked == 1:
                raise RuntimeError("not today")
            return "worked"

        self.tools = [FunctionTool(pay), FunctionTool(work, retry=ONCE)]


@pytest.mark.parametrize("taken_over", [False, True])
async def test_a_tool_that_asked_by_itself_runs_once_it_is_approved_though_its_sibling_failed(
    client: Client, app_name: str, taken_over: bool
) -> None:
    """What it returned as it asked is kept for the response event, and is not what it returns."""
    asking = Asking()
    clerk = agent("clerk", [calls("pay", "work"), text("done")], asking.tools)
    async with serving(client, make_app(app_name, clerk)) as user:
        await user.create()
        failed = await user.run("go")
        assert failed.status == "failed"
        if taken_over:
            await Lifecycle(user.client).take_over(SessionKey(user.app, "u", "s"))
        waiting = await user.resumed(failed.id)
        assert (waiting.status, asking.paid) == ("waiting", [])
        if taken_over:
            await Lifecycle(user.client).take_over(SessionKey(user.app, "u", "s"))
        request = (await user.pending())[REQUEST_CONFIRMATION]
        assert (await user.answered({request: {"confirmed": True}})).status == "finished"
        assert (asking.paid, asking.worked) == ([True], 2)
        assert responses(await user.events(), "pay") == [{"result": "asked"}, {"result": "paid"}]
