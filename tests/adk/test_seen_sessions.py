"""What callbacks, plugins, tools and custom agents see of a growing session: what ADK's own runner shows them."""

# google.adk 2 calls its composite agents deprecated; apps are made of them.
# pyright: reportDeprecated=false

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest
from google.adk.agents import BaseAgent, LoopAgent, SequentialAgent
from google.adk.agents.invocation_context import InvocationContext
from google.adk.apps.app import App
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.runners import InMemoryRunner
from google.adk.sessions.session import Session
from google.adk.tools import ToolContext
from google.adk.tools.agent_tool import AgentTool
from google.genai import types
from temporalio.client import Client

from perdure.adk.events import AdkEvents
from perdure.journal.events import Event as LoggedEvent
from tests.adk.support import agent, call, make_app, say
from tests.workflows.support import serving

pytestmark = [
    pytest.mark.server,
    # google.adk's own, of what its `AgentTool` does.
    pytest.mark.filterwarnings("ignore:The `plugins` argument is deprecated:DeprecationWarning"),
]

Seen = list[tuple[str, list[str], dict[str, Any]]]


class Watch(BasePlugin):
    """Keeps what each hook sees of the session, in order."""

    def __init__(self) -> None:
        super().__init__(name="watch")
        self.seen: Seen = []

    def note(self, hook: str, session: Session) -> None:
        self.seen.append((hook, [_short(event) for event in session.events], dict(session.state)))

    async def on_user_message_callback(
        self, *, invocation_context: InvocationContext, user_message: types.Content
    ) -> types.Content:
        self.note("message", invocation_context.session)
        return types.Content(role="user", parts=[types.Part(text=f"{(user_message.parts or [])[0].text}!")])

    async def before_run_callback(self, *, invocation_context: InvocationContext) -> None:
        self.note("before_run", invocation_context.session)

    async def after_run_callback(self, *, invocation_context: InvocationContext) -> None:
        self.note("after_run", invocation_context.session)

    async def before_agent_callback(self, *, agent: BaseAgent, callback_context: Any) -> None:
        self.note(f"before {agent.name}", callback_context.session)

    async def after_agent_callback(self, *, agent: BaseAgent, callback_context: Any) -> None:
        self.note(f"after {agent.name}", callback_context.session)

    async def before_model_callback(self, *, callback_context: Any, llm_request: Any) -> None:
        self.note(f"model of {callback_context.agent_name}", callback_context.session)

    async def before_tool_callback(self, *, tool: Any, tool_args: Any, tool_context: ToolContext) -> None:
        self.note(f"tool {tool.name}", tool_context.session)


def _short(event: Event) -> str:
    parts = (event.content.parts if event.content else None) or []
    said = [
        part.text or (part.function_call and part.function_call.name) or (part.function_response and "response") or "?"
        for part in parts
    ]
    return f"{event.author}: {', '.join(map(str, said))} {sorted(event.actions.state_delta)}"


class Looks(BaseAgent):
    """Looks at the session behind each event that it yields on."""

    async def _run_async_impl(self, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        counts: list[int] = []
        for sub_agent in self.sub_agents:
            async for event in sub_agent.run_async(ctx):
                yield event
                counts.append(len(ctx.session.events))
        delta = EventActions(state_delta={"counts": counts, "count": len(ctx.session.events)})
        yield Event(author=self.name, invocation_id=ctx.invocation_id, actions=delta)


def look(what: str, tool_context: ToolContext) -> dict[str, str]:
    """Look something up."""
    tool_context.state["looked"] = what
    return {"found": what}


def _writer(name: str, **options: Any) -> BaseAgent:
    def began(callback_context: Any) -> None:
        callback_context.state[f"{name}_began"] = True

    answers = [call("look", what="a"), say(f"{name} is done")] * 2
    return agent(name, *answers, tools=[look], output_key=name, before_agent_callback=began, **options)


def _asks(inner: BaseAgent) -> BaseAgent:
    return agent("root", call(inner.name, request="go"), say("all is done"), tools=[AgentTool(inner)])


TREES: dict[str, Callable[[], BaseAgent]] = {
    "an agent": lambda: _writer("root"),
    "a sequence": lambda: SequentialAgent(name="root", sub_agents=[_writer("one"), _writer("two")]),
    "a loop": lambda: LoopAgent(name="root", sub_agents=[_writer("one")], max_iterations=2),
    "a tool's agent": lambda: _asks(_writer("inner")),
    "a tool's sequence": lambda: _asks(SequentialAgent(name="both", sub_agents=[_writer("one"), _writer("two")])),
    "a custom agent": lambda: Looks(name="root", sub_agents=[_writer("one"), _writer("two")]),
    "a custom agent in a sequence": lambda: SequentialAgent(
        name="root", sub_agents=[Looks(name="looks", sub_agents=[_writer("one")]), _writer("two")]
    ),
    "a tool's custom agent": lambda: _asks(Looks(name="looks", sub_agents=[_writer("one")])),
    "a custom agent within another": lambda: Looks(
        name="root", sub_agents=[Looks(name="looks", sub_agents=[_writer("one")]), _writer("two")]
    ),
}


async def as_adk(root: BaseAgent) -> Seen:
    """Return what ADK's own runner shows."""
    watch = Watch()
    runner = InMemoryRunner(app=App(name="shop", root_agent=root, plugins=[watch]))
    session = await runner.session_service.create_session(app_name="shop", user_id="u")
    message = types.Content(role="user", parts=[types.Part(text="go")])
    async for _ in runner.run_async(user_id="u", session_id=session.id, new_message=message):
        pass
    return watch.seen


@pytest.mark.parametrize("tree", TREES)
async def test_each_hook_sees_the_session_that_it_sees_in_adk(client: Client, app_name: str, tree: str) -> None:
    watch = Watch()
    async with serving(client, make_app(app_name, TREES[tree](), plugins=[watch])) as user:
        await user.create()
        view = await user.run("go")
        assert view.status == "finished", view.failures
    assert watch.seen == await as_adk(TREES[tree]())


def test_an_event_is_known_by_what_it_holds_and_not_by_its_id_alone() -> None:
    """A streamed answer that was not kept comes again under its id, and may say something else."""
    events = AdkEvents()
    one, other = (
        LoggedEvent(id="e", author="clerk", content=types.Content(role="model", parts=[types.Part(text=said)]))
        for said in ("one", "other")
    )
    [first] = events.of([one], "s")
    assert events.of([one.model_copy()], "s") == [first]
    assert events.of([one.model_copy()], "s")[0] is first
    [second] = events.of([other], "s")
    assert second.content is not None
    assert [part.text for part in second.content.parts or []] == ["other"]
