"""The app of the sessions in `tests/data/adk_sessions`, as ADK ran it: models that answer by rules.

A rule is found by the agent, the last text of the user, and the number of responses since; so any process can go on
with any session. `tests/data/adk_sessions/adk-V.json` holds seven sessions as ADK V's server answers them, and what
that ADK did next with each: the events that it added, what its models were asked, the state.
"""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any

from google.genai import types

from perdure.agents import App, FunctionTool, LlmAgent, LongRunningFunctionTool, ResumabilityConfig, SequentialAgent
from perdure.agents.context import ToolContext
from perdure.journal.events import Event
from perdure.models.base import BaseLlm, LlmRequest, LlmResponse

FOLDER = Path(__file__).parent / "data" / "adk_sessions"
VERSIONS = ("1.20.0", "1.39.1", "2.13.0")
SESSIONS: dict[str, dict[str, Any]] = {
    version: json.loads((FOLDER / f"adk-{version}.json").read_text()) for version in VERSIONS
}

ALL_BYTES = bytes(range(256))


def _say(words: str, **more: Any) -> list[types.Part]:
    return [types.Part(text=words, **more)]


def _call(name: str, /, **args: Any) -> list[types.Part]:
    return [types.Part(function_call=types.FunctionCall(name=name, args=args))]


def _go(agent: str) -> list[types.Part]:
    return _call("transfer_to_agent", agent_name=agent)


RULES: dict[tuple[str, str], list[list[types.Part]]] = {
    ("concierge", "finished"): [_call("save_note", text="first"), _go("desk")],
    ("desk", "finished"): [_say("Your note is kept.")],
    ("desk", "again"): [_call("save_note", text="second"), _say("Both are kept.")],
    ("desk", "more"): [_say("More it is.")],
    ("concierge", "approve"): [_call("ask_approval", amount=120), _say("The approval came.")],
    ("concierge", "refund"): [_call("refund", amount=7), _say("The refund is done.")],
    ("concierge", "chain"): [_go("chain")],
    ("first", "chain"): [_call("save_note", text="chain"), _say("First is done.")],
    ("second", "chain"): [_call("look_up", key="k"), _say("Second is done.")],
    ("third", "chain"): [_say("Third is done.")],
    ("concierge", "count"): [_say("One.")],
    ("concierge", "count on"): [_say("Two.")],
    ("concierge", "count further"): [_say("Three.")],
    ("concierge", "count again"): [_say("Four.")],
    ("concierge", "rich"): [[*_call("look_up", key="a"), *_call("look_up", key="b")], _say("Here is a picture.")],
    ("concierge", "rich again"): [_say("Seen.")],
    ("concierge", "set blue"): [_call("set_colour", colour="blue"), _say("Blue.")],
    ("concierge", "set red"): [_call("set_colour", colour="red"), _say("Red.")],
    ("concierge", "which"): [_say("I answer.")],
}


class Rules(BaseLlm):
    """Answers by `RULES`, and keeps what it was asked."""

    def __init__(self, model: str) -> None:
        super().__init__(model)
        self.requests: list[LlmRequest] = []

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        self.requests.append(llm_request)
        words, done = "", 0
        for content in llm_request.contents:
            parts = content.parts or []
            own = [part.text for part in parts if part.text and content.role == "user"]
            if own and not own[0].startswith("For context:"):
                words, done = own[0], 0
            done += sum(1 for part in parts if part.function_response)
        steps = RULES[llm_request.agent, words]
        parts = steps[min(done, len(steps) - 1)]
        yield LlmResponse(content=types.Content(role="model", parts=parts))


async def save_note(text: str, tool_context: ToolContext) -> dict[str, Any]:
    """Keeps a note."""
    notes: list[str] = tool_context.state.get("notes", [])
    tool_context.state["notes"] = [*notes, text]
    return {"kept": text, "version": len(notes)}


def look_up(key: str) -> dict[str, Any]:
    """Looks a key up."""
    return {"key": key, "value": base64.b64encode(key.encode()).decode()}


def ask_approval(amount: int) -> dict[str, Any]:
    """Asks a person, who answers later."""
    return {"status": "pending", "ticket": "T-1"}


async def set_colour(colour: str, tool_context: ToolContext) -> dict[str, Any]:
    """Sets the colour."""
    tool_context.state["colour"] = colour
    return {"colour": colour}


class Shop:
    """The app, its models, and the keys under which refunds ran."""

    def __init__(self, name: str) -> None:
        self.models = {agent: Rules(agent) for agent, _ in RULES}
        self.refunds: list[str] = []

        def refund(amount: int, tool_context: ToolContext) -> dict[str, Any]:
            """Pays money back."""
            self.refunds.append(tool_context.idempotency_key)
            return {"refunded": amount}

        self.app = App(
            name=name,
            root_agent=self._agent(
                "concierge",
                [
                    save_note,
                    look_up,
                    set_colour,
                    LongRunningFunctionTool(ask_approval),
                    FunctionTool(refund, require_confirmation=True),
                ],
                sub_agents=[
                    self._agent("desk", [save_note]),
                    SequentialAgent(
                        name="chain",
                        description="The chain.",
                        sub_agents=[
                            self._agent("first", [save_note], output_key="first_said"),
                            self._agent("second", [look_up]),
                            self._agent("third"),
                        ],
                    ),
                ],
            ),
            resumability_config=ResumabilityConfig(is_resumable=True),
        )

    def _agent(self, name: str, tools: Sequence[Any] = (), **more: Any) -> LlmAgent:
        return LlmAgent(name=name, description=f"The {name}.", model=self.models[name], tools=list(tools), **more)


def said(event: Event) -> tuple[str, list[tuple[str, Any]]] | None:
    """Return what an event says, without ids, and without what depends on artifacts; nothing of a checkpoint or end."""
    parts: list[tuple[str, Any]] = []
    for part in event.parts:
        if part.function_call is not None:
            asks = part.function_call.name == "adk_request_confirmation"
            parts.append(("call", (part.function_call.name, None if asks else part.function_call.args)))
        elif part.function_response is not None:
            parts.append(("response", part.function_response.name))
        elif part.text and not part.thought:
            parts.append(("text", part.text))
    return (event.author, parts) if parts else None


def conversation(events: Sequence[Event], invocation_id: str | None = None) -> list[Any]:
    """Return what events say, of one invocation or of all."""
    chosen = (event for event in events if invocation_id in (None, event.invocation_id))
    return [words for event in chosen if (words := said(event)) is not None]
