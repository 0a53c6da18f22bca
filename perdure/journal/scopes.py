"""The scopes under calls of tools that run agents: each a projection of its own, whose questions are asked outside."""

from __future__ import annotations

from collections.abc import Iterator

from perdure.journal.entries import ScopeBegan
from perdure.journal.events import USER, Event, EventActions
from perdure.journal.invocations import Invocation
from perdure.journal.projection import Projection, stored_part
from perdure.plan.contents import types

_OF_ADK = "_adk"
"""What keys of the state begin with that google.adk keeps for itself: no agent that a tool runs gets them."""


def begin_scope(projection: Projection, entry: ScopeBegan) -> None:
    """Add the projection of an agent that a tool is to run: its message waits, its state is the session's."""
    state = stored_part(projection.visible_state(entry.invocation_id) | entry.asked.state)
    message = Event(
        id=entry.event_id,
        timestamp=entry.timestamp,
        author=USER,
        invocation_id=entry.invocation_id,
        content=entry.asked.content,
    )
    around = projection.invocations[entry.invocation_id]
    invocation = Invocation(entry.invocation_id, message, asked=around.asked)
    projection.scopes[entry.call_id] = Projection(
        state={key: value for key, value in state.items() if not key.startswith(_OF_ADK)},
        invocations={invocation.id: invocation},
        key_salt=projection.key_salt,
        began=entry,
        tools=(*projection.tools, (entry.agent, entry.tool)),
    )
    pin_scopes(projection, invocation.id)


def pin_scopes(projection: Projection, invocation_id: str) -> None:
    """Give the scopes of an invocation that have no plan the part of its plan that is theirs, where it has one."""
    plan = projection.plan_of(projection.invocations[invocation_id])
    for scope in projection.scopes.values():
        invocation = scope.invocations.get(invocation_id)
        if invocation is None or invocation.plan is not None or scope.began is None or plan is None:
            continue
        part = plan.scope(scope.began.agent, scope.began.tool)
        if part is not None:
            scope.newest_plan = invocation.plan = part.digest
            scope.plans[part.digest] = part
            invocation.agent = part.root.name
            pin_scopes(scope, invocation_id)


def resume_scopes(projection: Projection, invocation_id: str) -> None:
    """Let the agents go on that have not come to their end in an invocation which takes the turn again."""
    for scope in projection.scopes.values():
        invocation = scope.invocations.get(invocation_id)
        if invocation is not None and invocation.status in ("failed", "stopped"):
            invocation.status, invocation.failures = "running", ()
            invocation.model_calls.clear()
            resume_scopes(scope, invocation_id)


def show_questions(projection: Projection, scope: Projection) -> None:
    """Show outside what waits for an answer in a scope: it is one call, and has one answer, here and there."""
    asked = [call_id for call_id in scope.calls if call_id not in projection.calls]
    if not asked:
        return
    for call_id in asked:
        projection.calls[call_id] = scope.calls[call_id]
        projection.call_ids.add(call_id)
        if call_id in scope.timed:
            projection.timed[call_id] = scope.timed[call_id]
    events = {event.id: event for call_id in asked if (event := scope.event_of_call(call_id)) is not None}
    for event in events.values():
        projection.of_scopes.add(event.id)
        projection.events.append(_question(event, set(asked)))


def _question(event: Event, asked: set[str]) -> Event:
    """Return the part of an event that waits for an answer."""
    parts = [part for part in event.parts if part.function_call and part.function_call.id in asked]
    ids = frozenset(part.function_call.id or "" for part in parts if part.function_call)
    return Event(
        id=event.id,
        timestamp=event.timestamp,
        author=event.author,
        invocation_id=event.invocation_id,
        branch=event.branch,
        content=types.Content(role=event.content.role if event.content else None, parts=parts),
        actions=EventActions(),
        long_running_tool_ids=ids,
        node_info=event.node_info,
    )


def parts_for_scopes(projection: Projection, event: Event) -> Iterator[tuple[Projection, Event]]:
    """Yield the scopes in which an answer's calls were made, each with what answers these."""
    for scope in projection.scopes.values():
        parts = [part for part in event.parts if part.function_response and part.function_response.id in scope.calls]
        if parts:
            yield scope, event.model_copy(update={"content": types.Content(role=USER, parts=parts)})
