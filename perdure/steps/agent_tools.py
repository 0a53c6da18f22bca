"""The two steps around an agent that a tool runs: what it is told, and what the tool returns of what it has logged.

ADK: `tools/agent_tool.py`.
"""

from __future__ import annotations

from google.genai import types

from perdure.agents.agent_tool import AgentTool
from perdure.errors import InvalidArguments
from perdure.journal.events import USER, Event, EventActions, user_content
from perdure.journal.projection import Projection
from perdure.journal.tool_output import AgentAsked, ToolOutput
from perdure.rules.tool_responses import error_output
from perdure.steps.base import Place, StepRefused, ToolCall, llm_node
from perdure.steps.user_code import CodeRunner


class AgentToolCalls:
    """Runs what an `AgentTool` does around its agent; the agent's own steps are the session's."""

    def __init__(self, code: CodeRunner) -> None:
        self._code = code

    async def run(self, at: Place, call: ToolCall, tool: AgentTool) -> ToolOutput:
        """Return what the agent is asked, or, where it has come to its end, the tool's output.

        Raises:
            StepRefused: The agent failed.
        """
        assert call.session is not None, "a tool that runs an agent is given its session"
        session = call.session.projection
        scope = session.scopes.get(call.id)
        if scope is None:
            try:
                # In a thread: a type's own validators are code of the user's.
                message = await self._code.run(tool.message, call.args)
            except InvalidArguments as error:
                return ToolOutput(result=error.result)
            return ToolOutput(asks=AgentAsked(content=user_content(message)))
        await call.begin(False)
        failures = scope.invocations[at.invocation_id].failures
        if failures:
            cause = "; ".join(f"agent {one.agent!r} failed in step {one.step!r}: {one.cause}" for one in failures)
            raise StepRefused("AgentFailed", cause)
        planned = llm_node(session, at, None)[1].tool(call.tool)
        skips = True if planned is not None and planned.skip_summarization else None
        return await self._code.run(_output, tool, scope, skips)


def _output(tool: AgentTool, scope: Projection, skips: bool | None) -> ToolOutput:
    logged = [event for event in scope.own_events if event.author != USER]
    state = {key: value for event in logged for key, value in event.actions.state_delta.items()}
    artifacts = {name: version for event in logged for name, version in event.actions.artifact_delta.items()}
    actions = EventActions(state_delta=state, artifact_delta=artifacts)
    text = _last_text(logged)
    try:
        result = text if tool.output is None else tool.output.of_text(text)
    except InvalidArguments as error:
        told = error_output(f"Agent {tool.name!r} has run, but its answer does not fit its output_schema: {error}")
        return told.model_copy(update={"actions": actions})
    return ToolOutput(result=result, actions=actions.model_copy(update={"skip_summarization": skips}))


def _last_text(events: list[Event]) -> str:
    """Return what the last event with a content says, or else why there is none."""
    said = next((event for event in reversed(events) if event.content is not None), None)
    problem = next((event.error_message for event in reversed(events) if event.error_message), None)
    texts = [_text(part) for part in said.parts if not part.thought] if said is not None else []
    return "\n".join(filter(None, texts)) or problem or ""


def _text(part: types.Part) -> str:
    if part.text:
        return part.text
    if part.code_execution_result is not None and part.code_execution_result.output:
        return part.code_execution_result.output.rstrip("\n")
    return part.executable_code.code or "" if part.executable_code is not None else ""
