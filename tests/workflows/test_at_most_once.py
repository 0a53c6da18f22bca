"""Tools that are never started a second time by themselves, and what becomes of a call in doubt."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from perdure.activities.claims import ClaimDesk
from perdure.agents import App, FunctionTool, ParallelAgent, ToolContext
from perdure.client import Runner
from perdure.errors import InvalidMessage
from perdure.journal.events import REQUEST_RECONCILE, Event
from perdure.journal.open_calls import PendingCall
from perdure.journal.questions import parse_verdict
from perdure.messages.keys import SessionKey
from perdure.messages.session import Trial
from perdure.rules.in_doubt import NOT_HAPPENED, Reconciled
from perdure.rules.tool_responses import wrap_result
from perdure.sessions.lifecycle import Lifecycle
from tests.workflows.support import (
    Counted,
    Gate,
    GatedModel,
    User,
    agent,
    calls,
    eventually,
    long_running,
    make_app,
    named,
    responses,
    serving,
    text,
)

pytestmark = pytest.mark.server

HEARTBEAT = timedelta(seconds=2)


class Effect:
    """A tool that takes effect, and then raises, hangs, or returns; it keeps the keys of its runs."""

    def __init__(self, name: str = "pay", *, does: str = "return") -> None:
        self.name = name
        self.does = does
        self.keys: list[str] = []
        self.gate = Gate()

    def tool(self, reconcile: Callable[..., Any] | None = None, **options: Any) -> FunctionTool:
        async def run(tool_context: ToolContext, amount: int = 0) -> Any:
            self.keys.append(tool_context.idempotency_key)
            if self.does == "raise":
                raise RuntimeError("the line is dead")
            if self.does == "hang":
                await self.gate.pass_through(tool_context.idempotency_key)
            return {"paid": amount}

        return FunctionTool(named(run, self.name), at_most_once=True, reconcile=reconcile, **options)


def paying(name: str, effect: Effect, reconcile: Callable[..., Any] | None = None, **options: Any) -> App:
    clerk = agent("clerk", [calls("pay", amount=5), text("done")], [effect.tool(reconcile, **options)])
    return make_app(name, clerk)


async def failed(user: User) -> str:
    """Run an invocation whose tool raises; returns its id."""
    view = await user.run("a")
    assert (view.status, view.failures[0].step) == ("failed", "pay")
    return view.id


async def asked(user: User, invocation_id: str) -> PendingCall:
    """Wait until the invocation asks what became of its call; returns the request."""
    await user.open(REQUEST_RECONCILE, invocation_id=invocation_id)
    view = await user.settled(invocation_id)
    assert view.status == "waiting"
    (call,) = [call for call in view.pending if call.name == REQUEST_RECONCILE]
    return call


@pytest.mark.parametrize(
    ("answer", "result", "runs"),
    [
        ({"happened": True, "result": {"paid": 5}}, {"paid": 5}, 1),
        ({"happened": True}, {"result": None}, 1),
        ({"happened": False}, dict(NOT_HAPPENED), 1),
        ({"run_again": True}, {"paid": 5}, 2),
    ],
    ids=["happened", "happened without result", "not happened", "run again"],
)
@pytest.mark.parametrize("cached", [100, 0], ids=["cached", "replayed"])
async def test_a_call_that_raised_is_in_doubt_when_it_is_resumed(
    client: Client, app_name: str, answer: dict[str, Any], result: dict[str, Any], runs: int, cached: int
) -> None:
    """A person says what became of it; then the log goes on as if the tool had returned."""
    effect = Effect(does="raise")
    async with serving(client, paying(app_name, effect), cached=cached) as user:
        await user.create()
        invocation = await failed(user)
        await user.resume(invocation)
        request = await asked(user, invocation)
        assert request.args == {
            "originalFunctionCall": {"id": effect.keys[0].partition("/")[2], "name": "pay", "args": {"amount": 5}},
            "idempotencyKey": effect.keys[0],
            "startedAt": request.args["startedAt"],
            "reason": "RuntimeError: the line is dead",
        }
        assert request.since - 30 < request.args["startedAt"] <= request.since
        effect.does = "return"
        assert (await user.answered({request.id: answer})).status == "finished"
        assert responses(await user.events(), "pay") == [result]
        assert (await user.log())[-2:] == ["clerk got pay", "clerk: done"]
        assert (len(effect.keys), len(set(effect.keys))) == (runs, 1)


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"happened": "yes"},
        {"run_again": False},
        {"happened": True, "run_again": True},
        {"happened": False, "result": 1},
        {"result": 1},
        {"happened": True, "note": "I saw it"},
        "yes",
    ],
    ids=str,
)
def test_a_malformed_verdict_is_refused_with_what_is_expected(answer: Any) -> None:
    with pytest.raises(InvalidMessage, match=r'takes \{"happened": true, "result"'):
        parse_verdict(wrap_result(answer))


async def test_every_way_to_answer_takes_a_verdict_and_refuses_what_is_none(client: Client, app_name: str) -> None:
    effect = Effect(does="raise")
    async with serving(client, paying(app_name, effect)) as user:
        await user.create()
        invocation = await failed(user)
        await user.resume(invocation)
        request = await asked(user, invocation)
        with pytest.raises(InvalidMessage, match="run_again"):
            await user.answer({request.id: {"ok": True}})
        await user.signal({"id": request.id, "response": {"ok": True}})
        listed = [call for _, call in await user.runner.pending(**user.who)]
        assert [call.model_copy(update={"message": "", "plan": None}) for call in listed] == [request]
        await user.signal({"id": request.id, "response": {"happened": True, "result": 7}})
        # A signal says nothing of when it is taken.
        await user.logged("clerk: done")
        assert (await user.settled(invocation)).status == "finished"
        assert responses(await user.events(), "pay") == [{"result": 7}]


async def test_no_model_hears_of_the_doubt(client: Client, app_name: str) -> None:
    effect = Effect(does="raise")
    model = GatedModel([calls("pay", amount=5), text("done")])
    async with serving(client, make_app(app_name, agent("clerk", model, [effect.tool()]))) as user:
        await user.create()
        invocation = await failed(user)
        await user.resume(invocation)
        request = await asked(user, invocation)
        await user.answered({request.id: {"happened": True, "result": {"paid": 5}}})
        parts = [part for content in model.requests[-1].contents for part in content.parts or []]
        called = [part.function_call.name for part in parts if part.function_call]
        answered = [(r.name, r.response) for part in parts if (r := part.function_response)]
        assert (called, answered) == (["pay"], [("pay", {"paid": 5})])


async def test_a_call_that_runs_again_may_be_in_doubt_again(client: Client, app_name: str) -> None:
    effect = Effect(does="raise")
    async with serving(client, paying(app_name, effect)) as user:
        await user.create()
        invocation = await failed(user)
        await user.resume(invocation)
        first = await asked(user, invocation)
        assert (await user.answered({first.id: {"run_again": True}})).status == "failed"
        await user.resume(invocation)
        second = await asked(user, invocation)
        assert (second.id != first.id, len(effect.keys)) == (True, 2)
        assert (await user.answered({second.id: {"happened": False}})).status == "finished"
        assert len(effect.keys) == 2


async def test_a_silent_end_is_in_doubt_at_once(client: Client, app_name: str) -> None:
    """A timeout fails nothing: the run itself asks."""
    effect = Effect(does="hang")
    async with serving(client, paying(app_name, effect, timeout=timedelta(seconds=1))) as user:
        await user.create()
        invocation = await user.send("a")
        request = await asked(user, invocation)
        assert request.args["reason"] == "timed out (start-to-close timeout)"
        effect.gate.open()
        assert (await user.answered({request.id: {"happened": True, "result": {"paid": 5}}})).status == "finished"
        log = await user.log()
        assert log == [
            "user: a",
            "clerk calls pay",
            f"clerk calls {REQUEST_RECONCILE}",
            f"user answers {REQUEST_RECONCILE}",
            "clerk got pay",
            "clerk: done",
        ]
        assert len(effect.keys) == 1


async def test_a_worker_that_is_told_to_end_leaves_the_call_in_doubt(client: Client, app_name: str) -> None:
    effect = Effect(does="hang")
    app = paying(app_name, effect, heartbeat_timeout=HEARTBEAT)
    async with serving(client, app) as user:
        await user.create()
        invocation = await user.send("a")
        await effect.gate.reached()
    async with serving(client, app) as user:
        request = await asked(user, invocation)
        await user.answered({request.id: {"happened": False}})
        assert (len(effect.keys), responses(await user.events(), "pay")) == (1, [dict(NOT_HAPPENED)])


async def test_a_stop_leaves_the_call_in_doubt_for_the_resume(client: Client, app_name: str) -> None:
    effect = Effect(does="hang")
    async with serving(client, paying(app_name, effect)) as user:
        await user.create()
        invocation = await user.send("a")
        await effect.gate.reached()
        assert (await user.stop(invocation)).status == "stopped"
        assert await user.pending() == {}
        await user.resume(invocation)
        request = await asked(user, invocation)
        # A stop amid the doubt, and answers given meanwhile, are as for any open call.
        await user.stop(invocation)
        assert (await user.answer({request.id: {"run_again": True}})).status == "stopped"
        effect.does = "return"
        assert (await user.resumed(invocation)).status == "finished"
        assert (len(effect.keys), len(set(effect.keys))) == (2, 1)


@pytest.mark.parametrize("taken_over", [False, True], ids=["live", "taken over"])
@pytest.mark.parametrize("on_failure", ["fail", "tell_model"])
async def test_a_start_that_the_server_does_not_let_be_claimed_is_none(
    client: Client, app_name: str, monkeypatch: pytest.MonkeyPatch, on_failure: Any, taken_over: bool
) -> None:
    """It is said at once, nobody is asked what became of it, and a resume starts the call."""
    asked: list[RPCStatusCode] = []

    async def refuse(*_: Any) -> Any:
        asked.append(RPCStatusCode.UNAVAILABLE if not asked else RPCStatusCode.PERMISSION_DENIED)
        raise RPCError("not for workers", asked[-1], b"")

    effect = Effect()
    async with serving(client, paying(app_name, effect, on_failure=on_failure)) as user:
        await user.create()
        with monkeypatch.context() as patch:
            patch.setattr(ClaimDesk, "_update", refuse)
            view = await user.run("a")
        assert (view.status, len(asked), effect.keys) == ("failed", 2, [])
        assert "PERMISSION_DENIED: not for workers" in view.failures[0].cause
        if taken_over:
            await Lifecycle(client).take_over(SessionKey(app_name, "u", "s"))
        assert (await user.resumed(view.id)).status == "finished"
        assert (len(effect.keys), await user.pending()) == (1, {})


async def test_what_no_worker_took_up_was_not_started(client: Client, app_name: str) -> None:
    """A stop of a call that waits for a free worker leaves no doubt."""
    gate, effect = Gate(), Effect()
    clerk = agent("clerk", [calls("work", "pay"), text("done")], [gate.tool("work"), effect.tool()])
    async with serving(client, make_app(app_name, clerk), max_concurrent_activities=1) as user:
        await user.create()
        invocation = await user.send("a")
        await gate.reached()
        await user.stop(invocation)
        assert [entry.kind for entry in (await user.journal()).entries].count("tool_started") == 1
        gate.open()
        assert (await user.resumed(invocation)).status == "finished"
        assert len(effect.keys) == 1


@pytest.mark.parametrize("found", [Reconciled(True, {"paid": 5}), Reconciled(False)], ids=["happened", "not happened"])
async def test_the_tools_own_function_is_asked_first(client: Client, app_name: str, found: Reconciled) -> None:
    effect, seen = Effect(does="hang"), list[Any]()

    def look_up(amount: int, tool_context: ToolContext) -> Reconciled:
        seen.append((amount, tool_context.idempotency_key))
        if len(seen) == 1:
            raise RuntimeError("ask me again")
        tool_context.state["looked"] = True
        return found

    async with serving(client, paying(app_name, effect, look_up, timeout=timedelta(seconds=1))) as user:
        await user.create()
        view = await user.run("a")
        assert (view.status, len(effect.keys)) == ("finished", 1)
        assert seen == [(5, effect.keys[0])] * 2
        assert responses(await user.events(), "pay") == [found.result if found.happened else dict(NOT_HAPPENED)]
        assert await user.log() == ["user: a", "clerk calls pay", "clerk got pay", "clerk: done"]
        assert (await user.view()).state == ({"looked": True} if found.happened else {})


@pytest.mark.parametrize("cause", ["cannot tell", "failed", "wrong type"])
async def test_a_person_is_asked_where_the_function_cannot_tell(client: Client, app_name: str, cause: str) -> None:
    effect = Effect(does="raise")

    async def look_up() -> Any:
        if cause == "failed":
            raise PermissionError("no")
        return None if cause == "cannot tell" else True

    async with serving(client, paying(app_name, effect, look_up)) as user:
        await user.create()
        invocation = await failed(user)
        await user.resume(invocation)
        request = await asked(user, invocation)
        said = {
            "cannot tell": "its reconcile function cannot tell",
            "failed": "its reconcile function failed: PermissionError: no",
            "wrong type": "its reconcile function failed: reconcile of tool 'pay' returned bool",
        }
        assert said[cause] in request.args["reason"]
        assert (await user.answered({request.id: {"happened": True, "result": 1}})).status == "finished"


async def test_siblings_of_a_call_in_doubt_run_once_and_are_kept(client: Client, app_name: str) -> None:
    """Through a stop in the midst of the doubt, too."""
    effect, quick = Effect(does="hang"), Counted("quick", {"n": 1})
    tools = [effect.tool(timeout=timedelta(seconds=1)), quick.fn, long_running("pick")]
    clerk = agent("clerk", [calls("quick", "pay", "pick"), text("done")], tools)
    async with serving(client, make_app(app_name, clerk)) as user:
        await user.create()
        invocation = await user.send("a")
        request = await asked(user, invocation)
        await user.stop(invocation)
        await user.resume(invocation)
        assert (await asked(user, invocation)).id == request.id
        assert (await user.answered({request.id: {"happened": True, "result": "mine"}})).status == "waiting"
        (pick,) = await user.open("pick")
        assert (await user.answered({pick: {}})).status == "finished"
        assert (len(effect.keys), len(quick.keys)) == (1, 1)
        log = await user.log()
        assert log[3:] == [
            f"user answers {REQUEST_RECONCILE}",
            "clerk got quick, pay, pick",
            "user answers pick",
            "clerk: done",
        ]


async def test_two_calls_in_doubt_are_asked_about_together(client: Client, app_name: str) -> None:
    one, two = Effect("one", does="raise"), Effect("two", does="raise")
    clerk = agent("clerk", [calls("one", "two"), text("done")], [one.tool(), two.tool()])
    async with serving(client, make_app(app_name, clerk)) as user:
        await user.create()
        view = await user.run("a")
        await user.resume(view.id)
        waiting = await user.settled(view.id)
        assert [call.args["originalFunctionCall"]["name"] for call in waiting.pending] == ["one", "two"]
        first, second = waiting.pending
        assert (await user.answered({first.id: {"happened": True, "result": {"n": 1}}})).status == "waiting"
        two.does = "return"
        assert (await user.answered({second.id: {"run_again": True}})).status == "finished"
        events = await user.events()
        assert [responses(events, name) for name in ("one", "two")] == [[{"n": 1}], [{"paid": 0}]]
        assert (len(one.keys), len(two.keys)) == (1, 2)


async def test_a_branch_in_doubt_waits_and_the_others_go_on(client: Client, app_name: str) -> None:
    effect, quick = Effect(does="hang"), Counted("quick")
    left = agent("left", [calls("pay"), text("paid")], [effect.tool(timeout=timedelta(seconds=1))])
    right = agent("right", [calls("quick"), text("was quick")], [quick.fn])
    async with serving(client, make_app(app_name, ParallelAgent(name="fan", sub_agents=[left, right]))) as user:
        await user.create()
        invocation = await user.send("a")
        request = await asked(user, invocation)
        assert (request.branch, "right: was quick" in await user.log()) == ("fan.left", True)
        assert (await user.answered({request.id: {"happened": False}})).status == "finished"
        assert (await user.log())[-1] == "left: paid"


async def test_an_approved_call_that_is_cut_off_is_in_doubt(client: Client, app_name: str) -> None:
    effect = Effect(does="hang")
    clerk = agent(
        "clerk",
        [calls("pay", amount=5), text("done")],
        [effect.tool(timeout=timedelta(seconds=1), require_confirmation=True)],
    )
    async with serving(client, make_app(app_name, clerk)) as user:
        await user.create()
        waiting = await user.run("a")
        await user.answer({waiting.pending[0].id: {"confirmed": True}})
        request = await asked(user, waiting.id)
        await user.stop(waiting.id)
        await user.resume(waiting.id)
        assert (await asked(user, waiting.id)).id == request.id
        assert (await user.answered({request.id: {"happened": True, "result": {"paid": 5}}})).status == "finished"
        assert responses(await user.events(), "pay")[-1] == {"paid": 5}
        assert len(effect.keys) == 1


async def test_an_app_that_is_not_resumable_fails_and_says_why(client: Client, app_name: str) -> None:
    effect = Effect(does="hang")
    clerk = agent("clerk", [calls("pay")], [effect.tool(timeout=timedelta(seconds=1))])
    async with serving(client, make_app(app_name, clerk, resumable=False)) as user:
        await user.create()
        view = await user.run("a")
        assert (view.status, len(effect.keys)) == ("failed", 1)
        assert "not known whether the call took effect (timed out" in view.failures[0].cause


async def test_dropped_coroutines_find_the_doubt_again(client: Client, app_name: str) -> None:
    """In a session that re-enters at every pause the log is the one of a live wait."""
    effect = Effect(does="hang")
    async with serving(client, paying(app_name, effect, timeout=timedelta(seconds=1))) as user:
        user.runner = Runner(app_name, client, trial=Trial(reenter=True))
        await user.create()
        invocation = await user.send("a")
        request = await asked(user, invocation)
        assert (await user.answered({request.id: {"run_again": True}})).status == "waiting"
        again = await asked(user, invocation)
        assert (again.args["reason"], again.id != request.id) == (request.args["reason"], True)
        effect.does = "return"
        assert (await user.answered({again.id: {"run_again": True}})).status == "finished"
        assert (len(effect.keys), len(set(effect.keys))) == (3, 1)


async def test_a_lost_workflow_leaves_the_call_in_doubt(client: Client, app_name: str) -> None:
    effect = Effect(does="hang")
    async with serving(client, paying(app_name, effect)) as user:
        await user.create()
        invocation = await user.send("a")
        await effect.gate.reached()
        await user.workflow.terminate()
        await user.resume(invocation)
        request = await asked(user, invocation)
        assert request.args["reason"] == "it was started, and the run was cut off before its result came"
        effect.gate.open()
        assert (await user.answered({request.id: {"happened": True, "result": 1}})).status == "finished"
        assert len(effect.keys) == 1


async def test_a_doubt_survives_continue_as_new(small_client: Client, app_name: str) -> None:
    effect, quick = Effect(does="hang"), Counted("quick", {"n": 1})
    tools = [effect.tool(timeout=timedelta(seconds=1)), quick.fn]
    clerk = agent("clerk", [calls("pay", "quick"), *[text("fill")] * 12, text("done")], tools)
    async with serving(small_client, make_app(app_name, clerk)) as user:
        await user.create()
        invocation = await user.send("a")
        request = await asked(user, invocation)
        first = (await user.workflow.describe()).run_id
        for number in range(12):
            await user.run(f"m{number}")
        assert (await user.workflow.describe()).run_id != first
        [still] = (await user.invocation(invocation)).pending
        # A workflow task that was lost, as on a busy machine, is done once more, and later.
        assert still.model_copy(update={"since": request.since}) == request
        effect.does = "return"
        assert (await user.answered({request.id: {"run_again": True}})).status == "finished"
        assert (len(effect.keys), len(set(effect.keys)), len(quick.keys)) == (2, 1, 1)


async def test_a_tool_that_a_worker_lacks_has_not_started(client: Client, app_name: str) -> None:
    """In a rolling deployment the call waits for the worker that has the tool, without a doubt."""
    effect, pick = Effect(), long_running("pick")
    script = [calls("pick"), calls("pay", amount=5), text("done")]
    whole = make_app(app_name, agent("clerk", script, [pick, effect.tool()]))
    async with serving(client, whole) as user:
        await user.create()
        waiting = await user.run("a")
    async with serving(client, make_app(app_name, agent("clerk", script, [pick]))) as user:
        await user.answer({waiting.pending[0].id: {}})
        await eventually(lambda: _was_missing(user))
        await user.stop(waiting.id)
    async with serving(client, whole) as user:
        assert (await user.resumed(waiting.id)).status == "finished"
        assert len(effect.keys) == 1


async def _was_missing(user: User) -> bool:
    return any(entry.kind == "tool_ran" and entry.outcome == "not_started" for entry in (await user.journal()).entries)


async def test_a_predicate_that_asks_first_starts_nothing(client: Client, app_name: str) -> None:
    """Nor do arguments that do not fit: the call may start later, and the model is told."""
    effect = Effect()

    def is_large(amount: int) -> bool:
        return amount > 1

    tool = effect.tool(require_confirmation=is_large)
    clerk = agent("clerk", [calls("pay", amount=5), calls("pay", amount="much"), text("done")], [tool])
    async with serving(client, make_app(app_name, clerk)) as user:
        await user.create()
        waiting = await user.run("a")
        await user.stop(waiting.id)
        assert (await user.resumed(waiting.id)).status == "waiting"
        assert (await user.answered({waiting.pending[0].id: {"confirmed": True}})).status == "finished"
        first, second, third = responses(await user.events(), "pay")
        assert ("approve" in first["error"], second, "amount" in third["error"]) == (True, {"paid": 5}, True)
        assert len(effect.keys) == 1


async def test_long_sessions_of_quick_calls_ask_nothing(small_client: Client, app_name: str) -> None:
    """What is awaited before a continue-as-new is not in doubt after it."""
    effect = Effect()
    clerk = agent("clerk", [*[calls("pay", amount=n) for n in range(12)], text("done")], [effect.tool()])
    async with serving(small_client, make_app(app_name, clerk)) as user:
        await user.create()
        assert (await user.run("a")).status == "finished"
        assert (len(effect.keys), len(set(effect.keys))) == (12, 12)
        assert not [event for event in await user.events() if _asks(event)]


def _asks(event: Event) -> bool:
    return any(call.name == REQUEST_RECONCILE for call in event.get_function_calls())


async def test_two_stops_and_resumes_start_nothing(client: Client, app_name: str) -> None:
    effect = Effect(does="hang")
    async with serving(client, paying(app_name, effect)) as user:
        await user.create()
        invocation = await user.send("a")
        await effect.gate.reached()
        await asyncio.gather(user.stop(invocation), user.stop(invocation))
        asked_about: list[str] = []
        for _ in range(2):
            await user.resume(invocation)
            asked_about.append((await asked(user, invocation)).id)
            await user.stop(invocation)
        assert (len(effect.keys), len(set(asked_about))) == (1, 1)
        await user.answer({asked_about[0]: {"happened": False}})
        assert (await user.resumed(invocation)).status == "finished"
