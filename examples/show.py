"""Prints events in a line or two each."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator

from perdure import Event


def describe(event: Event) -> Iterator[str]:
    """Yield what an event says and does, one line for each thing."""
    if event.text:
        yield f"says: {event.text}"
    for call in event.get_function_calls():
        arguments = ", ".join(f"{key}={json.dumps(value)}" for key, value in (call.args or {}).items())
        waits = " and waits for the answer" if call.id in (event.long_running_tool_ids or ()) else ""
        yield f"calls {call.name}({arguments}){waits}"
    for response in event.get_function_responses():
        verb = "answers" if event.author == "user" else "gets from"
        yield f"{verb} {response.name}: {json.dumps(response.response)}"
    if event.actions.agent_state is not None:
        yield f"checkpoint {json.dumps(event.actions.agent_state)}"
    if event.actions.end_of_agent:
        yield "ends"


def show(event: Event, width: int = 16) -> None:
    """Print an event behind its author."""
    for line in describe(event):
        wrapped = textwrap.fill(
            f"{event.author:<{width}}{line}", width=120, initial_indent="  ", subsequent_indent=" " * (width + 2)
        )
        print(wrapped, flush=True)
