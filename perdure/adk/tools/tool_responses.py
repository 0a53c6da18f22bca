"""Makes a tool's response event one that the log can keep. The tool has run: nothing fails it then.

What cannot be kept is told to the model in place of the result, as of Perdure's own tools: where it failed the turn, a
resume would run the tool again.
"""

from __future__ import annotations

from typing import Any

from google.adk.events.event import Event as AdkEvent
from google.genai import types

from perdure.adk.events import plain_state
from perdure.adk.session_service import StepSession
from perdure.agents.plain_values import NotPlain, to_plain
from perdure.journal.tool_output import ToolOutput
from perdure.rules.tool_responses import told_beside
from perdure.steps.tool_results import cannot_be_told

__all__ = ["as_result", "make_plain"]

_LARGE_CHARACTERS = 50_000
"""From here on a response is one that may have to be shortened, by itself or with others."""


def make_plain(tool: str, event: AdkEvent, step: StepSession) -> dict[str, Any]:
    """Take out of a tool's response event what is no JSON, and tell the model of it there.

    Returns:
        What was written into the state past the event's delta; nothing of it where a part is no JSON.
    """
    problems: list[str] = []
    state: dict[str, Any] = {}
    delta = event.actions.state_delta
    try:
        plain_state(delta)
    except NotPlain as error:
        problems.append(_not_kept(tool, error))
        event.actions.state_delta = {}
    try:
        state = step.written_past_deltas(delta)
    except NotPlain as error:
        problems.append(_not_kept(tool, error))
    parts = event.content.parts if event.content is not None else None
    for response in [part.function_response for part in parts or () if part.function_response is not None]:
        response.response = _response(tool, response, problems)
    return state


def _not_kept(tool: str, error: NotPlain) -> str:
    return f"Tool {tool!r} has run, but nothing of what it wrote into the state was kept: {error}."


def _response(tool: str, response: types.FunctionResponse, problems: list[str]) -> dict[str, Any] | None:
    plain: Any = response.response
    try:
        response.model_dump(mode="json")
    except Exception:
        try:
            plain = to_plain(plain)
        except NotPlain as error:
            plain = None
            problems = [cannot_be_told(tool, str(error)), *problems]
    return told_beside(" ".join(problems), plain) if problems else plain


def as_result(output: ToolOutput) -> ToolOutput:
    """Return an output whose large response is a result, as one of Perdure's own tools, so that it can be shortened."""
    parts = output.content.parts if output.content is not None else None
    response = parts[0].function_response if parts is not None and len(parts) == 1 else None
    if response is None or response.parts or output.actions.requested_tool_confirmations:
        return output
    if len(response.model_dump_json()) < _LARGE_CHARACTERS:
        return output
    return output.model_copy(update={"content": None, "result": response.response})
