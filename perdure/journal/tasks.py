"""Tasks that google.adk 2's agents do in talk with the user: which is open, and whether it waits. Pure.

An agent of mode `task` works in an isolation scope: its events, and what the user says to it, have that on them. A
message that comes while a task is open is one for its agent, and goes on with its invocation.
ADK: `runners.py`, `_find_active_task_scope`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from perdure.journal.events import USER, Event
from perdure.journal.runs import is_failure, is_state

FINISH_TASK = "finish_task"
"""The tool by which an agent ends its task."""

_ENDS = ("Task completed.", "Task failed.")
"""What that tool says where it ended the task; else it says what is wrong with the result."""


class OpenTask(NamedTuple):
    """A task that has not ended."""

    scope: str
    invocation_id: str
    agent: str
    """Who said something in it last; the user, if only that is known."""


def find_open_task(events: Sequence[Event]) -> OpenTask | None:
    """Return the newest task that has not ended; `events` are those that count."""
    over = {_key(event) for event in events if ends_task(event)}
    for event in reversed(events):
        if event.isolation_scope and _key(event) not in over and event.actions.compaction is None:
            spoke = (one.author for one in reversed(events) if _key(one) == _key(event) and one.author != USER)
            return OpenTask(event.isolation_scope, event.invocation_id, next(spoke, USER))
    return None


def find_end(events: Sequence[Event], scope: str, invocation_id: str) -> Event | None:
    """Return the event that says that a task has ended, if it has."""
    ends = (event for event in reversed(events) if _key(event) == (invocation_id, scope) and ends_task(event))
    return next(ends, None)


def _key(event: Event) -> tuple[str, str]:
    # The scope of an app's first agent is the same in each invocation.
    return event.invocation_id, event.isolation_scope or ""


def task_branch(branch: str | None, agent: str, call_id: str) -> str:
    """Return the branch of a task that an agent, on its own branch, gives another by a call."""
    own = f"{agent}@{call_id}"
    return f"{branch}.{own}" if branch else own


def ends_task(event: Event) -> bool:
    """Return whether an event says that its agent's task has ended."""
    responses = (one for one in event.get_function_responses() if one.name == FINISH_TASK)
    return bool(event.isolation_scope) and any((one.response or {}).get("result") in _ENDS for one in responses)


def awaits_reply(events: Sequence[Event], scope: str, agent: str) -> bool:
    """Return whether a task's agent has said something, and the user nothing since."""
    last = _last_said(events, scope)
    return last is not None and last.author == agent and not is_failure(last)


def takes_reply(events: Sequence[Event], scope: str) -> bool:
    """Return whether what the user says may be logged: whoever works on a task has said something, or failed."""
    last = _last_said(events, scope)
    return last is not None and last.author != USER


def _last_said(events: Sequence[Event], scope: str) -> Event | None:
    """Return the newest event of a task, unless it is a model's call or a tool's response."""
    last = next((one for one in reversed(events) if one.isolation_scope == scope and not _is_quiet(one)), None)
    return None if last is None or last.get_function_calls() or last.get_function_responses() else last


def _is_quiet(event: Event) -> bool:
    """Return whether an event says nothing: it is a checkpoint, or what a callback wrote into the state."""
    return is_state(event) or (event.content is None and event.error_code is None and bool(event.actions.state_delta))


def is_reply(event: Event) -> bool:
    """Return whether a user's event is said to a task's agent, and answers no call."""
    return event.author == USER and bool(event.isolation_scope) and not event.get_function_responses()
