"""Checks whether an event log from elsewhere can be taken over, and go on. Pure.

A log is data: it is checked before a session is made of it, and again, against the app's plan, when an invocation of it
goes on. docs/export-import.md says what is checked and why.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticSerializationError

from perdure.errors import InvalidTrajectory, LogError, quoted
from perdure.journal.compact_json import payload_size
from perdure.journal.credential_questions import asking_call, credential_requests, is_credential_request
from perdure.journal.entries import MAX_EVENT_BYTES, EventLogged
from perdure.journal.events import QUESTIONS, USER, Event, asked_about
from perdure.journal.nesting import MAX_LOGGED_LEVELS, is_too_deep
from perdure.journal.projection import TEMP, Invocation, Projection, stored_part
from perdure.journal.questions import is_confirmation_request, is_doubt_request, target_of
from perdure.journal.runs import is_state
from perdure.plan.contents import types
from perdure.plan.nodes import CustomNode, LlmNode, LoopNode, Plan
from perdure.views.pages import LAST_TIME

MAX_IMPORT_BYTES = 50_000_000
"""What all events and entries of one import may have together, as JSON."""

MAX_IMPORT_LINES = 25_000
"""How many events and entries one import may have: some seconds of work for whoever reads it, and for a worker."""

_MAX_BRANCH_STEPS = 100
"""Names in a branch, two for each parallel agent; each nests a few frames at a re-entry, and the stack is finite."""


class LogChecks:
    """Checks the events of one log, in log order."""

    def __init__(self) -> None:
        self._ids: set[str] = set()
        self._calls: dict[str, tuple[types.FunctionCall, str]] = {}
        self._size = 0

    def check(self, event: Event, where: str) -> Event:
        """Check one event against those before it; returns it without `temp:` keys.

        Args:
            event: The event.
            where: How messages name it, as in `event 3`.

        Raises:
            InvalidTrajectory: It cannot stand in a session's log.
        """
        if not event.author:
            raise InvalidTrajectory(f"{where} has no author")
        if not 0 <= event.timestamp <= LAST_TIME:
            raise InvalidTrajectory(
                f"{where}: the timestamp {quoted(event.timestamp)} is no time; give seconds since the epoch"
            )
        if event.partial:
            raise InvalidTrajectory(f"{where} is a piece of a streamed answer; a log holds whole answers only")
        if event.id in self._ids:
            raise InvalidTrajectory(f"{where}: the event id {quoted(event.id)} is used twice")
        if event.id:
            self._ids.add(event.id)
        self.count(event, where)
        check_branch(event.branch, where)
        self._check_calls(event, where)
        self._check_responses(event, where)
        return without_temp(event)

    def count(self, item: BaseModel, where: str) -> None:
        """Count the bytes of one event or entry.

        Raises:
            InvalidTrajectory: It is too large or too deep, or all of them together are too large.
        """
        try:
            size = payload_size(item)
        except PydanticSerializationError as error:
            raise InvalidTrajectory(f"{where} holds what is no JSON: {error}") from error
        self._size += size
        if is_too_deep(item, MAX_LOGGED_LEVELS):
            raise InvalidTrajectory(f"{where} has more than {MAX_LOGGED_LEVELS} lists and objects within each other")
        if size > MAX_EVENT_BYTES:
            raise InvalidTrajectory(
                f"{where} has {size / 1e6:.1f} MB, and an event may have {MAX_EVENT_BYTES / 1e6:.1f} MB at the most"
            )
        if self._size > MAX_IMPORT_BYTES:
            raise InvalidTrajectory(f"{where}: the log has more than the {MAX_IMPORT_BYTES / 1e6:.0f} MB of one import")

    def _check_calls(self, event: Event, where: str) -> None:
        calls = event.get_function_calls()
        if calls and event.author == USER:
            raise InvalidTrajectory(f"{where} is the user's and holds function calls: only a model may call a tool")
        for call in calls:
            if not call.id or not call.name:
                raise InvalidTrajectory(f"{where} holds a function call without an id or without a name")
            if call.id in self._calls:
                raise InvalidTrajectory(f"{where}: the function-call id {quoted(call.id)} is used twice")
        if is_confirmation_request(event) or is_doubt_request(event):
            for call in calls:
                self._check_question(event, call, where)
        for request in credential_requests([event]):
            self._check_credential(event, request, where)
        self._calls.update({call.id or "": (call, event.author) for call in calls})
        unknown = (event.long_running_tool_ids or frozenset[str]()) - {call.id for call in calls}
        if unknown:
            raise InvalidTrajectory(f"{where}: the long-running call {quoted(min(unknown))} is not in its content")

    def _check_question(self, event: Event, request: types.FunctionCall, where: str) -> None:
        """Check that a person is asked about the very call that would run, and about nothing else at once."""
        asked = asked_about(request.args)
        known = self._calls.get(str(asked.get("id")))
        if known is not None:
            call, author = known
            same = (asked.get("name"), asked.get("args") or {}) == (call.name, call.args or {})
            asks = request.name in QUESTIONS and request.id in (event.long_running_tool_ids or ())
            if same and asks and author == event.author:
                return
        raise InvalidTrajectory(
            f"{where}: {request.name} {quoted(request.id)} asks about a call that {quoted(event.author)} did not make"
        )

    def _check_credential(self, event: Event, request: types.FunctionCall, where: str) -> None:
        """Check that a person is asked for a credential for a call of the agent's own, which the answer lets run."""
        call_id = asking_call(request)
        if call_id and self._calls.get(call_id, (None, None))[1] != event.author:
            raise InvalidTrajectory(
                f"{where}: {request.name} {quoted(request.id)} is for a call that {quoted(event.author)} did not make"
            )

    def _check_responses(self, event: Event, where: str) -> None:
        for response in event.get_function_responses():
            known = self._calls.get(response.id or "")
            if known is None:
                raise InvalidTrajectory(
                    f"{where} responds to the call {quoted(response.id)}, which the log does not hold"
                )
            if response.name and response.name != known[0].name:
                raise InvalidTrajectory(
                    f"{where}: the call {quoted(response.id)} is one of {quoted(known[0].name)}, not of"
                    f" {quoted(response.name)}"
                )


def without_temp(event: Event) -> Event:
    """Return an event without `temp:` keys, which no log holds."""
    delta = event.actions.state_delta
    if not any(key.startswith(TEMP) for key in delta):
        return event
    kept = stored_part(delta)
    return event.model_copy(update={"actions": event.actions.model_copy(update={"state_delta": kept})})


def check_branch(branch: str | None, where: str) -> None:
    """Check that a branch leads from parallel agents to their sub-agents.

    Raises:
        InvalidTrajectory: It does not.
    """
    steps = branch.split(".") if branch else []
    if len(steps) % 2 or not all(steps) or len(steps) > _MAX_BRANCH_STEPS:
        raise InvalidTrajectory(
            f"{where}: the branch {quoted(branch)} does not consist of PARALLEL.SUBAGENT steps, 50 at most"
        )


def agent_of_import(session: Projection, plan: Plan, invocation: Invocation) -> str:
    """Return the agent that an imported invocation goes on with: the author of its first event, or as for a message.

    A custom agent above that author may have begun it without a word. An answer that is a message begins at the agent
    that asked.

    Raises:
        LogError: It cannot go on in this app; the message says why.
    """
    agent = invocation.agent or session.agent_for(plan, invocation)
    is_answer = bool(invocation.message.get_function_responses())
    while session.imported_bare and not is_answer and isinstance(parent := plan.parents.get(agent), CustomNode):
        agent = parent.name
    events = [entry.event for entry in invocation.entries if isinstance(entry, EventLogged)]
    for author in (agent, *(event.author for event in events)):
        if author not in plan.nodes and plan.find(author) is not None:
            raise LogError(
                f"the imported log has events of {quoted(author)}, which a tool runs, and does not tell where that"
                " stood; import an export with the journal instead"
            )
        if author not in plan.nodes:
            raise LogError(
                f"the imported log has events of {quoted(author)}, and app {plan.app!r} has no agent of this name"
            )
    outputs = [output.actions for output in invocation.kept.values()]
    for actions in (*(event.actions for event in events), *outputs):
        target = actions.transfer_to_agent
        if target is not None and target not in plan.nodes:
            raise LogError(
                f"the imported log hands over to {quoted(target)}, and app {plan.app!r} has no agent of this name"
            )
    for event in events:
        if isinstance(plan.nodes[event.author], LoopNode):
            _check_loop(event)
    if not plan.resumable:
        _check_not_resumable(plan, invocation, {agent, *(event.author for event in events)})
    return agent


def _check_loop(event: Event) -> None:
    looped: Any = (event.actions.agent_state or {}).get("times_looped", 0)
    if not isinstance(looped, int) or looped < 0:
        raise LogError(f"the imported checkpoint of loop {quoted(event.author)} counts {quoted(looped)} iterations")


def _check_not_resumable(plan: Plan, invocation: Invocation, agents: set[str]) -> None:
    """Check that nothing is missing without checkpoints: only LLM agents worked, and nobody waits for an answer."""
    if invocation.answers:
        raise LogError(
            f"app {plan.app!r} is not resumable: an answer starts an invocation there, so give its event an invocation"
            " id of its own"
        )
    above = {name for agent in agents for name in plan.path(agent)}
    others = sorted(name for name in above if not isinstance(plan.nodes[name], LlmNode))
    if others:
        raise LogError(
            f"app {plan.app!r} is not resumable, so its log does not tell where {others[0]!r} was; send a new message"
        )


def unanswered(invocation: Invocation) -> list[types.FunctionCall]:
    """Return the normal calls without a response behind which their agent has logged nothing more."""
    return [
        call
        for event, responded in _newest_steps(invocation)
        for call in event.get_function_calls()
        if call.id not in responded and not _is_long_running(event, call)
    ]


def in_doubt(invocation: Invocation) -> set[str]:
    """Return the ids of calls in doubt: a question was asked about them, and they have no response."""
    found: set[str] = set()
    for entry in invocation.entries:
        if isinstance(entry, EventLogged):
            if is_doubt_request(entry.event):
                found.update(target_of(call.args or {}) for call in entry.event.get_function_calls())
            found.difference_update(response.id or "" for response in entry.event.get_function_responses())
    return found


def waiting(invocation: Invocation) -> list[types.FunctionCall]:
    """Return the long-running calls, confirmations included, behind which their agent has logged nothing more."""
    return [
        call
        for event, _ in _newest_steps(invocation)
        for call in event.get_function_calls()
        if _is_long_running(event, call)
    ]


def _is_long_running(event: Event, call: types.FunctionCall) -> bool:
    return call.id in (event.long_running_tool_ids or ())


def _newest_steps(invocation: Invocation) -> list[tuple[Event, set[str | None]]]:
    """Return where agents stand behind calls: events with calls, and the ids of those that have a response."""
    standing: dict[tuple[str, str | None], list[tuple[Event, set[str | None]]]] = {}
    for entry in invocation.entries:
        if not isinstance(entry, EventLogged):
            continue
        event = entry.event
        key = (event.author, event.branch)
        if is_confirmation_request(event) or is_credential_request(event):
            standing.setdefault(key, []).append((event, set()))
        elif event.get_function_calls():
            standing[key] = [(event, set())]
        elif responses := event.get_function_responses():
            for _, responded in standing.get(key, []):
                responded.update(response.id for response in responses)
        elif event.node_info is None or is_state(event):
            # A text, a checkpoint or an end: the agent has gone on.
            standing.pop(key, None)
        else:
            # In ADK 2 a model may speak while a person's answer is waited for.
            standing[key] = [step for step in standing.get(key, []) if step[0].long_running_tool_ids]
    return [step for steps in standing.values() for step in steps]
