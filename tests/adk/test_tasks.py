"""Agents that do tasks for others, google.adk 2's modes: each logs what google.adk itself does."""

# google.adk 2 calls its composite agents deprecated; apps are made of them.
# pyright: reportDeprecated=false

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
from google.adk.agents import BaseAgent, LlmAgent, SequentialAgent
from google.adk.agents.callback_context import CallbackContext
from google.adk.apps.app import App, ResumabilityConfig
from google.adk.models.llm_request import LlmRequest
from google.adk.runners import InMemoryRunner
from google.adk.tools import FunctionTool, LongRunningFunctionTool
from google.genai import types
from pydantic import BaseModel
from temporalio.client import Client

from perdure.adk.compile import compile_adk_app
from perdure.adk.internals import MAJOR
from perdure.adk.trees import walk
from perdure.client import Runner
from perdure.errors import DefinitionError
from perdure.journal.fold import fold_journal
from perdure.messages.keys import SessionKey
from perdure.messages.session import Trial
from perdure.recovery.salvage import salvage
from perdure.views.explanation import explain_session
from tests.adk.support import Script, agent, call, make_app, say
from tests.workflows.support import User, responses, serving

if MAJOR < 2:
    pytest.skip("google.adk 1 has no agents with a mode", allow_module_level=True)

from google.adk import Workflow

pytestmark = pytest.mark.server

_TRIALS = {
    "live": None,
    "entered again at each pause": Trial(reenter=True),
    "a run for each step": Trial(steps_per_run=1, reenter=True),
}

_DONE = call("finish_task", result="ok")


class Booking(BaseModel):
    day: str
    people: int


class Topic(BaseModel):
    topic: str


class Calls(list[str]):
    """What ran: tools, and callbacks around agents."""


Build = Callable[[Calls], LlmAgent]


def _noted(calls: Calls, name: str) -> dict[str, Any]:
    def note(when: str) -> Callable[[CallbackContext], None]:
        def callback(callback_context: CallbackContext) -> None:
            calls.append(f"{when} {callback_context.agent_name}")

        return callback

    return {"name": name, "before_agent_callback": note("before"), "after_agent_callback": note("after")}


def _agent(calls: Calls, name: str, *answers: list[types.Part], **options: Any) -> LlmAgent:
    return LlmAgent(model=Script(*answers), **_noted(calls, name), **options)


def _booker(calls: Calls, *answers: list[types.Part]) -> LlmAgent:
    def reserve(day: str, people: int) -> dict[str, int]:
        """Reserve a table."""
        calls.append("reserve")
        return {"table": people}

    return _agent(calls, "booker", *answers, mode="task", output_schema=Booking, tools=[reserve], output_key="booked")


_BOOK = call("booker", request="a table")
_BOOKED = call("finish_task", day="Friday", people=2)


def talks(calls: Calls) -> LlmAgent:
    booker = _booker(calls, say("How many?"), say("When?"), call("reserve", day="Friday", people=2), _BOOKED)
    return _agent(calls, "desk", _BOOK, say("Booked."), say("Bye."), sub_agents=[booker])


def corrects(calls: Calls) -> LlmAgent:
    booker = _booker(calls, call("finish_task", day="Friday"), say("How many?"), _BOOKED)
    return _agent(calls, "desk", _BOOK, say("Booked."), say("Bye."), say("Bye."), sub_agents=[booker])


def beside_a_tool(calls: Calls) -> LlmAgent:
    def look() -> str:
        """Look."""
        calls.append("look")
        return "seen"

    booker = _booker(calls, say("How many?"), _BOOKED)
    answers = [*call("look"), *_BOOK], say("Booked."), say("Bye."), say("Bye.")
    return _agent(calls, "desk", *answers, sub_agents=[booker], tools=[FunctionTool(look)])


def beside_a_transfer(calls: Calls) -> LlmAgent:
    counter = _agent(calls, "counter", say("Here."), say("Bye."), say("Bye."))
    answers = [*call("transfer_to_agent", agent_name="counter"), *_BOOK], say("Bye."), say("Bye.")
    return _agent(calls, "desk", *answers, sub_agents=[_booker(calls, say("How many?"), _BOOKED), counter])


def two_at_once(calls: Calls) -> LlmAgent:
    waiter = _agent(calls, "waiter", say("Wine?"), _DONE, mode="task", output_key="drink")
    answers = [*_BOOK, *call("waiter", request="drinks")], say("Booked."), say("Bye.")
    return _agent(calls, "desk", *answers, sub_agents=[_booker(calls, say("How many?"), _BOOKED), waiter])


def within_a_task(calls: Calls) -> LlmAgent:
    helper = _agent(calls, "helper", say("Which?"), call("finish_task", result="blue"), mode="task")
    booker = _agent(calls, "booker", call("helper", request="x"), say("More?"), _DONE, mode="task", sub_agents=[helper])
    return _agent(calls, "desk", _BOOK, say("Booked."), sub_agents=[booker])


def too_early(calls: Calls) -> LlmAgent:
    helper = _agent(calls, "helper", call("finish_task", result="blue"), mode="task")
    answers = [*call("helper", request="x"), *call("finish_task", result="early")], _DONE
    booker = _agent(calls, "booker", *answers, mode="task", sub_agents=[helper])
    return _agent(calls, "desk", _BOOK, say("Booked."), say("Bye."), say("Bye."), say("Bye."), sub_agents=[booker])


def single_turns(calls: Calls) -> LlmAgent:
    adviser = _agent(
        calls,
        "adviser",
        *(say("fish"), say("meat"), say("soup")),
        mode="single_turn",
        input_schema=Topic,
        output_key="advice",
    )
    answers = call("adviser", topic="food"), call("adviser", topic="more"), call("adviser", nothing=1), say("There.")
    return _agent(calls, "desk", *answers, say("Bye."), say("Bye."), sub_agents=[adviser])


def with_schemas(calls: Calls) -> LlmAgent:
    adviser = _agent(calls, "adviser", say('{"day": "Friday", "people": 2}'), mode="single_turn", output_schema=Booking)
    answers = call("adviser", request="food"), say("There."), say("Bye."), say("Bye.")
    return _agent(calls, "desk", *answers, sub_agents=[adviser])


def root_alone(calls: Calls) -> LlmAgent:
    return _agent(calls, "root", say("How many?"), say("When?"), _DONE, mode="task", output_key="result")


_APPS: list[Build] = [
    *(talks, corrects, beside_a_tool, two_at_once, within_a_task, too_early, single_turns, with_schemas, root_alone),
]
_TURNS = ["table", "two", "bye"]


def _models(root: BaseAgent) -> Iterator[Script]:
    for one in walk(root):
        if isinstance(one, LlmAgent):
            assert isinstance(one.model, Script)
            yield one.model


def _asked(root: BaseAgent) -> list[str]:
    """Return what each agent's model was asked, with its tools."""
    return [
        json.dumps([str(cast(Any, request.config).system_instruction), sorted(request.tools_dict), *_contents(request)])
        for model in _models(root)
        for request in model.requests
    ]


def _contents(request: LlmRequest) -> list[Any]:
    contents = [content.model_dump(mode="json", exclude_none=True) for content in request.contents]
    for part in (part for content in contents for part in content.get("parts", [])):
        for name in ("function_call", "function_response"):
            part.get(name, {}).pop("id", None)
    return contents


async def _by_adk(root: BaseAgent, turns: list[str], *, resumable: bool) -> tuple[list[str], list[str]]:
    """Return what google.adk itself logs, and what its models are asked."""
    config = ResumabilityConfig(is_resumable=True) if resumable else None
    runner = InMemoryRunner(app=App(name="shop", root_agent=root, resumability_config=config))
    session = await runner.session_service.create_session(app_name="shop", user_id="u", session_id="s")
    for text in turns:
        message = types.Content(role="user", parts=[types.Part(text=text)])
        async for _ in runner.run_async(user_id="u", session_id=session.id, new_message=message):
            pass
    kept = await runner.session_service.get_session(app_name="shop", user_id="u", session_id="s")
    assert kept is not None
    logged = [event.model_dump(mode="json", by_alias=True, exclude_none=True) for event in kept.events]
    return _shown(logged), _asked(root)


async def _logged(user: User) -> list[str]:
    events = await user.events()
    return _shown([event.model_dump(mode="json", by_alias=True, exclude_none=True) for event in events])


_COUNTS = ("author", "invocationId", "content", "output", "branch", "nodeInfo", "errorCode", "isolationScope")


def _shown(events: list[dict[str, Any]]) -> list[str]:
    """Return what counts of events, each id as which of them it is."""
    names: dict[str, str] = {}
    told: list[str] = []
    for event in events:
        kept = {key: value for key, value in event.items() if key in _COUNTS}
        kept |= {name: value for name in ("stateDelta", "endOfAgent") if (value := event.get("actions", {}).get(name))}
        text = json.dumps(kept, sort_keys=True)
        for found in re.findall(r"(?:adk-|e-|fc-)[0-9a-f-]{10,}", text):
            names.setdefault(found, f"#{len(names)}")
        for found, name in names.items():
            text = text.replace(found, name)
        told.append(text)
    return told


async def _by_perdure(client: Client, app: str, root: LlmAgent, trial: Trial | None) -> list[str]:
    async with serving(client, make_app(app, root)) as user:
        user.runner = Runner(app, client, trial=trial)
        await user.create()
        for text in _TURNS:
            view = await user.run(text)
            assert view.status in ("finished", "waiting"), view.failures
        return await _logged(user)


@pytest.mark.parametrize("trial", _TRIALS.values(), ids=_TRIALS)
@pytest.mark.parametrize("build", _APPS, ids=lambda build: build.__name__)
async def test_an_agent_does_a_task_as_by_google_adk(
    client: Client, app_name: str, build: Build, trial: Trial | None
) -> None:
    by_itself, calls = Calls(), Calls()
    truth, asked = await _by_adk(build(by_itself), _TURNS, resumable=False)
    root = build(calls)
    assert await _by_perdure(client, app_name, root, trial) == truth
    assert calls == by_itself
    if build is not root_alone:
        # google.adk shows it its second message in the first one's place.
        assert _asked(root) == asked


@pytest.mark.parametrize("trial", _TRIALS.values(), ids=_TRIALS)
async def test_control_is_handed_over_once_a_task_is_done(client: Client, app_name: str, trial: Trial | None) -> None:
    """The callback before the agent, which google.adk runs again by then, is run once."""
    calls = Calls()
    truth, asked = await _by_adk(beside_a_transfer(Calls()), _TURNS, resumable=False)
    root = beside_a_transfer(calls)
    assert await _by_perdure(client, app_name, root, trial) == truth
    assert _asked(root) == asked
    assert calls.count("before desk") == 1


@pytest.mark.parametrize("build", [talks, two_at_once, single_turns, root_alone], ids=lambda build: build.__name__)
async def test_a_resumable_app_logs_the_ends_of_its_agents_too(client: Client, app_name: str, build: Build) -> None:
    truth, _ = await _by_adk(build(Calls()), _TURNS, resumable=True)
    async with serving(client, make_app(app_name, build(Calls()), resumable=True)) as user:
        await user.create()
        for text in _TURNS:
            await user.run(text)
        assert await _logged(user) == truth


@pytest.mark.parametrize("mode", ["task", "single_turn"])
@pytest.mark.parametrize("trial", _TRIALS.values(), ids=_TRIALS)
async def test_an_agent_waits_for_a_person_within_its_task(
    client: Client, app_name: str, mode: str, trial: Trial | None
) -> None:
    ran: list[str] = []

    def ask() -> None:
        """Ask a person."""

    def work() -> str:
        """Work."""
        ran.append("work")
        return "done"

    last = _DONE if mode == "task" else say("ok")
    answers = call("work"), call("ask"), last
    clerk = agent("clerk", *answers, mode=mode, tools=[work, LongRunningFunctionTool(ask)])
    desk = agent("desk", call("clerk", request="x"), say("Done."), sub_agents=[clerk])
    app = make_app(app_name, desk)
    async with serving(client, app) as user:
        user.runner = Runner(app_name, client, trial=trial)
        await user.create()
        view = await user.run("go")
        (asked,) = view.pending
        assert (view.status, asked.agent, asked.name) == ("waiting", "clerk", "ask")
    async with serving(client, app) as user:
        done = await user.answered({asked.id: {"yes": True}})
        assert (done.status, done.id) == ("finished", view.id)
        assert (await user.log())[-1] == "desk: Done."
    assert ran == ["work"]


async def test_it_says_who_waits_for_the_next_message(client: Client, app_name: str) -> None:
    async with serving(client, make_app(app_name, talks(Calls()))) as user:
        await user.create()
        view = await user.run("table")
        assert (view.status, view.pending) == ("waiting", ())
        assert view.reason == "agent 'booker' waits for the user's next message"
        told = explain_session(await user.journal(), SessionKey(app_name, "u", "s"))
        (invocation,) = told.invocations
        assert invocation.resume.why == "it waits, and only the user's next message moves it on"
        step = invocation.resume.step
        assert step is not None
        assert (step.agent, step.words) == ("desk", "has given booker a task")
        assert [below.words for below in step.below] == ["does a task, and waits for the user's next message"]


async def test_a_task_that_was_stopped_is_over(client: Client, app_name: str) -> None:
    async with serving(client, make_app(app_name, talks(Calls()))) as user:
        await user.create()
        first = await user.run("table")
        await user.stop(first.id)
        second = await user.run("hello")
        assert second.id != first.id
        assert (await user.log())[-1] == "desk: Booked."


async def test_a_task_that_failed_goes_on_with_the_next_message_or_a_resume(client: Client, app_name: str) -> None:
    model = Script()
    booker = LlmAgent(name="booker", model=model, mode="task")
    desk = agent("desk", _BOOK, say("Booked."), sub_agents=[booker])
    async with serving(client, make_app(app_name, desk)) as user:
        await user.create()
        first = await user.run("table")
        assert first.status == "failed"
        model.answers.append(say("How many?"))
        second = await user.run("please")
        assert (second.id, second.status) == (first.id, "waiting")
        third = await user.run("two")
        assert third.status == "failed"
        model.answers.append(_DONE)
        fourth = await user.resumed(first.id)
        assert fourth.status == "finished", fourth.failures
        assert (await user.log())[-1] == "desk: Booked."
        said = [event.text for event in await user.events() if event.is_users]
        assert said == ["table", "please", "two"]


@pytest.mark.parametrize("trial", _TRIALS.values(), ids=_TRIALS)
async def test_a_task_without_a_result_ends(client: Client, app_name: str, trial: Trial | None) -> None:
    """google.adk itself tells the agent that its task is completed, and asks it once more with the next message."""
    finish = call("finish_task", result=None)
    asker = LlmAgent(name="asker", model=Script(finish), mode="task", output_schema=cast(Any, str | None))
    desk = agent("desk", call("asker", request="ask"), say("None."), sub_agents=[asker])
    async with serving(client, make_app(app_name, desk)) as user:
        user.runner = Runner(app_name, client, trial=trial)
        await user.create()
        view = await user.run("go")
        assert view.status == "finished", view.failures
        assert responses(await user.events(), "asker") == [{"output": None}]
        assert (await user.log())[-1] == "desk: None."


async def test_what_fails_of_an_agent_for_a_single_turn_its_giver_is_told(client: Client, app_name: str) -> None:
    adviser = agent("adviser", mode="single_turn")
    desk = agent("desk", call("adviser", request="x"), say("Sorry."), sub_agents=[adviser])
    async with serving(client, make_app(app_name, desk)) as user:
        await user.create()
        view = await user.run("go")
        assert view.status == "finished", view.failures
        (told,) = responses(await user.events(), "adviser")
        assert told == {"result": "Error running sub-agent: Dynamic node adviser failed"}


async def test_a_message_waits_until_the_agent_of_the_task_listens(client: Client, app_name: str) -> None:
    """One that comes while it works is for it; one that it does not hear any more begins an invocation."""
    working, go = threading.Event(), threading.Event()

    async def reserve() -> str:
        """Reserve."""
        working.set()
        await asyncio.to_thread(go.wait, 30)
        return "done"

    booker = agent("booker", call("reserve"), say("How many?"), _DONE, mode="task", tools=[reserve])
    desk = agent("desk", _BOOK, say("Booked."), say("Hello again."), sub_agents=[booker])
    async with serving(client, make_app(app_name, desk)) as user:
        await user.create()
        first = await user.send("table")
        await asyncio.to_thread(working.wait, 30)
        second = await user.send("two")
        third = await user.send("hello?")
        assert first == second == third
        go.set()
        await user.logged("desk: Hello again.")
        assert await user.log() == [
            "user: table",
            "desk calls booker",
            "booker calls reserve",
            "booker got reserve",
            "booker: How many?",
            "user: two",
            "booker calls finish_task",
            "booker got finish_task",
            "user answers booker",
            "desk: Booked.",
            "user: hello?",
            "desk: Hello again.",
        ]


async def test_a_node_of_a_graph_does_a_task(client: Client, app_name: str) -> None:
    def begin(node_input: str) -> str:
        return f"begin {node_input}"

    def end(node_input: dict[str, Any]) -> str:
        return f"end {node_input['result']}"

    def build() -> Workflow:
        clerk = agent("clerk", say("Which?"), call("finish_task", result="blue"), mode="task")
        return Workflow(name="flow", edges=[("START", begin, clerk, end)])

    truth, _ = await _by_adk(cast(Any, build()), ["go", "that"], resumable=False)
    async with serving(client, make_app(app_name, cast(Any, build()))) as user:
        await user.create()
        first = await user.run("go")
        assert (first.status, first.reason) == ("waiting", "agent 'clerk' waits for the user's next message")
    async with serving(client, make_app(app_name, cast(Any, build()))) as user:
        # Its model begins at the top of its script.
        second = await user.run("that")
        third = await user.run("that")
        assert (first.id, third.status) == (second.id, "finished"), third.failures
        assert (await user.events())[-1].output == "end blue"
    assert truth[-1].count("end blue") == 1


async def test_a_journal_that_was_rebuilt_knows_the_open_task(client: Client, app_name: str) -> None:
    app = make_app(app_name, talks(Calls()))
    async with serving(client, app) as user:
        await user.create()
        await user.run("table")
        await user.run("two")
        projection = await user.journal()
        (history,) = await user.histories()
        rebuilt = fold_journal(salvage(history.events))
    assert rebuilt.open_task() == projection.open_task()
    assert rebuilt.open_task() is not None
    told = [(event.author, event.text, event.isolation_scope) for event in projection.events]
    assert [(event.author, event.text, event.isolation_scope) for event in rebuilt.events] == told


_MISPLACED: dict[str, Callable[[], BaseAgent]] = {
    "mode='single_turn' is none for an app's root": lambda: agent("one", mode="single_turn"),
    "only an LlmAgent gives tasks to its sub-agents": lambda: SequentialAgent(
        name="all", sub_agents=[agent("one", mode="task")]
    ),
    "mode='task': only an LlmAgent gives": lambda: SequentialAgent(
        name="all", sub_agents=[agent("desk", sub_agents=[agent("one", mode="task")])]
    ),
}


@pytest.mark.parametrize("reason", _MISPLACED)
def test_what_google_adk_does_not_run_there_is_refused_by_name(reason: str) -> None:
    with pytest.raises(DefinitionError, match=re.escape(reason)):
        compile_adk_app(make_app("shop", _MISPLACED[reason]()))
