"""Events in words, for people who read a log line by line. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    # Commands that only print must not wait for what an event is made of.
    from perdure.journal.events import Event

_MAX_JSON = 400


def describe_event(event: Event) -> Iterator[str]:
    """Yield what an event says and does, a line for each thing."""
    # What came of a task stands in the user's name.
    author = f"[{event.node if event.author == 'user' and event.node else event.author}]"
    if event.text:
        yield f"{author} {event.text}"
    waiting = event.long_running_tool_ids or frozenset[str]()
    for call in event.get_function_calls():
        note = f"  (waits for an answer to {call.id})" if call.id in waiting else ""
        yield f"{author} calls {call.name}({arguments_text(call.args or {})}){note}"
    for response in event.get_function_responses():
        verb = "answers" if event.is_users else "got from"
        yield f"{author} {verb} {response.name}: {short_json(response.response)}"
    actions = event.actions
    if actions.transfer_to_agent:
        yield f"{author} hands over to {actions.transfer_to_agent}"
    if actions.escalate:
        yield f"{author} escalates"
    if actions.agent_state is not None:
        yield f"{author} checkpoint {short_json(actions.agent_state)}"
    if actions.end_of_agent:
        yield f"{author} ends"
    if event.error_code or event.error_message:
        yield f"{author} error {event.error_code or ''}: {event.error_message or ''}"


def arguments_text(args: dict[str, Any]) -> str:
    """Return the arguments of a call as they stand between its parentheses."""
    return ", ".join(f"{key}={short_json(value)}" for key, value in args.items())


def short_json(value: Any) -> str:
    """Return a value as JSON, of a long one the beginning."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _MAX_JSON else f"{text[:_MAX_JSON]}…"
