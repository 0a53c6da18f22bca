"""Event logs from elsewhere, driven on: ADK's own logs, cut at each turn, and what may and may not run of them."""

from __future__ import annotations

import asyncio
import warnings
from itertools import count
from typing import Any

import pytest
from google.genai import types
from temporalio.client import Client

from perdure.agents import FunctionTool, LoopAgent, SequentialAgent
from perdure.client import Runner
from perdure.errors import DefinitionWarning, InvalidTrajectory, InvocationFailed, SessionExists, SessionNotFound
from perdure.journal.events import USER, Event, EventActions, ToolConfirmation, user_content
from perdure.worker import create_workers
from tests.conformance.build import ScenarioApp
from tests.conformance.logs import all_scenarios, expected_turns
from tests.conformance.normal_form import FAILED, diff, normalize_log
from tests.conformance.scenario import AgentSpec, LlmSpec, Scenario
from tests.workflows.support import (
    Counted,
    GatedModel,
    User,
    agent,
    calls,
    long_running,
    make_app,
    responses,
    serving,
    short,
    text,
)

pytestmark = [
    pytest.mark.server,
    # A worker that ends while a custom agent waits leaves async generators to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

_numbers = count(1)


def _cuts(scenario: Scenario) -> list[int]:
    """Return the turns (from 0) that a bare log can be driven through: those that append something."""
    cuts: list[int] = []
    log: list[dict[str, Any]] = []
    for number, items in enumerate(scenario.expect.turns):
        events = [item for item in items if item != FAILED]
        # A resume has no event of its own: what drives it is the event at which the log breaks off.
        resumes = scenario.turns[number].resume is not None
        drives = bool(events) and (not resumes or (bool(log) and log[-1]["invocation"] == events[0]["invocation"]))
        # Which of a script's failing calls were made is not in a log, so none must be left to come.
        over = FAILED not in items or not any(FAILED in turn for turn in scenario.expect.turns[:number])
        if drives and over:
            cuts.append(number)
        log += events
    return cuts


CASES = {scenario.name: scenario for scenario in all_scenarios()}


def _as_if_failures_were_over(scenario: Scenario, number: int) -> Scenario:
    """Return a scenario without the failing model calls of the turns before a cut: a log does not hold them."""
    failed = sum(FAILED in turn for turn in scenario.expect.turns[:number])

    def mend(agent: AgentSpec) -> AgentSpec:
        update: dict[str, Any] = {"sub_agents": tuple(mend(child) for child in agent.sub_agents)}
        if failed and isinstance(agent, LlmSpec):
            update["script"] = [step for step in agent.script if "error" not in step]
        return agent.model_copy(update=update)

    tools = {
        name: tool.model_copy(update={"fail_first": 0 if failed else tool.fail_first})
        for name, tool in scenario.tools.items()
    }
    app = scenario.app.model_copy(update={"root": mend(scenario.app.root)})
    return scenario.model_copy(update={"app": app, "tools": tools})


@pytest.mark.parametrize("case", CASES)
async def test_a_log_of_adk_goes_on_from_each_turn_as_if_it_had_never_stopped(case: str, client: Client) -> None:
    """The logs are ADK's own (see `source` in the scenarios), and no worker has seen them before."""
    scenario = CASES[case]
    await asyncio.gather(*(_goes_on(scenario, number, client) for number in _cuts(scenario)))


async def _goes_on(scenario: Scenario, number: int, client: Client) -> None:
    built = ScenarioApp(_as_if_failures_were_over(scenario, number), f"resume_from_{next(_numbers)}")
    turns = list(expected_turns(scenario))
    log = [event for turn in turns[:number] for event in turn]
    if scenario.turns[number].resume is None:
        log.append(turns[number][0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DefinitionWarning)
        (worker,) = create_workers(client, [built.app])
    runner = Runner(built.app.name, client)
    async with worker, asyncio.timeout(30):
        resumed = await runner.resume_from(log, user_id="u", state=scenario.state, allow_pending_calls=True)
        who: dict[str, Any] = {"user_id": "u", "session_id": resumed.session_id}
        failed: str | None = None
        try:
            async for _ in runner.follow(**who, invocation_id=resumed.invocation.id, since=resumed.offset):
                pass
        except InvocationFailed as error:
            failed = error.step
        events = [event async for event in runner.events(**who)]
    actual: list[list[Event]] = []
    for turn in turns[:number]:
        actual.append(events[: len(turn)])
        events = events[len(turn) :]
    authors = scenario.authors if scenario.compare == "per_author" else None
    normal = normalize_log([*actual, events], authors)
    expected = [[item for item in turn if item != FAILED] for turn in scenario.expect.turns[: number + 1]]
    assert [line for pair in zip(expected, normal, strict=True) for line in diff(*pair)] == []
    assert failed != "import"
    assert (failed is not None) == (FAILED in scenario.expect.turns[number])


def asked(words: str = "go", invocation: str = "") -> Event:
    return Event(author=USER, invocation_id=invocation, content=user_content(words))


def called(author: str, *names: str, waits: bool = False) -> Event:
    parts = [types.Part(function_call=types.FunctionCall(id=f"c-{name}", name=name, args={})) for name in names]
    ids = frozenset(f"c-{name}" for name in names) if waits else None
    return Event(author=author, content=types.Content(role="model", parts=parts), long_running_tool_ids=ids)


def responded(author: str, name: str, response: dict[str, Any], call_id: str | None = None) -> Event:
    part = types.FunctionResponse(id=call_id or f"c-{name}", name=name, response=response)
    return Event(author=author, content=types.Content(role="user", parts=[types.Part(function_response=part)]))


def confirmation(author: str, name: str) -> Event:
    original: dict[str, Any] = {"id": f"c-{name}", "name": name, "args": {}}
    call = types.FunctionCall(id="k1", name="adk_request_confirmation", args={"originalFunctionCall": original})
    content = types.Content(role="user", parts=[types.Part(function_call=call)])
    return Event(author=author, content=content, long_running_tool_ids=frozenset({"k1"}))


async def driven(user: User, *events: Event, **options: Any) -> tuple[User, str]:
    """Drive a log until its invocation settles; returns the user of the new session and the status."""
    resumed = await user.runner.resume_from(events, user_id="u", **options)
    other = user.other(session_id=resumed.session_id)
    return other, (await other.settled(resumed.invocation.id)).status


async def test_a_given_response_is_what_the_model_reacts_to_and_the_tool_does_not_run(
    client: Client, app_name: str
) -> None:
    tool, model = Counted("charge"), GatedModel([calls("charge"), text("paid")])
    async with serving(client, make_app(app_name, agent("clerk", model, [tool.once]))) as user:
        trigger = responded(USER, "charge", {"receipt": 7})
        session, status = await driven(user, asked(), called("clerk", "charge"), trigger)
        assert status == "finished"
        assert await session.log() == ["user: go", "clerk calls charge", "clerk got charge", "clerk: paid"]
        assert responses(await session.events(), "charge") == [{"receipt": 7}]
        assert tool.keys == []
        shown = model.requests[0].contents[-1].parts or []
        assert [part.function_response and part.function_response.response for part in shown] == [{"receipt": 7}]


async def test_a_log_can_be_handed_in_before_any_worker_serves_the_app(client: Client, app_name: str) -> None:
    user = User(client, app_name)
    resumed = await user.runner.resume_from([asked()], **user.who)
    assert (resumed.invocation.status, resumed.offset) == ("queued", 0)
    async with serving(client, make_app(app_name, agent("clerk", [text("done")]))) as user:
        followed = user.runner.follow(**user.who, invocation_id=resumed.invocation.id, since=resumed.offset)
        assert [event.text async for event in followed if event.text] == ["done"]


async def test_a_models_unanswered_calls_run_if_the_caller_says_so(client: Client, app_name: str) -> None:
    tool = Counted("charge")
    clerk = agent("clerk", [calls("charge"), text("paid")], [tool.once])
    async with serving(client, make_app(app_name, clerk)) as user:
        log = (asked(), called("clerk", "charge"))
        with pytest.raises(InvalidTrajectory, match="allow_pending_calls"):
            await user.runner.resume_from(log, user_id="u", session_id="refused")
        with pytest.raises(SessionNotFound):
            await user.other(session_id="refused").view()
        session, status = await driven(user, *log, allow_pending_calls=True)
        assert status == "finished"
        assert await session.log() == ["user: go", "clerk calls charge", "clerk got charge", "clerk: paid"]
        assert len(tool.keys) == 1


async def test_a_long_running_call_as_the_last_word_runs_and_waits(client: Client, app_name: str) -> None:
    clerk = agent("clerk", [calls("pick"), text("thanks")], [long_running("pick")])
    async with serving(client, make_app(app_name, clerk)) as user:
        log = (asked(), called("clerk", "pick", waits=True))
        session, status = await driven(user, *log, allow_pending_calls=True)
        assert status == "waiting"
        await session.answered({"c-pick": {"flight": "SK 1"}})
        assert (await session.log())[-2:] == ["user answers pick", "clerk: thanks"]


@pytest.mark.parametrize("approved", [True, False])
async def test_the_answer_to_a_confirmation_runs_what_it_confirms(
    client: Client, app_name: str, *, approved: bool
) -> None:
    tool = Counted("wipe")
    clerk = agent("clerk", [calls("wipe"), text("over")], [FunctionTool(tool.fn, require_confirmation=True)])
    async with serving(client, make_app(app_name, clerk)) as user:
        asks = responded("clerk", "wipe", {"error": "This tool call requires confirmation."})
        wanted = EventActions(requested_tool_confirmations={"c-wipe": ToolConfirmation()}, skip_summarization=True)
        asks = asks.model_copy(update={"actions": wanted})
        answer = responded(USER, "adk_request_confirmation", {"confirmed": approved}, "k1")
        past = (asked(), called("clerk", "wipe"), confirmation("clerk", "wipe"), asks)
        session, status = await driven(user, *past, answer)
        assert status == "finished"
        assert len(tool.keys) == int(approved)
        assert (await session.log())[-2:] == ["clerk got wipe", "clerk: over"]


async def test_imported_calls_do_not_run_behind_another_trigger(client: Client, app_name: str) -> None:
    """A failed invocation in the history is resumed later: its calls are data, until somebody allows them."""
    tool = Counted("charge")
    clerk = agent("clerk", [calls("charge"), text("hello"), text("paid")], [tool.once])
    async with serving(client, make_app(app_name, clerk)) as user:
        past = (asked("pay", "i1"), called("clerk", "charge").model_copy(update={"invocation_id": "i1"}))
        session, status = await driven(user, *past, asked("hi", "i2"))
        assert status == "finished"
        view = await session.resumed("i1")
        assert view.status == "failed"
        assert "nobody allowed it to run" in view.failures[0].cause
        session, _ = await driven(user, *past, asked("hi", "i2"), allow_pending_calls=True)
        assert (await session.resumed("i1")).status == "finished"
        assert len(tool.keys) == 1


async def test_an_unknown_author_is_context_and_never_goes_on(client: Client, app_name: str) -> None:
    tool, model = Counted("charge"), GatedModel([text("hello")])
    async with serving(client, make_app(app_name, agent("clerk", model, [tool.once]))) as user:
        stranger = (asked("pay", "i1"), called("stranger", "charge").model_copy(update={"invocation_id": "i1"}))
        session, status = await driven(user, *stranger, asked("hi", "i2"), allow_pending_calls=True)
        assert status == "finished"
        shown = [part.text for content in model.requests[0].contents for part in content.parts or []]
        assert "[stranger] called tool `charge` with parameters: {}" in shown
        view = await session.resumed("i1")
        assert (view.status, view.failures[0].step) == ("failed", "import")
        assert "has no agent of this name" in view.failures[0].cause
        session, status = await driven(user, *stranger, allow_pending_calls=True)
        assert status == "failed"
        assert tool.keys == []


async def test_a_call_of_a_tool_that_is_gone_does_not_run_but_the_model_is_told(client: Client, app_name: str) -> None:
    model = GatedModel([calls("gone"), text("then not")])
    async with serving(client, make_app(app_name, agent("clerk", model))) as user:
        session, status = await driven(user, asked(), called("clerk", "gone"), allow_pending_calls=True)
        assert status == "finished"
        assert "There is no tool 'gone'" in str(responses(await session.events(), "gone"))


async def test_a_log_replaces_another_and_the_old_one_is_kept(client: Client, app_name: str) -> None:
    clerk = agent("clerk", [calls("pick"), text("new")], [long_running("pick")])
    async with serving(client, make_app(app_name, clerk)) as user:
        await user.create(topic="old")
        waiting = await user.run("book")
        before = await user.events()
        with pytest.raises(SessionExists, match="choose another id, or replace"):
            await user.runner.resume_from([asked("hi")], **user.who)
        assert await user.events() == before
        trigger = (asked("a"), called("clerk", "look"), responded("clerk", "look", {}))
        resumed = await user.runner.resume_from([*trigger], **user.who, state={"topic": "new"}, replace=True)
        assert resumed.replaced == "s~replaced-1"
        await user.settled(resumed.invocation.id)
        assert await user.log() == ["user: a", "clerk calls look", "clerk got look", "clerk: new"]
        assert (await user.view()).state == {"topic": "new"}
        # The old one waits as it did.
        kept = user.other(session_id="s~replaced-1")
        assert await kept.events() == before
        assert [call.id for call in (await kept.invocation(waiting.id)).pending] == [waiting.pending[0].id]
        again = await user.runner.resume_from([asked("b")], **user.who, replace=True)
        assert again.replaced == "s~replaced-2"


async def test_a_log_without_checkpoints_is_driven_in_an_app_that_is_not_resumable(
    client: Client, app_name: str
) -> None:
    tool = Counted("charge")
    clerk = agent("clerk", [calls("charge"), text("paid")], [tool.once])
    steps = SequentialAgent(name="steps", sub_agents=[LoopAgent(name="again", sub_agents=[clerk], max_iterations=1)])
    log = (asked(), called("clerk", "charge"))
    async with serving(client, make_app(f"{app_name}_steps", steps, resumable=False)) as user:
        session, status = await driven(user, *log, allow_pending_calls=True)
        assert status == "failed"
        (invocation,) = (await session.view()).invocations
        assert "does not tell where 'again' was" in invocation.failures[0].cause
    clerk = agent("clerk", [calls("charge"), text("paid")], [tool.once])
    async with serving(client, make_app(app_name, clerk, resumable=False)) as user:
        session, status = await driven(user, *log, allow_pending_calls=True)
        assert (status, len(tool.keys)) == ("finished", 1)
        assert await session.log() == ["user: go", "clerk calls charge", "clerk got charge", "clerk: paid"]


async def test_shared_keys_of_a_log_stay_its_own(client: Client, app_name: str) -> None:
    """An import writes nothing that other sessions see, and what the server knows better wins."""
    clerk = agent("clerk", [text("a"), text("b")], instruction="{user:lang?} {app:tone?}")
    async with serving(client, make_app(app_name, clerk)) as user:
        await user.create(**{"user:lang": "en"})
        written = EventActions(state_delta={"user:lang": "de", "app:tone": "warm"})
        answer = Event(
            author="clerk", content=types.Content(role="model", parts=[types.Part(text="hm")]), actions=written
        )
        session, _ = await driven(user, asked(), answer, asked("more"))
        assert (await session.view()).state == {"user:lang": "en", "app:tone": "warm"}
        other = user.other(session_id="other")
        await other.create()
        await other.run("hello")
        assert (await other.view()).state == {"user:lang": "en"}


async def test_what_providers_and_later_versions_add_survives_every_way_that_a_log_takes(
    small_client: Client, app_name: str
) -> None:
    """Journal, continue-as-new (the server suggests it early), export, import: byte for byte."""
    parts = [
        types.Part(text="hm", thought=True),
        types.Part(text="so", thought_signature=bytes(range(256))),
        types.Part(executable_code=types.ExecutableCode(code="1+1", language=types.Language.PYTHON)),
        types.Part(code_execution_result=types.CodeExecutionResult(output="2", outcome=types.Outcome.OUTCOME_OK)),
        types.Part(inline_data=types.Blob(data=bytes(range(255, -1, -1)), mime_type="image/png")),
        types.Part(
            function_call=types.FunctionCall(id="c-old", name="look", args={"a": None}), thought_signature=b"\x00\xff"
        ),
    ]
    answer = Event.model_validate(
        {"author": "clerk", "content": types.Content(role="model", parts=parts), "fromTheFuture": {"a": [None, 1]}}
    )
    rounds = 12
    look = Counted("look")
    model = GatedModel([text("never"), *[calls("look")] * rounds, text("end"), text("end")])
    async with serving(small_client, make_app(app_name, agent("clerk", model, [look.fn]))) as user:
        past = (asked("go", "i1"), answer.model_copy(update={"invocation_id": "i1"}))
        session, status = await driven(user, *past, asked("more", "i2"))
        assert status == "finished"
        started = (await session.workflow.fetch_history()).events[0].workflow_execution_started_event_attributes
        assert started.continued_execution_run_id, "the session never continued as new"
        lines = [line async for line in user.runner.export_session(**session.who, journal=True)]
        await user.runner.import_session(lines, session_id="copy")
        copy = user.other(session_id="copy")
        for one in (session, copy):
            logged = (await one.events())[1]
            assert logged.content == answer.content
            assert (logged.model_extra or {})["fromTheFuture"] == {"a": [None, 1]}
            assert short(logged) == ["clerk: so", "clerk calls look"]
            # What may not run is carried along, too.
            assert (await one.resumed("i1")).status == "failed"
        assert await copy.events() == await session.events()
        assert len(look.keys) == rounds
