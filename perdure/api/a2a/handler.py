"""Answers A2A's requests by invocations of a user's sessions."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import ExitStack, aclosing, contextmanager, suppress
from dataclasses import dataclass
from typing import NoReturn
from uuid import uuid4

from a2a.server.context import ServerCallContext
from a2a.server.events.event_queue import Event as A2aEvent
from a2a.server.request_handlers.request_handler import RequestHandler
from a2a.types import (
    AgentCard,
    CancelTaskRequest,
    DeleteTaskPushNotificationConfigRequest,
    GetExtendedAgentCardRequest,
    GetTaskPushNotificationConfigRequest,
    GetTaskRequest,
    ListTaskPushNotificationConfigsRequest,
    ListTaskPushNotificationConfigsResponse,
    ListTasksRequest,
    ListTasksResponse,
    Message,
    SendMessageRequest,
    SubscribeToTaskRequest,
    Task,
    TaskArtifactUpdateEvent,
    TaskPushNotificationConfig,
    TaskStatusUpdateEvent,
)
from a2a.utils.errors import (
    A2AError,
    ExtendedAgentCardNotConfiguredError,
    InternalError,
    InvalidParamsError,
    PushNotificationNotSupportedError,
    TaskNotCancelableError,
    TaskNotFoundError,
    UnsupportedOperationError,
)
from a2a.utils.proto_utils import validate_proto_required_fields
from fastapi import HTTPException
from google.protobuf.message import Message as ProtoMessage

from perdure.api.a2a.parts import MESSAGE_ID, answers_of, content_of, said_in
from perdure.api.a2a.tasks import ENDED, artifact_of, split_task_id, status_of, task_id, task_of
from perdure.api.auth.identity import Identity
from perdure.api.auth.standing import Standing
from perdure.api.base.attribution import answer_metadata
from perdure.api.base.backend import Backend
from perdure.api.base.questions import questions_of
from perdure.api.base.statuses import kind_and_text
from perdure.api.base.streams import until_gone
from perdure.api.v1.addressing import Where
from perdure.errors import (
    InvocationFailed,
    InvocationFinished,
    InvocationNotFound,
    RequestRefused,
    SessionExists,
    SessionNotFound,
)
from perdure.journal.events import Event
from perdure.messages.keys import SessionKey
from perdure.messages.session import InvocationView
from perdure.views.forms.asked import Question

_CANCELED = "the client canceled the task"


@contextmanager
def _as_a2a(params: ProtoMessage) -> Generator[None]:
    """Check a request's required fields, and tell errors as the protocol does; an internal one is logged, not told."""
    try:
        validate_proto_required_fields(params)
        yield
    except A2AError:
        raise
    except (SessionNotFound, InvocationNotFound) as error:
        raise TaskNotFoundError(str(error)) from None
    except RequestRefused as error:
        raise InvalidParamsError(str(error)) from None
    except HTTPException as error:
        raise InvalidParamsError(str(error.detail)) from None
    except Exception as error:
        _, text = kind_and_text(error, "/a2a")
        raise InternalError(text) from None


@dataclass(frozen=True)
class _Turn:
    """A task at work, and where in the log what it does begins."""

    where: Where
    invocation_id: str
    since: int

    @property
    def task(self) -> str:
        return task_id(self.where.key.session, self.invocation_id)


class TaskHandler(RequestHandler):
    """Reads and drives tasks for the sender of one HTTP request. Every task is read from its session."""

    def __init__(self, app: str, user: str, backend: Backend, identity: Identity, standing: Standing) -> None:
        """Say who asks, and whose sessions are meant.

        Args:
            app: The app.
            user: The user whose sessions these are; the backend checks that the sender may act for them.
            backend: The backend of the request.
            identity: Who asks.
            standing: For how long they are let in.
        """
        self._app = app
        self._user = user
        self._backend = backend
        self._identity = identity
        self._standing = standing

    # Reading

    async def on_get_task(self, params: GetTaskRequest, context: ServerCallContext) -> Task:
        """Return a task."""
        with _as_a2a(params):
            async with self._backend.patience():
                where, view = await self._found(params.id)
                history = params.history_length if params.HasField("history_length") else None
                return await self._task(where, view, history=history)

    async def on_list_tasks(self, params: ListTasksRequest, context: ServerCallContext) -> ListTasksResponse:
        """Return the tasks of one context, newest first; of a long session only the newest of those that ended."""
        if not params.context_id:
            raise UnsupportedOperationError("tasks are listed by context: give a contextId")
        with _as_a2a(params):
            async with self._backend.patience():
                where = self._where(params.context_id)
                view = await where.runner.get_session(**where.key.arguments)
                history = params.history_length if params.HasField("history_length") else 0
                events = await self._events(where)
                tasks = [
                    await self._task(where, one, history=history, events=events) for one in reversed(view.invocations)
                ]
        if params.status:
            tasks = [task for task in tasks if task.status.state == params.status]
        return ListTasksResponse(tasks=tasks, page_size=len(tasks), total_size=len(tasks))

    # Driving

    async def on_message_send(self, params: SendMessageRequest, context: ServerCallContext) -> Task:
        """Take a message, and return its task once it waits or has ended; at once, if the client wants that."""
        with _as_a2a(params):
            turn = await self._take(params, streaming=False)
            if not params.configuration.return_immediately:
                with suppress(InvocationFailed):
                    async with aclosing(self._follow(turn, streaming=False)) as events:
                        async for _ in events:
                            pass
            async with self._backend.patience():
                where, view = await self._found(turn.task)
                configured = params.configuration
                history = configured.history_length if configured.HasField("history_length") else None
                return await self._task(where, view, history=history)

    async def on_message_send_stream(
        self, params: SendMessageRequest, context: ServerCallContext
    ) -> AsyncGenerator[A2aEvent, None]:
        """Take a message, and yield its task and what becomes of it. Who leaves does not stop it."""
        with _as_a2a(params):
            turn = await self._take(params, streaming=True)
            async with aclosing(self._told(turn)) as told:
                async for event in told:
                    yield event

    async def on_subscribe_to_task(
        self, params: SubscribeToTaskRequest, context: ServerCallContext
    ) -> AsyncGenerator[A2aEvent, None]:
        """Yield a task as it stands, and what becomes of it."""
        with _as_a2a(params):
            async with self._backend.patience():
                where, view = await self._found(params.id)
                since = await where.runner.event_count(**where.key.arguments)
                task = await self._task(where, view)
            if task.status.state in ENDED:
                raise UnsupportedOperationError("the task has ended; read it by tasks/get")
            async with aclosing(self._told(_Turn(where, view.id, since))) as told:
                async for event in told:
                    yield event

    async def on_cancel_task(self, params: CancelTaskRequest, context: ServerCallContext) -> Task:
        """Stop an invocation, and return its task."""
        with _as_a2a(params):
            async with self._backend.patience():
                where, view = await self._found(params.id)
                try:
                    result = await where.runner.stop(**where.key.arguments, invocation_id=view.id, reason=_CANCELED)
                except InvocationFinished as error:
                    raise TaskNotCancelableError(str(error)) from None
                return await self._task(where, result.invocation)

    def _where(self, session: str) -> Where:
        key = SessionKey(self._app, self._user, session)
        return Where(key, self._backend.runner_of(key))

    async def _found(self, task: str) -> tuple[Where, InvocationView]:
        session, invocation_id = split_task_id(task)
        if not session:
            raise TaskNotFoundError
        where = self._where(session)
        return where, await where.runner.invocation(**where.key.arguments, invocation_id=invocation_id)

    async def _task(
        self,
        where: Where,
        view: InvocationView,
        *,
        history: int | None = None,
        events: Sequence[Event] | None = None,
    ) -> Task:
        questions = await questions_of(view, where.key, self._backend)
        log = events if events is not None else await self._events(where)
        return task_of(view, questions, log, where.key.session, history)

    async def _events(self, where: Where) -> list[Event]:
        return [event async for event in where.runner.events(**where.key.arguments)]

    async def _take(self, params: SendMessageRequest, *, streaming: bool) -> _Turn:
        if params.configuration.HasField("task_push_notification_config"):
            raise PushNotificationNotSupportedError
        message = params.message
        async with self._backend.patience():
            if message.task_id:
                return await self._go_on(message, streaming=streaming)
            await self._backend.check_served(self._app)
            return await self._say(self._where(message.context_id or uuid4().hex), message, streaming=streaming)

    async def _say(self, where: Where, message: Message, *, streaming: bool) -> _Turn:
        content, request = content_of(message), _request_id(message.message_id)

        async def send() -> _Turn:
            result = await where.runner.send_message(
                **where.key.arguments,
                message=content,
                request_id=request,
                metadata={MESSAGE_ID: message.message_id},
                streaming=streaming,
            )
            return _Turn(where, result.invocation.id, result.offset)

        with ExitStack() as unless_sent:
            if streaming:
                unless_sent.callback(where.runner.expect_tokens(**where.key.arguments))
            try:
                turn = await send()
            except SessionNotFound:
                # Somebody else may create it meanwhile.
                with suppress(SessionExists):
                    await where.runner.create_session(**where.key.arguments)
                turn = await send()
            unless_sent.pop_all()
        return turn

    async def _go_on(self, message: Message, *, streaming: bool) -> _Turn:
        where, view = await self._found(message.task_id)
        if message.context_id and message.context_id != where.key.session:
            raise InvalidParamsError("the task is of another context; give the context of the task, or none")
        # What was stopped or failed takes answers, too, and would do nothing with them.
        ended = view.status in ("stopped", "failed")
        questions = [] if ended else await questions_of(view, where.key, self._backend)
        if not questions and view.status == "waiting":
            return await self._say(where, message, streaming=streaming)
        if not questions:
            raise UnsupportedOperationError(
                f"the task is {view.status} and waits for no answer; a message without a task id begins another"
            )
        result = await where.runner.respond(
            **where.key.arguments,
            responses=answers_of(message, questions),
            invocation_id=view.id,
            request_id=_request_id(message.message_id),
            metadata={MESSAGE_ID: message.message_id, **answer_metadata(self._identity)},
            streaming=streaming,
        )
        return _Turn(where, result.invocation.id, result.offset)

    # Telling

    def _follow(self, turn: _Turn, *, streaming: bool) -> AsyncGenerator[Event, None]:
        follow = turn.where.runner.follow(
            **turn.where.key.arguments,
            invocation_id=turn.invocation_id,
            since=turn.since,
            streaming=streaming,
            live=streaming,
        )
        return until_gone(follow, self._backend.closing, standing=self._standing)

    async def _told(self, turn: _Turn) -> AsyncGenerator[A2aEvent, None]:
        """Yield a task as it stands, what its agents say from then on, and how it comes to rest."""
        where, context = turn.where, turn.where.key.session
        view = await where.runner.invocation(**where.key.arguments, invocation_id=turn.invocation_id)
        before = (await self._events(where))[: turn.since]
        yield task_of(view.model_copy(update={"status": "running", "pending": ()}), (), before, context, None)
        begun: set[str] = set()
        with suppress(InvocationFailed):
            async with aclosing(self._follow(turn, streaming=True)) as events:
                async for event in events:
                    if parts := said_in(event):
                        # Pieces are added to one another, and what they were pieces of replaces them. As in ADK.
                        yield TaskArtifactUpdateEvent(
                            task_id=turn.task,
                            context_id=context,
                            artifact=artifact_of(event, parts),
                            append=bool(event.partial) and event.id in begun,
                            last_chunk=not event.partial,
                        )
                        begun.add(event.id)
        view = await where.runner.invocation(**where.key.arguments, invocation_id=turn.invocation_id)
        questions: list[Question] = await questions_of(view, where.key, self._backend)
        status = status_of(view, questions, turn.task, context)
        yield TaskStatusUpdateEvent(task_id=turn.task, context_id=context, status=status)

    # What is not there

    async def on_create_task_push_notification_config(
        self, params: TaskPushNotificationConfig, context: ServerCallContext
    ) -> NoReturn:
        """Refuse: tasks are followed, or asked for."""
        raise PushNotificationNotSupportedError

    async def on_get_task_push_notification_config(
        self, params: GetTaskPushNotificationConfigRequest, context: ServerCallContext
    ) -> NoReturn:
        """Refuse."""
        raise PushNotificationNotSupportedError

    async def on_list_task_push_notification_configs(
        self, params: ListTaskPushNotificationConfigsRequest, context: ServerCallContext
    ) -> ListTaskPushNotificationConfigsResponse:
        """Refuse."""
        raise PushNotificationNotSupportedError

    async def on_delete_task_push_notification_config(
        self, params: DeleteTaskPushNotificationConfigRequest, context: ServerCallContext
    ) -> None:
        """Refuse."""
        raise PushNotificationNotSupportedError

    async def on_get_extended_agent_card(
        self, params: GetExtendedAgentCardRequest, context: ServerCallContext
    ) -> AgentCard:
        """Refuse: the card says all."""
        raise ExtendedAgentCardNotConfiguredError


def _request_id(message_id: str) -> str:
    return f"a2a:{hashlib.sha256(message_id.encode()).hexdigest()[:32]}"
