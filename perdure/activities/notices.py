"""The activities of notices: one begins a notice's workflow, the other tells people what it is about."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from datetime import timedelta

from temporalio import activity
from temporalio.client import Client
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.exceptions import ApplicationError, WorkflowAlreadyStartedError

from perdure.errors import InvocationNotFound, SessionNotFound
from perdure.messages.keys import SessionKey
from perdure.messages.notices import (
    NOTICE_WORKFLOW,
    NOTIFY,
    SEND_NOTICE,
    NoticeInput,
    NotifyInput,
    SendNoticeInput,
    SendNoticeResult,
    notice_id,
)
from perdure.messages.session import PENDING, PendingView
from perdure.notices.notice import Notice, of_call, of_failure
from perdure.notices.sending import NotDelivered, send
from perdure.notices.settings import NoticeSettings
from perdure.sessions.lifecycle import Lifecycle
from perdure.sessions.requests import WorkflowRequests
from perdure.sessions.sessions import Sessions

_GONE = SendNoticeResult(still=False)


class NoticeActivities:
    """Begins and sends the notices of one app's sessions."""

    def __init__(self, app: str, client: Client, settings: NoticeSettings | None) -> None:
        """Make them; without settings nothing new is told, and what others have begun waits for their workers."""
        self._app = app
        self._client = client
        self._settings = settings

    @activity.defn(name=NOTIFY)
    async def notify(self, request: NotifyInput) -> None:
        """Begin the workflow of a notice, unless it has begun before."""
        settings = self._settings
        if settings is None or (request.call_id is None and request.happened not in settings.tell):
            return
        info = activity.info()
        session_id = info.workflow_id or ""
        notice = NoticeInput(
            session_id=session_id,
            happened=request.happened,
            invocation_id=request.invocation_id,
            call_id=request.call_id,
            entry=request.entry,
            channels=settings.channels,
        )
        try:
            await self._client.start_workflow(  # pyright: ignore[reportUnknownMemberType] -- the SDK's overloads
                NOTICE_WORKFLOW,
                notice,
                id=notice_id(session_id, request),
                task_queue=info.task_queue,
                id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
                id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
                start_delay=settings.delay or None,
                static_summary=f"{request.happened}: {session_id}"[:200],
            )
        except WorkflowAlreadyStartedError:
            return

    @activity.defn(name=SEND_NOTICE)
    async def send(self, request: SendNoticeInput) -> SendNoticeResult:
        """Tell by one channel, if it is so still.

        Raises:
            ApplicationError: It was not taken; retried where that may help.
        """
        settings = self._settings
        if settings is None:
            raise ApplicationError("this worker was given no settings of notices (--notify)", type="NotDelivered")
        look: Callable[[SendNoticeInput, NoticeSettings], Awaitable[tuple[Notice, float | None] | None]]
        look = self._failure if request.notice.call_id is None else self._call
        try:
            found = await look(request, settings)
        except (SessionNotFound, InvocationNotFound):
            return _GONE
        if found is None:
            return _GONE
        notice, due = found
        if request.happened in settings.tell:
            try:
                await send(notice, request.channel, settings)
            except NotDelivered as error:
                pause = None if error.pause is None else timedelta(seconds=error.pause)
                raise ApplicationError(
                    str(error), type="NotDelivered", non_retryable=not error.again, next_retry_delay=pause
                ) from error
        return SendNoticeResult(still=True, due=due)

    async def _call(self, request: SendNoticeInput, settings: NoticeSettings) -> tuple[Notice, float | None] | None:
        """Return the notice of a call, and when it is due; `None` if it waits no more."""
        key = SessionKey.parse(request.notice.session_id)
        requests = WorkflowRequests(self._app, self._client, Lifecycle(self._client))
        view: PendingView = await requests.look(key, PENDING)
        call = next((call for call in view.calls if call.id == request.notice.call_id), None)
        if call is None:
            return None
        due = settings.due(call.since, call.deadline)
        return of_call(key, call, request.happened, settings, at=time.time()), due

    async def _failure(self, request: SendNoticeInput, settings: NoticeSettings) -> tuple[Notice, float | None] | None:
        """Return the notice of a failure; `None` if the invocation was resumed or stopped meanwhile."""
        key, notice = SessionKey.parse(request.notice.session_id), request.notice
        session = Sessions(self._app, self._client).session(key.user, key.session)
        invocation = await session.invocation(notice.invocation_id)
        if invocation.status != "failed":
            return None
        return of_failure(key, invocation, notice.entry, settings, at=time.time()), None
