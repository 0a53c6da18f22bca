"""What users write: agents, apps, states and contexts, with ADK's names, fields and meaning."""

from __future__ import annotations

import copy
import math
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest
from pydantic import ValidationError
from temporalio.common import RetryPolicy

from perdure.agents.context import ReadonlyContext
from perdure.agents.custom import BaseAgent, BaseAgentState, InvocationContext, SessionSnapshot
from perdure.agents.definitions import (
    Agent,
    App,
    LlmAgent,
    LoopAgent,
    ParallelAgent,
    ResumabilityConfig,
    SequentialAgent,
)
from perdure.errors import DefinitionError
from perdure.journal.events import Event, EventActions, user_content
from perdure.models.scripted import ScriptedModel


class Step(BaseAgentState):
    step: int = 0


class Stepper(BaseAgent):
    """As ADK's guide writes them: sub-agents in fields, an `__init__` that passes them on."""

    first: LlmAgent
    label: str = "plain"

    def __init__(self, name: str, first: LlmAgent) -> None:
        super().__init__(name=name, first=first, sub_agents=[first])  # pyright: ignore[reportCallIssue] -- as in ADK

    async def _run_async_impl(self, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        async for event in self.first.run_async(ctx):
            yield event
        ctx.set_agent_state(self.name, end_of_agent=True)
        yield self._create_agent_state_event(ctx)

    def load(self, ctx: InvocationContext) -> Step | None:
        return self._load_agent_state(ctx, Step)

    def state_event(self, ctx: InvocationContext) -> Event:
        return self._create_agent_state_event(ctx)

    def run(self, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        return self._run_async_impl(ctx)


class Share(BaseAgentState):
    share: float


class Sharer(Stepper):
    def shared(self, ctx: InvocationContext) -> Share | None:
        return self._load_agent_state(ctx, Share)


class Context(InvocationContext):
    """Runs a sub-agent by saying its name."""

    async def run_activity(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    async def run_agent(self, agent: BaseAgent) -> AsyncGenerator[Event, None]:
        yield Event(author=agent.name, content=user_content("hello"))


def llm(name: str, *sub_agents: BaseAgent) -> LlmAgent:
    return LlmAgent(name=name, model=ScriptedModel([]), sub_agents=list(sub_agents))


def context(agent: BaseAgent, state: dict[str, Any] | None = None, events: list[Event] | None = None) -> Context:
    values = {} if state is None else state
    log = [] if events is None else events
    session = SessionSnapshot(app_name="app", user_id="u", id="s", read=lambda: (values, log))
    return Context(invocation_id="e-1", agent=agent, session=session, branch="fan.left")


def test_agent_is_adks_second_name_of_llm_agent() -> None:
    assert Agent is LlmAgent


def test_sub_agents_know_their_parent_and_root() -> None:
    leaf = llm("leaf")
    middle = LoopAgent(name="middle", sub_agents=[leaf], max_iterations=2)
    root = SequentialAgent(name="root", sub_agents=[middle, llm("other")])
    assert leaf.parent_agent is middle
    assert leaf.root_agent is root
    assert root.parent_agent is None


def test_agents_are_found_by_name_in_the_tree() -> None:
    leaf = llm("leaf")
    root = ParallelAgent(name="root", sub_agents=[LoopAgent(name="loop", sub_agents=[leaf])])
    assert root.find_agent("leaf") is leaf
    assert root.find_agent("root") is root
    assert root.find_sub_agent("root") is None
    assert root.find_sub_agent("loop") is leaf.parent_agent
    assert root.find_agent("nobody") is None


def test_an_agent_has_one_parent_only() -> None:
    shared = llm("shared")
    first = llm("first", shared)
    fresh = llm("fresh")
    with pytest.raises(DefinitionError, match=r"'shared' is a sub-agent of 'first' already.*'second'"):
        llm("second", fresh, shared)
    assert shared.parent_agent is first
    assert fresh.parent_agent is None


def test_an_agent_stands_once_among_its_siblings() -> None:
    agent = llm("twice")
    with pytest.raises(DefinitionError, match="'twice' is a sub-agent of 'root' already"):
        llm("root", agent, agent)


def test_agents_are_equal_only_to_themselves() -> None:
    assert llm("a", llm("b")) != llm("a", llm("b"))
    agent = llm("a", llm("b"))
    assert agent in [llm("a", llm("b")), agent]
    assert hash(agent) == hash(agent.find_agent("a"))
    assert repr(agent) == "LlmAgent(name='a')"


def test_a_copy_of_an_agent_keeps_its_fields() -> None:
    stepper = Stepper("stepper", llm("first"))
    twin = copy.copy(stepper)
    assert (twin.name, twin.first, twin.label) == ("stepper", stepper.first, "plain")


# As a caller without a type checker has them.
ANY_LLM: Any = LlmAgent
ANY_LOOP: Any = LoopAgent
ANY_APP: Any = App
ANY_CONFIG: Any = ResumabilityConfig


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ANY_LLM(name="a", instructions="x"), r"'a' has no field 'instructions'; did you mean 'instruction'"),
        (lambda: ANY_LLM(name="a", planner="x"), r"has no field 'planner': ADK does"),
        (lambda: ANY_LLM(name="a", zzz=1), r"has no field 'zzz'; its fields are name, description, sub_agents, model"),
        (lambda: ANY_LLM(), r"LlmAgent needs the field 'name'"),
        (lambda: ANY_LLM(name="a", model=3), r"LlmAgent 'a' cannot take model=3: .* / "),
        (lambda: ANY_LLM(name="a", tools=["search"]), r"cannot take tools=\['search'\]"),
        (lambda: ANY_LLM(name="a", model_retry=3), r"cannot take model_retry=3: .*a RetryPolicy of temporalio.common"),
        (lambda: ANY_LLM(name="a", sub_agents=["b"]), r"LlmAgent 'a' cannot take sub_agents=\['b'\]"),
        (lambda: ANY_LOOP(name="l", max_iterations="x", zzz=1), r"cannot take max_iterations='x'.*; it has no field"),
        (lambda: LlmAgent(name="two words"), r"'two words' is no Python identifier"),
        (lambda: LlmAgent(name="user"), r"no agent can be named 'user'"),
        (lambda: App(name="my:app", root_agent=llm("a")), r"app name 'my:app' is no Python identifier"),
        (lambda: App(name="user", root_agent=llm("a")), r"no app can be named 'user'"),
        (lambda: ANY_APP(name="x", root_agent="a"), r"App 'x' cannot take root_agent='a'"),
        (lambda: ANY_CONFIG(resumable=True), r"has no field 'resumable'; did you mean 'is_resumable'"),
    ],
)
def test_definition_errors_say_what_to_do(make: Callable[[], object], message: str) -> None:
    with pytest.raises(DefinitionError, match=message):
        make()


def test_a_retry_policy_is_kept_as_it_was_given() -> None:
    policy = RetryPolicy(maximum_attempts=3)
    assert LlmAgent(name="a", model_retry=policy).model_retry is policy
    assert App(name="x", root_agent=llm("a"), model_retry=policy).model_retry is policy


def test_an_app_is_resumable_only_if_it_says_so() -> None:
    assert not App(name="x", root_agent=llm("a")).is_resumable
    assert not App(name="x", root_agent=llm("a"), resumability_config=ResumabilityConfig()).is_resumable
    assert App(name="x", root_agent=llm("a"), resumability_config=ResumabilityConfig(is_resumable=True)).is_resumable


def test_a_model_comes_from_the_nearest_llm_agent_above() -> None:
    model = ScriptedModel([])
    leaf = LlmAgent(name="leaf")
    middle = LlmAgent(name="middle", sub_agents=[SequentialAgent(name="seq", sub_agents=[leaf])])
    LlmAgent(name="root", model=model, sub_agents=[middle])
    assert leaf.resolved_model() is model
    with pytest.raises(DefinitionError, match="agent 'alone' has no model"):
        LlmAgent(name="alone").resolved_model()


async def test_a_custom_agent_runs_its_sub_agents_through_the_context() -> None:
    stepper = Stepper("stepper", llm("first"))
    events = [event async for event in stepper.run(context(stepper))]
    assert [event.author for event in events] == ["first", "stepper"]
    assert [event.author async for event in stepper.run_async(context(stepper))] == ["stepper"]


async def test_base_agent_has_nothing_to_run() -> None:
    class Plain(BaseAgent):
        def run(self, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
            return self._run_async_impl(ctx)

    plain = Plain(name="plain")
    assert not plain.has_own_run
    with pytest.raises(NotImplementedError, match="Plain has no _run_async_impl"):
        plain.run(context(plain))


def test_agent_state_is_set_loaded_and_forgotten() -> None:
    """ADK's `set_agent_state`: an end clears the state, a state clears the end, neither clears both."""
    stepper = Stepper("stepper", llm("first"))
    ctx = context(stepper)
    assert stepper.load(ctx) is None
    ctx.set_agent_state("stepper", agent_state=Step(step=2))
    assert stepper.load(ctx) == Step(step=2)
    assert ctx.agent_states == {"stepper": {"step": 2}}
    assert ctx.end_of_agents == {"stepper": False}
    ctx.set_agent_state("stepper", agent_state=Step(step=3), end_of_agent=True)
    assert (ctx.agent_states, ctx.end_of_agents) == ({}, {"stepper": True})
    ctx.set_agent_state("stepper")
    assert (ctx.agent_states, ctx.end_of_agents) == ({}, {})


@pytest.mark.parametrize("share", [0.5, math.inf, -math.inf])
def test_a_number_that_json_has_not_comes_back_into_a_state(share: float) -> None:
    """The journal is JSON, in which infinity would be null, and the agent could not go on."""
    stepper = Sharer("stepper", llm("first"))  # pyright: ignore[reportCallIssue] -- it has its `__init__`
    ctx = context(stepper)
    ctx.set_agent_state("stepper", agent_state=Share(share=share))
    actions = EventActions(agent_state=ctx.agent_states["stepper"])
    logged = EventActions.model_validate_json(actions.model_dump_json(by_alias=True))
    assert logged.agent_state is not None
    ctx.agent_states["stepper"] = logged.agent_state
    assert stepper.shared(ctx) == Share(share=share)


def test_the_state_event_carries_state_or_end_and_stands_on_the_branch() -> None:
    stepper = Stepper("stepper", llm("first"))
    ctx = context(stepper)
    ctx.set_agent_state("stepper", agent_state=Step(step=1))
    event = stepper.state_event(ctx)
    assert (event.author, event.invocation_id, event.branch) == ("stepper", "e-1", "fan.left")
    assert event.actions.model_dump(exclude_none=True, exclude_defaults=True) == {"agent_state": {"step": 1}}
    ctx.set_agent_state("stepper", end_of_agent=True)
    assert stepper.state_event(ctx).actions.model_dump(exclude_defaults=True) == {"end_of_agent": True}


def test_agent_states_take_no_unknown_fields() -> None:
    with pytest.raises(ValidationError):
        Step.model_validate({"stp": 1})


def test_the_session_shows_what_is_logged_since_and_cannot_be_written() -> None:
    state: dict[str, Any] = {"a": [1]}
    log: list[Event] = []
    ctx = context(llm("a"), state, log)
    assert (ctx.app_name, ctx.user_id, ctx.session.id) == ("app", "u", "s")
    log.append(Event(author="user"))
    state["b"] = 2
    assert [event.author for event in ctx.session.events] == ["user"]
    assert dict(ctx.session.state) == {"a": [1], "b": 2}
    ctx.session.state["a"].append(2)
    assert state["a"] == [1]
    with pytest.raises(TypeError, match=r"read-only here; yield an Event.*state_delta"):
        ctx.session.state["c"] = 3  # pyright: ignore[reportIndexIssue] -- that is the point
    assert "c" not in state


def test_an_instruction_function_reads_state_and_cannot_write_it() -> None:
    ctx = ReadonlyContext(
        agent_name="a", invocation_id="e-1", app_name="app", user_id="u", session_id="s", state={"k": 1}
    )
    assert (ctx.state["k"], len(ctx.state), repr(ctx.state)) == (1, 1, "ReadonlyState({'k': 1})")
    with pytest.raises(TypeError, match="write it in a tool"):
        ctx.state.update(k=2)  # pyright: ignore -- that is the point
