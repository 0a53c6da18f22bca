"""Tasks as A2A has them, of invocations and the events of their log. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime

from a2a.types import Artifact, Message, Part, Role, Task, TaskState, TaskStatus
from google.protobuf.timestamp_pb2 import Timestamp

from perdure.api.a2a.parts import awaited, history_of, said_in
from perdure.journal.events import Event
from perdure.journal.open_calls import InvocationStatus
from perdure.messages.session import InvocationView
from perdure.views.forms.asked import Question

_SEPARATOR = ":"

_STATES: Mapping[InvocationStatus, TaskState] = {
    "queued": TaskState.TASK_STATE_SUBMITTED,
    "running": TaskState.TASK_STATE_WORKING,
    "waiting": TaskState.TASK_STATE_INPUT_REQUIRED,
    "failed": TaskState.TASK_STATE_FAILED,
    "stopped": TaskState.TASK_STATE_CANCELED,
    "finished": TaskState.TASK_STATE_COMPLETED,
}

ENDED = frozenset({TaskState.TASK_STATE_COMPLETED, TaskState.TASK_STATE_FAILED, TaskState.TASK_STATE_CANCELED})
"""States that a task does not leave."""


def task_id(session: str, invocation_id: str) -> str:
    """Return the id of an invocation's task. It names the session, since clients ask for a task by its id alone."""
    return f"{session}{_SEPARATOR}{invocation_id}"


def split_task_id(task: str) -> tuple[str, str]:
    """Return the session and the invocation of a task; both are empty for what is no task's id."""
    session, _, invocation_id = task.rpartition(_SEPARATOR)
    return (session, invocation_id) if session and invocation_id else ("", "")


def status_of(view: InvocationView, questions: Sequence[Question], task: str, context: str) -> TaskStatus:
    """Return the status of a task; its message says what is awaited, or why it failed."""
    state = _STATES[view.status]
    parts: list[Part] = []
    if questions and view.status in ("waiting", "finished"):
        # Where nothing pauses, an invocation finishes with its calls open.
        asks_for_credentials = all(question.kind == "credential" for question in questions)
        state = TaskState.TASK_STATE_AUTH_REQUIRED if asks_for_credentials else TaskState.TASK_STATE_INPUT_REQUIRED
        parts = awaited(questions)
    elif view.status == "waiting":
        parts = [Part(text=view.reason or "The agent waits for your message.")]
    elif view.status == "failed":
        parts = [Part(text=f"{failure.agent}: {failure.cause}") for failure in view.failures]
    elif view.status == "stopped" and view.reason:
        parts = [Part(text=view.reason)]
    message = None
    if parts:
        message_id = f"{task}{_SEPARATOR}{view.status}"
        message = Message(message_id=message_id, role=Role.ROLE_AGENT, parts=parts, task_id=task, context_id=context)
    stamp = Timestamp()
    stamp.FromDatetime(datetime.fromtimestamp(view.settled, UTC) if view.settled else datetime.now(UTC))
    return TaskStatus(state=state, message=message, timestamp=stamp)


def artifact_of(event: Event, parts: Sequence[Part]) -> Artifact:
    """Return what an agent said, as an artifact under the event's id."""
    return Artifact(artifact_id=event.id, name=event.author, parts=parts)


def task_of(
    view: InvocationView, questions: Sequence[Question], events: Iterable[Event], session: str, history: int | None
) -> Task:
    """Return an invocation as a task.

    Args:
        view: The invocation.
        questions: What it waits for.
        events: The session's log, or as much of it as is to be told.
        session: The session's id, which is the context's.
        history: How many of the user's messages are told. Default: all.
    """
    task = task_id(session, view.id)
    own = [event for event in events if event.invocation_id == view.id]
    said = history_of(own, session, task)
    return Task(
        id=task,
        context_id=session,
        status=status_of(view, questions, task, session),
        artifacts=[artifact_of(event, parts) for event in own if not event.is_users and (parts := said_in(event))],
        history=said if history is None else said[len(said) - min(history, len(said)) :],
    )
