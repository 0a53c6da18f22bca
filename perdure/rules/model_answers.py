"""Builds the event of a model's answer, and the outputs of calls that need no activity. Pure."""

from __future__ import annotations

import json
from collections.abc import Collection
from functools import partial
from typing import Any

from perdure.journal.compact_json import payload_size
from perdure.journal.entries import MAX_EVENT_BYTES, ToolOutput
from perdure.journal.events import Event, EventActions
from perdure.journal.projection import stored_part
from perdure.plan.contents import types
from perdure.plan.nodes import TRANSFER, LlmNode, Plan, ToolPlan
from perdure.rules.ids import FreshIds, call_ids, called, with_call_ids
from perdure.rules.tool_responses import error_output, told_beside

_ENVELOPE_BYTES = 1_000
"""What the log adds to an event: ids, time."""


def model_event(node: LlmNode, branch: str | None, answer: Event, taken: Collection[str], ids: FreshIds) -> Event:
    """Give a model's answer its author, call ids, long-running calls and output key.

    Args:
        node: The agent.
        branch: The agent's branch.
        answer: What the model's activity returned.
        taken: Ids of all function calls of the session.
        ids: Where ids come from for calls that have none of their own, or one that is taken.
    """
    known = set(taken)

    def id_of(place: int, call: types.FunctionCall) -> str:
        # What a model sends is not to be trusted with ids.
        given = call.id if call.id and call.id not in known else None
        id = given or next(id for id in ids(called(place, call)) if id not in known)
        known.add(id)
        return id

    event = with_call_ids(answer, id_of).model_copy(update={"author": node.name, "branch": branch})
    if event.content is not None:
        event = event.model_copy(update={"content": event.content.model_copy(update={"role": "model"})})
    long_running = frozenset(
        call.id
        for call in event.get_function_calls()
        if call.id and (tool := node.tool(call.name or "")) and tool.kind == "long_running"
    )
    if long_running:
        event = event.model_copy(update={"long_running_tool_ids": long_running})
    says_text = event.is_final_response() and event.text is not None
    # By a schema it is a value, which the step has written.
    if node.output_key is not None and node.output_schema is None and says_text:
        delta = {**event.actions.state_delta, node.output_key: event.text}
        event = event.model_copy(update={"actions": event.actions.model_copy(update={"state_delta": delta})})
    return event


def structured_answer(node: LlmNode, branch: str | None, response: Event) -> Event | None:
    """Return the answer that a response event has of a call of `set_model_response`: it looks like any other.

    ADK: `flows/llm_flows/prompt/_schema.py`.
    """
    value = response.actions.set_model_response
    if node.output_schema is None or value is None:
        return None
    delta = {} if node.output_key is None else {node.output_key: value}
    text = types.Part(text=json.dumps(value, ensure_ascii=False))
    content = types.Content(role="model", parts=[text])
    return Event(author=node.name, branch=branch, content=content, actions=EventActions(state_delta=delta))


def logged_events(event: Event) -> tuple[Event, ...]:
    """Return a model's answer as the log takes it: one event, or two if its text, as the state's, makes it too large.

    An event without content then writes the state: behind an answer, before calls, after which others may come first.
    """
    actions = event.actions
    stored = stored_part(actions.state_delta)
    as_logged = event.model_copy(update={"actions": actions.model_copy(update={"state_delta": stored})})
    if not stored or payload_size(as_logged) <= MAX_EVENT_BYTES - _ENVELOPE_BYTES:
        return (event,)
    state = Event(author=event.author, branch=event.branch, actions=EventActions(state_delta=stored))
    temp = {key: value for key, value in actions.state_delta.items() if key not in stored}
    answer = event.model_copy(update={"actions": actions.model_copy(update={"state_delta": temp})})
    return (state, answer) if event.get_function_calls() else (answer, state)


def logged_size(node: LlmNode, branch: str | None, answer: Event) -> int:
    """Return the bytes, at the most, of the largest event by which the log takes a model's answer."""
    named = [call.id for call in answer.get_function_calls() if call.id]
    # Those keep their ids, or get new ones.
    taken: list[Collection[str]] = [(), named] if named else [()]
    events = (model_event(node, branch, answer, ids, partial(call_ids, "size")) for ids in taken)
    parts = (part for event in events for part in logged_events(event))
    return _ENVELOPE_BYTES + max(map(payload_size, parts))


def instant_output(plan: Plan, node: LlmNode, call: types.FunctionCall, *, decided: bool) -> ToolOutput | None:
    """Return the output of a call that needs no activity; `None` if it does.

    Args:
        plan: The invocation's plan.
        node: The agent whose model made the call.
        call: The call.
        decided: A person has confirmed it.
    """
    tool = node.tool(call.name or "")
    kind = tool.kind if tool is not None else "transfer" if call.name == TRANSFER else "unknown"
    if kind == "transfer":
        return _transfer(plan, node, call.args or {})
    if kind == "exit_loop":
        return ToolOutput(actions=EventActions(escalate=True, skip_summarization=True))
    if tool is None:
        names = ", ".join(tool.name for tool in node.tools) or "none"
        return error_output(f"There is no tool {call.name!r}. The tools are: {names}.")
    if tool.confirmation == "always" and not decided and _is_complete(tool, call):
        return ToolOutput(needs_confirmation=True)
    return None


def refused_transfer(plan: Plan, tool: str, output: ToolOutput) -> ToolOutput:
    """Return the output of a tool that hands over to an unknown agent: an error, with all else that it did."""
    target = output.actions.transfer_to_agent
    told = (
        f"Tool {tool!r} has run, but it hands over to {target!r}, and there is no such agent; control stays here."
        f" The agents are: {', '.join(plan.nodes)}."
    )
    # The model is to read it.
    actions = output.actions.model_copy(update={"transfer_to_agent": None, "skip_summarization": None})
    return output.model_copy(update={"result": told_beside(told, output.result), "actions": actions})


def _transfer(plan: Plan, node: LlmNode, args: dict[str, Any]) -> ToolOutput:
    target = args.get("agent_name")
    if not isinstance(target, str) or target not in plan.nodes or _is_closed_peer(plan, node, target):
        names = ", ".join(node.name for node in plan.transfer_targets(node)) or "none"
        return error_output(f"There is no agent {target!r} to transfer to. The agents are: {names}.")
    return ToolOutput(actions=EventActions(transfer_to_agent=target))


def _is_closed_peer(plan: Plan, node: LlmNode, target: str) -> bool:
    """Return whether an agent stands beside this one, which may not transfer to those. ADK checks no more."""
    if not node.disallow_transfer_to_peers or target == node.name:
        return False
    parent = plan.parents.get(node.name)
    return parent is not None and plan.parents.get(target) is parent


def _is_complete(tool: ToolPlan, call: types.FunctionCall) -> bool:
    """Return whether a call has all that its tool needs; nobody is asked to approve one that cannot run."""
    declaration = tool.declaration
    schema: Any = declaration.parameters_json_schema or {}
    required = (declaration.parameters.required if declaration.parameters else schema.get("required")) or []
    return all(name in (call.args or {}) for name in required)
