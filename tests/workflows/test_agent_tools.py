"""Agents as tools of Perdure's own agents: each of their steps is the session's, and what waits there waits outside."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from pydantic import BaseModel
from temporalio.client import Client

from perdure.agents import (
    AgentTool,
    LongRunningFunctionTool,
    ParallelAgent,
    SequentialAgent,
    ToolContext,
)
from perdure.agents.expiry import AnswerWith
from perdure.agents.tools import FunctionTool
from perdure.client import Runner
from perdure.messages.session import Trial
from perdure.sessions.shared_state import read_state
from tests.workflows.custom_agents import GatherAll
from tests.workflows.support import (
    ONCE,
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

TRIALS = {
    "live": None,
    "entered again at each pause": Trial(reenter=True),
    "a run for each step": Trial(steps_per_run=1, reenter=True),
}


@pytest.fixture(params=TRIALS)
def trial(request: pytest.FixtureRequest) -> Trial | None:
    return TRIALS[request.param]


class Bank:
    """Tools that take note of each call."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.fails = 0

    def wire(self, amount: int, tool_context: ToolContext) -> dict[str, Any]:
        """Wire money."""
        self.calls.append(f"wire {amount} {tool_context.state.get('currency')}")
        tool_context.state["wired"] = amount
        if self.fails:
            self.fails -= 1
            raise ConnectionError("the bank is closed")
        return {"wired": amount}

    def rate(self) -> dict[str, Any]:
        """Look the rate up."""
        self.calls.append("rate")
        return {"rate": 2}


@pytest.fixture
def bank() -> Bank:
    return Bank()


class Order(BaseModel):
    amount: int
    note: str | None = None


class Receipt(BaseModel):
    number: int
    note: str | None = None


def user_of(client: Client, app: str, trial: Trial | None) -> User:
    user = User(client, app)
    user.runner = Runner(app, client, trial=trial)
    return user


async def activities(user: User) -> list[str]:
    """Return the names of the activities that the session has run, in order."""
    return [
        event.activity_task_scheduled_event_attributes.activity_type.name
        for history in await user.histories()
        for event in history.events
        if event.HasField("activity_task_scheduled_event_attributes")
    ]


async def test_each_step_of_it_is_one_of_its_own(client: Client, app_name: str, bank: Bank) -> None:
    model = GatedModel([calls("rate"), calls("wire", amount=7), text("done")])
    banker = agent("banker", model, [bank.rate, bank.wire], output_key="said", description="Wires money.")
    outer = GatedModel([calls("banker", request="wire 7"), text("all is well")])
    root = agent("assistant", outer, [AgentTool(banker)])
    async with serving(client, make_app(app_name, root)) as user:
        await user.create(currency="EUR")
        assert (await user.run("please")).status == "finished"
        steps = [name for name in await activities(user) if "_" not in name]
        model_step = "perdure:model"
        assert steps == [
            *(model_step, "banker", model_step, "rate", model_step, "wire", model_step, "banker", model_step)
        ]
        assert await user.log() == [
            "user: please",
            "assistant calls banker",
            "assistant got banker",
            "assistant: all is well",
        ]
        assert (await user.view()).state == {"currency": "EUR", "wired": 7, "said": "done"}
        response = next(event for event in await user.events() if event.get_function_responses())
        assert response.actions.state_delta == {"wired": 7, "said": "done"}
        assert responses([response], "banker") == [{"result": "done"}]
    assert bank.calls == ["rate", "wire 7 EUR"]
    # It sees the request alone, and the outer model nothing of what it did.
    assert [part.text for content in model.requests[0].contents for part in content.parts or []] == ["wire 7"]
    assert "rate" not in "".join(str(request.contents) for request in outer.requests)
    (declared,) = outer.requests[0].config.model_dump(mode="json", exclude_none=True)["tools"][0][
        "function_declarations"
    ]
    assert (declared["name"], declared["description"]) == ("banker", "Wires money.")
    assert declared["parameters_json_schema"]["required"] == ["request"]


@pytest.mark.parametrize("resumable", [True, False])
async def test_what_waits_in_it_waits_outside(
    client: Client, app_name: str, bank: Bank, trial: Trial | None, resumable: bool
) -> None:
    """A confirmation and a long-running call; whether or not the app is resumable, nothing is lost."""
    tools = [FunctionTool(bank.wire, require_confirmation=True), long_running("ask_manager", None)]
    banker = agent("banker", [calls("wire", amount=7), calls("ask_manager"), text("approved and wired")], tools)
    outer = GatedModel([calls("banker", request="wire 7"), text("all is well"), text("what else?")])
    app = make_app(app_name, agent("assistant", outer, [AgentTool(banker)]), resumable=resumable)
    async with serving(client, app):
        user = user_of(client, app_name, trial)
        await user.create()
        asked = await user.run("wire 7")
        assert (asked.status, [one.name for one in asked.pending]) == ("waiting", ["adk_request_confirmation"])
        assert bank.calls == []
        waiting = await user.answered({asked.pending[0].id: {"confirmed": True}})
        assert (waiting.id, waiting.status) == (asked.id, "waiting")
        assert [(one.name, one.agent) for one in waiting.pending] == [("ask_manager", "banker")]
        done = await user.answered({waiting.pending[0].id: {"approved": True}})
        assert (done.id, done.status) == (asked.id, "finished")
        assert (await user.log())[-2:] == ["assistant got banker", "assistant: all is well"]
        assert (await user.view()).state["wired"] == 7
        assert (await user.run("and now?")).status == "finished"
    assert bank.calls == ["wire 7 None"]
    assert "ask_manager" not in "".join(request.model_dump_json() for request in outer.requests)


async def test_a_resume_goes_on_where_it_failed(client: Client, app_name: str, bank: Bank, trial: Trial | None) -> None:
    bank.fails = 1
    tools = [bank.rate, FunctionTool(bank.wire, retry=ONCE)]
    banker = agent("banker", [calls("rate"), calls("wire", amount=7), text("done")], tools)
    root = agent("assistant", [calls("banker", request="wire 7"), text("all is well")], [AgentTool(banker)])
    async with serving(client, make_app(app_name, root)):
        user = user_of(client, app_name, trial)
        await user.create()
        failed = await user.run("wire 7")
        assert failed.status == "failed"
        (failure,) = failed.failures
        assert (failure.agent, failure.step) == ("assistant", "banker")
        assert "agent 'banker' failed in step 'wire': ConnectionError: the bank is closed" in failure.cause
        assert (await user.resumed(failed.id)).status == "finished"
    assert bank.calls == ["rate", "wire 7 None", "wire 7 None"]


async def test_a_model_may_be_told_that_it_failed(client: Client, app_name: str, bank: Bank) -> None:
    bank.fails = 1
    banker = agent("banker", [calls("wire", amount=7)], [FunctionTool(bank.wire, retry=ONCE)])
    tool = AgentTool(banker, on_failure="tell_model")
    root = agent("assistant", [calls("banker", request="wire 7"), text("sorry")], [tool])
    async with serving(client, make_app(app_name, root)) as user:
        await user.create()
        assert (await user.run("wire 7")).status == "finished"
        (response,) = responses(await user.events(), "banker")
        assert "Tool 'banker' failed: AgentFailed: agent 'banker' failed in step 'wire'" in response["error"]
        effects = [(one.tool, one.outcome) for one in await user.runner.effects(**user.who)]
        assert effects == [("banker", "failed"), ("wire", "failed")]


async def test_schemas_shape_what_it_is_asked_and_what_it_answers(
    client: Client, app_name: str, trial: Trial | None
) -> None:
    """Arguments that do not fit are the outer model's to mend; the result is the value."""
    model = GatedModel([text('{"number": 5}')])
    clerk = agent("clerk", model, input_schema=Order, output_schema=Receipt, output_key="receipt")
    outer = GatedModel([calls("clerk", amount="much"), calls("clerk", amount=7), text("done")])
    async with serving(client, make_app(app_name, agent("assistant", outer, [AgentTool(clerk)]))):
        user = user_of(client, app_name, trial)
        await user.create()
        assert (await user.run("go")).status == "finished"
        wrong, right = responses(await user.events(), "clerk")
        assert "Invoking `clerk()` failed as its arguments have the wrong form: amount:" in wrong["error"]
        assert right == {"number": 5}
        assert (await user.view()).state == {"receipt": {"number": 5}}
    (content,) = model.requests[0].contents
    assert [part.text for part in content.parts or []] == ['{"amount":7}']


async def test_its_result_may_end_the_turn(client: Client, app_name: str, trial: Trial | None) -> None:
    banker = agent("banker", [text("done")])
    root = agent("assistant", [calls("banker", request="a")], [AgentTool(banker, skip_summarization=True)])
    async with serving(client, make_app(app_name, root)):
        user = user_of(client, app_name, trial)
        await user.create()
        assert (await user.run("a")).status == "finished"
        assert (await user.log())[-1] == "assistant got banker"


async def test_several_at_once_and_within_each_other(
    client: Client, app_name: str, bank: Bank, trial: Trial | None
) -> None:
    """Two agents as tools in one answer, of which one has a pipeline as a tool, where a confirmation waits in each."""
    asks = FunctionTool(bank.wire, require_confirmation=True)
    clerk = agent("clerk", [calls("wire", amount=1), text("one")], [asks])
    pipeline = SequentialAgent(name="pipeline", sub_agents=[clerk, agent("checker", [text("checked")])])
    banker = agent("banker", [calls("pipeline", request="all"), text("two")], [AgentTool(pipeline)])
    broker = agent("broker", [calls("wire", amount=3), text("three")], [asks])
    both = {"calls": [{"name": name, "args": {"request": "go"}} for name in ("banker", "broker")]}
    root = agent("assistant", [both, text("all is well")], [AgentTool(banker), AgentTool(broker)])
    async with serving(client, make_app(app_name, root)):
        user = user_of(client, app_name, trial)
        await user.create()
        asked = await user.run("go")
        assert sorted(one.agent for one in asked.pending) == ["broker", "clerk"]
        done = await user.answered({one.id: {"confirmed": True} for one in asked.pending})
        assert (done.id, done.status) == (asked.id, "finished")
        events = await user.events()
    assert responses(events, "banker") + responses(events, "broker") == [{"result": "two"}, {"result": "three"}]
    assert sorted(bank.calls) == ["wire 1 None", "wire 3 None"]


async def test_one_agent_may_be_the_tool_of_several(client: Client, app_name: str, bank: Bank) -> None:
    """And be called more than once: each call is a session of its own."""
    helper = agent("helper", [calls("wire", amount=1), text("helped")], [bank.wire])
    first = agent("first", [calls("helper", request="a"), text("1")], [AgentTool(helper)])
    second = agent("second", [calls("helper", request="b"), calls("helper", request="c"), text("2")])
    second.tools = [AgentTool(helper)]
    root = SequentialAgent(name="both", sub_agents=[first, second])
    async with serving(client, make_app(app_name, root)) as user:
        await user.create()
        assert (await user.run("go")).status == "finished"
        assert responses(await user.events(), "helper") == [{"result": "helped"}] * 3
    assert len(bank.calls) == 3


async def test_calls_of_equal_ids_are_different_calls(client: Client, app_name: str) -> None:
    """A model may count its ids from nought, in each conversation anew: what pays by a key is to pay for each."""
    from google.genai import types

    pay = Counted("pay")

    def asking(name: str, id: str, **args: Any) -> types.Content:
        return types.Content(parts=[types.Part(function_call=types.FunctionCall(id=id, name=name, args=args))])

    helper = agent("helper", GatedModel([asking("pay", "0"), text("paid")]), [pay.once])  # pyright: ignore[reportArgumentType] -- contents are steps, too
    outer = GatedModel([asking("helper", "0", request="a"), asking("helper", "1", request="b"), text("done")])  # pyright: ignore[reportArgumentType] -- see above
    async with serving(client, make_app(app_name, agent("assistant", outer, [AgentTool(helper)]))) as user:
        await user.create()
        assert (await user.run("go")).status == "finished"
    assert len(set(pay.keys)) == 2


async def test_branches_and_custom_agents_run_in_it(client: Client, app_name: str, trial: Trial | None) -> None:
    one, two = agent("one", [text("1")]), agent("two", [text("2")])
    both = ParallelAgent(name="both", sub_agents=[agent("left", [text("l")]), agent("right", [text("r")])])
    custom = GatherAll(name="custom", sub_agents=[one, two])
    asks = {"calls": [{"name": name, "args": {"request": "go"}} for name in ("both", "custom")]}
    root = agent("assistant", [asks, text("done")], [AgentTool(both), AgentTool(custom)])
    async with serving(client, make_app(app_name, root)):
        user = user_of(client, app_name, trial)
        await user.create()
        assert (await user.run("go")).status == "finished"
        events = await user.events()
        assert responses(events, "both")[0]["result"] in ("l", "r")
        assert responses(events, "custom") == [{"result": "all done"}]


@pytest.mark.parametrize("moved", ["imported", "terminated"])
async def test_it_goes_on_in_a_session_made_of_its_log(client: Client, app_name: str, bank: Bank, moved: str) -> None:
    """What it did is not done again, and what waits in it is answered, where the workflow was lost or is a copy's."""
    tools = [bank.rate, FunctionTool(bank.wire, require_confirmation=True)]
    banker = agent("banker", [calls("rate"), calls("wire", amount=7), text("done")], tools)
    root = agent("assistant", [calls("banker", request="wire 7"), text("all is well")], [AgentTool(banker)])
    async with serving(client, make_app(app_name, root)) as user:
        await user.create()
        asked = await user.run("wire 7")
        if moved == "imported":
            lines = [line async for line in user.runner.export_session(**user.who, journal=True)]
            await user.runner.import_session(lines, session_id="copy", allow_pending_calls=True)
            user = user.other(session_id="copy")
        else:
            await user.workflow.terminate("a test")
        done = await user.answered({asked.pending[0].id: {"confirmed": True}})
        if done.status == "stopped":
            done = await user.resumed(asked.id)
        assert (done.id, done.status) == (asked.id, "finished"), done
        assert (await user.view()).state["wired"] == 7
    assert bank.calls == ["rate", "wire 7 None"]


@pytest.mark.parametrize("moved", ["imported", "terminated", "continued as new"])
async def test_what_ran_beside_it_does_not_run_again(
    client: Client, small_client: Client, app_name: str, bank: Bank, moved: str
) -> None:
    """No event holds its result while the agent waits, so that the journal does."""
    banker = agent("banker", [calls("ask_manager"), text("approved")], [long_running("ask_manager", None)])
    answers = [calls("wire", "banker", amount=7, request="may I?"), *[text("fill")] * 12, text("all is well")]
    root = agent("assistant", answers, [bank.wire, AgentTool(banker)])
    on = small_client if moved == "continued as new" else client
    async with serving(on, make_app(app_name, root)) as user:
        await user.create()
        asked = await user.run("wire 7")
        first = (await user.workflow.describe()).run_id
        match moved:
            case "imported":
                lines = [line async for line in user.runner.export_session(**user.who, journal=True)]
                await user.runner.import_session(lines, session_id="copy", allow_pending_calls=True)
                user = user.other(session_id="copy")
            case "terminated":
                await user.workflow.terminate("a test")
            case _:
                for number in range(12):
                    await user.run(f"m{number}")
                assert (await user.workflow.describe()).run_id != first
        done = await user.answered({asked.pending[0].id: {"approved": True}})
        if done.status == "stopped":
            done = await user.resumed(asked.id)
        assert (done.id, done.status) == (asked.id, "finished"), done
        assert responses(await user.events(), "wire") == [{"wired": 7}]
        assert (await user.view()).state["wired"] == 7
    assert bank.calls == ["wire 7 None"]


async def test_a_deadline_in_it_passes(client: Client, app_name: str) -> None:
    """Also in an app that is not resumable: what a tool's agent asks waits there, too."""

    def ask() -> None:
        """Ask."""

    tool = LongRunningFunctionTool(ask, expires_in=timedelta(seconds=1), on_expiry=AnswerWith({"late": True}))
    model = GatedModel([calls("ask"), text("nobody came")])
    root = agent("assistant", [calls("helper", request="a"), text("done")], [AgentTool(agent("helper", model, [tool]))])
    async with serving(client, make_app(app_name, root, resumable=False)) as user:
        await user.create()
        sent = await user.send("go")
        await user.open("ask")
        await user.logged("assistant: done")
        assert await user.status(sent) == "finished"
    assert "late" in str(model.requests[1].contents)


async def test_a_stop_is_for_it_too(client: Client, app_name: str) -> None:
    gate = Gate()
    helper = agent("helper", [calls("slow"), text("done")], [gate.tool("slow")])
    root = agent("assistant", [calls("helper", request="a"), text("all is well")], [AgentTool(helper)])
    async with serving(client, make_app(app_name, root)) as user:
        await user.create()
        sent = await user.send("go")
        await gate.reached()
        await user.stop(sent)
        assert (await user.settled(sent)).status == "stopped"
        gate.open()
        assert (await user.resumed(sent)).status == "finished"
        assert (await user.log())[-1] == "assistant: all is well"


async def test_its_shared_state_reaches_other_sessions(client: Client, app_name: str) -> None:
    def remember(tool_context: ToolContext) -> str:
        """Remember."""
        tool_context.state["user:name"] = "Ann"
        return "ok"

    helper = agent("helper", [calls("remember"), text("done")], [named(remember, "remember")])
    root = agent("assistant", [calls("helper", request="a"), text("done")], [AgentTool(helper)])
    async with serving(client, make_app(app_name, root)) as user:
        await user.create()
        assert (await user.run("go")).status == "finished"
        other = user.other(session_id="other")

        async def is_there() -> bool:
            return (await read_state(client, app_name, "u")) == {"user:name": "Ann"}

        await eventually(is_there)
        await other.create()
        assert (await other.run("go")).status == "finished"
        assert (await other.view()).state["user:name"] == "Ann"
