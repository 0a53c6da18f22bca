"""`max_llm_calls`: a runaway waits, and goes on by a resume; counted from the journal, whatever happens between."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import pytest
from google.genai import types
from temporalio.client import Client

from perdure.agents import App, ParallelAgent, ResumabilityConfig, SequentialAgent
from perdure.agents.custom import BaseAgent
from perdure.client import Runner
from perdure.errors import InvalidMessage
from perdure.journal.entries import ModelCalled
from perdure.messages.session import Trial
from perdure.models.base import BaseLlm, LlmRequest, LlmResponse
from perdure.rules.model_calls import LIMIT
from tests.workflows.custom_agents import Gatherer
from tests.workflows.support import Counted, User, agent, calls, long_running, serving, text

pytestmark = pytest.mark.server


class Runaway(BaseLlm):
    """Always calls a tool, or hands over to another agent."""

    def __init__(self, tool: str = "look", **args: Any) -> None:
        super().__init__("runaway")
        self.asked = 0
        self._call = types.FunctionCall(name=tool, args=args)

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        self.asked += 1
        yield LlmResponse(content=types.Content(role="model", parts=[types.Part(function_call=self._call)]))


def app_of(name: str, root: BaseAgent, most: int, *, resumable: bool = True) -> App:
    config = ResumabilityConfig(is_resumable=resumable)
    return App(name=name, root_agent=root, resumability_config=config, max_llm_calls=most)


def looking(name: str, model: BaseLlm, **fields: Any) -> BaseAgent:
    return agent(name, model, [Counted("look").fn], **fields)


@pytest.mark.parametrize("cached", [100, 0])
async def test_a_runaway_waits_with_its_reason_and_goes_on_by_a_resume(
    client: Client, app_name: str, cached: int
) -> None:
    """A resume lets as many again be made, or as many as it says."""
    model = Runaway()
    async with serving(client, app_of(app_name, looking("clerk", model), 4), cached=cached) as user:
        await user.create()
        waiting = await user.run("go")
        assert (waiting.status, waiting.pending, waiting.resumable, model.asked) == ("waiting", (), True, 4)
        assert "agent 'clerk' would make one model call more than max_llm_calls lets it" in str(waiting.reason)
        assert "may make 4" in str(waiting.reason)
        assert (await user.view()).status == "waiting"
        explained = (await user.runner.explain(**user.who)).invocations[0]
        assert (explained.reason, explained.resume.verdict) == (waiting.reason, "runs on")
        assert (await user.resumed(waiting.id)).status == "waiting"
        assert model.asked == 8
        await user.runner.resume(**user.who, invocation_id=waiting.id, max_llm_calls=2)
        assert "may make 2" in str((await user.settled(waiting.id)).reason)
        assert model.asked == 10
        # Its own number is the resume's only.
        assert (await user.resumed(waiting.id)).status == "waiting"
        assert model.asked == 14
        assert (await user.stop(waiting.id)).status == "stopped"
        assert (await user.resumed(waiting.id)).status == "waiting"
        assert model.asked == 18


@pytest.mark.parametrize(("app", "sent", "made"), [(500, 3, 3), (2, 5, 5), (3, None, 3), (0, 7, 7), (-1, 2, 2)])
async def test_a_message_may_allow_more_or_fewer_than_its_app(
    client: Client, app_name: str, app: int, sent: int | None, made: int
) -> None:
    model = Runaway()
    async with serving(client, app_of(app_name, looking("clerk", model), app)) as user:
        await user.create()
        assert (await user.run("go", max_llm_calls=sent)).status == "waiting"
        assert model.asked == made
        for wrong in ("5", 1.5, True, 2**40):
            with pytest.raises(InvalidMessage, match="max_llm_calls"):
                await user.send("go", max_llm_calls=wrong)


@pytest.mark.parametrize("limit", [0, -1, 5])
async def test_what_ends_within_its_limit_waits_for_nobody(client: Client, app_name: str, limit: int) -> None:
    script = [*[calls("look")] * 4, text("Done.")]
    root = agent("clerk", script, [Counted("look").fn])
    async with serving(client, app_of(app_name, root, limit)) as user:
        await user.create()
        assert (await user.run("go")).status == "finished"


SHAPES = ["parallel", "sequence", "gathered", "hand over", "own limit"]


def shape(kind: str, model: BaseLlm) -> BaseAgent:
    """Return agents that call one model without an end."""
    match kind:
        case "parallel":
            return ParallelAgent(name="root", sub_agents=[looking(name, model) for name in "abc"])
        case "sequence":
            first = agent("first", [calls("look"), text("Begun.")], [Counted("look").fn])
            return SequentialAgent(name="root", sub_agents=[first, looking("second", model)])
        case "gathered":
            return Gatherer(name="root", sub_agents=[looking("a", model)])
        case "hand over":
            below = looking("below", model)
            return agent("root", [calls("transfer_to_agent", agent_name="below")], sub_agents=[below])
        case _:
            free = agent("free", [calls("look"), text("Free.")], [Counted("look").fn])
            return ParallelAgent(name="root", sub_agents=[looking("bound", model, max_llm_calls=3), free])


async def made(user: User) -> dict[str, int]:
    """Return the model calls that the journal holds, by agent."""
    found: dict[str, int] = {}
    for entry in (await user.journal()).entries:
        if isinstance(entry, ModelCalled):
            found[entry.agent] = found.get(entry.agent, 0) + 1
    return found


@pytest.mark.parametrize("kind", SHAPES)
@pytest.mark.parametrize("trial", [None, Trial(steps_per_run=2), Trial(reenter=True)], ids=["live", "runs", "reenter"])
async def test_all_agents_of_an_invocation_count_together(
    client: Client, app_name: str, kind: str, trial: Trial | None
) -> None:
    """Over continue-as-new and re-entry, and branches that call at the same time never make one more."""
    root = shape(kind, Runaway())
    app = app_of(app_name, root, 7)
    if kind == "gathered":
        from tests.workflows.test_custom_agents import app_of as with_activities

        app = with_activities(app_name, root).model_copy(update={"max_llm_calls": 7})
    async with serving(client, app) as user:
        user.runner = Runner(app_name, client, trial=trial)
        await user.create()
        waiting = await user.run("go")
        assert waiting.status == "waiting", waiting
        first = await made(user)
        assert (await user.resumed(waiting.id)).status == "waiting"
        second = await made(user)
        if kind == "own limit":
            assert (first["bound"], second["bound"], second["free"]) == (3, 6, 2)
        else:
            assert (sum(first.values()), sum(second.values())) == (7, 14)


async def test_an_answer_counts_on(client: Client, app_name: str) -> None:
    """What a webhook answers by itself must not keep a runaway alive."""
    model = Runaway("ask")
    root = agent("clerk", model, [long_running("ask")])
    async with serving(client, app_of(app_name, root, 3)) as user:
        await user.create()
        view = await user.run("go")
        for _ in range(3):
            assert not view.resumable
            view = await user.answered({view.pending[0].id: {}})
        assert (view.status, view.pending, view.resumable, model.asked) == ("waiting", (), True, 3)


async def test_a_branch_at_its_limit_lets_others_wait_for_answers(client: Client, app_name: str) -> None:
    bound = looking("bound", Runaway(), max_llm_calls=2)
    asking = agent("asking", [calls("ask"), text("Heard."), text("Again.")], [long_running("ask")])
    async with serving(client, app_of(app_name, ParallelAgent(name="root", sub_agents=[bound, asking]), 50)) as user:
        await user.create()
        view = await user.run("go")
        assert (view.status, len(view.pending), view.resumable) == ("waiting", 1, True)
        view = await user.answered({view.pending[0].id: {}})
        assert (view.status, view.pending, view.resumable) == ("waiting", (), True)
        assert "asking: Heard." in await user.log()
        # A new message has a count of its own.
        assert (await user.run("again")).status == "waiting"
        assert (await made(user))["bound"] == 4


async def test_an_app_that_is_not_resumable_fails_with_the_reason(client: Client, app_name: str) -> None:
    model = Runaway()
    async with serving(client, app_of(app_name, looking("clerk", model), 3, resumable=False)) as user:
        await user.create()
        failed = await user.run("go")
        assert (failed.status, failed.failures[0].step, model.asked) == ("failed", "model", 3)
        assert "max_llm_calls" in failed.failures[0].cause
        assert "not resumable" in failed.failures[0].cause
        assert (await user.run("again")).status == "failed"
        assert model.asked == 6


async def test_a_limit_holds_in_a_session_that_was_brought_back_or_imported(client: Client, app_name: str) -> None:
    model = Runaway()
    async with serving(client, app_of(app_name, looking("clerk", model), 3)) as user:
        await user.create()
        waiting = await user.run("go", max_llm_calls=5)
        await user.workflow.terminate("gone")
        assert (await user.resumed(waiting.id)).status == "waiting"
        assert model.asked == 10
        assert (await user.runner.list_sessions())[0].pending_tools in ((LIMIT,), None)
