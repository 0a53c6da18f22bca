"""Sends updates to sessions' workflows, and looks into their journals: open, closed, or handed over to another run."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Coroutine
from datetime import timedelta
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from pydantic import BaseModel
from pydantic_core import from_json, to_json
from temporalio.api.enums.v1 import PendingWorkflowTaskState
from temporalio.api.workflowservice.v1 import GetSystemInfoRequest
from temporalio.client import (
    Client,
    WorkflowExecutionStatus,
    WorkflowHandle,
    WorkflowUpdateFailedError,
    WorkflowUpdateRPCTimeoutOrCancelledError,
)
from temporalio.exceptions import ApplicationError, WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from perdure.errors import (
    REFUSALS,
    CallNotFound,
    InvalidMessage,
    InvocationRunning,
    SessionStuck,
    SessionUnreadable,
)
from perdure.journal.compact_json import payload_bytes
from perdure.logs import get_logger
from perdure.messages.keys import SessionKey
from perdure.messages.large_requests import MAX_UPDATE_BYTES, MAY_BE_AHEAD, NOT_HERE, SEND_AHEAD, SentAhead
from perdure.messages.session import (
    HANDS_OVER,
    WAIT,
    InvocationInput,
    InvocationResult,
)
from perdure.recovery.stuck import check_readable, why_stuck
from perdure.rules.intake import check_sent
from perdure.sessions.journal_copies import JournalRead, journal_copies
from perdure.sessions.kept_entries import Looked, keeps_more_within, kept_entries
from perdure.sessions.lifecycle import DELETED, Lifecycle, missing
from perdure.sessions.pollers import is_served, pollers_of
from perdure.sessions.temporal_away import TemporalAway
from perdure.views.pages import look

_Handle = WorkflowHandle[Any, Any]
_R = TypeVar("_R", bound=BaseModel)

_UPDATE_ATTEMPTS = 10
_AT_ONCE = 4
"""Updates that a client has on their way to one session. Temporal takes ten of a workflow at a time, five of which may
wait for a turn; each one too many costs the session the workflow task that it is at."""
_EARLY = (InvocationRunning, CallNotFound)
"""Refusals that are asked for twice: in one workflow task updates come before what activities returned."""
_FIRST_PAUSE = 0.1
_HAND_OVER = 3.0
"""Seconds, about, for which a client asks again to wait while one run of a session hands over to the next."""
_SAY_AFTER = 3.0
"""Seconds without an answer after which a client says that it waits for a worker."""
_STUCK_AFTER = 2.0
"""Seconds from then to the first look at why there is no answer."""
_LAST_STUCK_AFTER = 15.0
"""The longest pause between two such looks: each is work for a server that may only be busy."""
_ANSWERS_WITHIN = timedelta(seconds=2)
"""A server that does not is away."""

_TAKEN_WITHIN = 5.0
"""Seconds after which a step that no worker takes is told of: the server remembers for long who asked for work."""

_MAX_HISTORY_BYTES = 20_000_000
"""A run with more gets no signal, which it could not refuse: Temporal ends it at 50 MB, and many may come at once."""

_UNSEEN = "UnprocessedUpdate"
"""The server's type for an update that a worker has passed over, since it had taken the step ahead, for a query."""

_TOO_MANY = "in-flight updates"
"""What the server says of an update that it has not taken since too many are on their way."""

_ABORTED = "update was aborted"
"""What the server says of an update that was on its way as a run's task failed, or the run ended."""

_PASSING = frozenset(
    {
        RPCStatusCode.DEADLINE_EXCEEDED,
        RPCStatusCode.UNAVAILABLE,
        RPCStatusCode.CANCELLED,
        RPCStatusCode.RESOURCE_EXHAUSTED,
    }
)
"""How a request fails while the server is away, or has too much to do."""


_logger = get_logger("perdure.client")


class WorkflowRequests:
    """Requests to the workflows of one app's sessions: updates, and looks into their journals."""

    def __init__(self, app: str, client: Client, lifecycle: Lifecycle) -> None:
        self._app = app
        self._client = client
        self._lifecycle = lifecycle
        self._served: asyncio.Task[bool]
        self._served_until = 0.0
        self._away = TemporalAway(client.service_client.config.target_host)
        self._copies = journal_copies(client)
        self._sending: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    def _handle(self, key: SessionKey) -> _Handle:
        return self._client.get_workflow_handle(key.workflow_id)

    async def update(self, key: SessionKey, name: str, request: BaseModel) -> InvocationResult:
        """Send an update of an invocation, to a session that is brought back first if its workflow is closed."""
        return await self.execute(key, name, request, InvocationResult)

    async def begin(self, key: SessionKey, name: str, request: BaseModel) -> InvocationResult | None:
        """Begin a session by an update of an invocation, in one request; `None` if that cannot be, or is not known."""
        if check_sendable(request, "message") > MAX_UPDATE_BYTES:
            return None
        start = self._lifecycle.beginning(key)
        # It is told of a failed start, too, and asyncio complains of what nobody looks at.
        asyncio.ensure_future(start.workflow_handle()).add_done_callback(_looked_at)
        try:
            async with self._turn(key.workflow_id):
                update = self._client.execute_update_with_start_workflow(  # pyright: ignore[reportUnknownMemberType] -- the SDK's overloads
                    name, request, result_type=InvocationResult, start_workflow_operation=start
                )
                result: InvocationResult = await self._patiently(update, key.workflow_id)
        except WorkflowUpdateFailedError as error:
            refusal = _refusal(error)
            if refusal is error or isinstance(refusal, _EARLY):
                return None
            raise refusal from error
        except (RPCError, WorkflowAlreadyStartedError):
            return None
        self._copies.sent(key.workflow_id)
        return result

    async def execute(self, key: SessionKey, name: str, request: BaseModel, result_type: type[_R]) -> _R:
        """Send any update, to a session that is brought back first if its workflow is closed."""
        size = check_sendable(request, "message")
        handle = self._handle(key)
        sent = _Request(handle, name, request, size)
        turn = self._turn(handle.id)
        for attempt in range(_UPDATE_ATTEMPTS):
            await asyncio.sleep(0.2 * attempt)
            try:
                async with turn:
                    result = await self._patiently(sent.update(result_type), handle.id)
                self._copies.sent(handle.id)
                return result
            except WorkflowUpdateFailedError as error:
                refusal = None if _is_for_next_run(error) else _refusal(error)
                if refusal is error:
                    await check_readable(self._client, handle.id)
                if refusal is not None and not (attempt == 0 and isinstance(refusal, _EARLY)):
                    raise refusal from error
            except RPCError as error:
                stuck = await self._stuck(handle.id, error)
                if stuck is not None:
                    raise stuck from error
                if _may_be_sent_again(error, request) and attempt + 1 < _UPDATE_ATTEMPTS:
                    continue
                if error.status != RPCStatusCode.NOT_FOUND:
                    raise
                await self._lifecycle.bring_back(key)
        raise SessionUnreadable(
            f"session {key.session!r} did not take an update in {_UPDATE_ATTEMPTS} attempts; try again"
        )

    def _turn(self, workflow_id: str) -> asyncio.Semaphore:
        return self._sending.setdefault(workflow_id, asyncio.Semaphore(_AT_ONCE))

    async def wait(self, key: SessionKey, invocation_id: str) -> None:
        """Return when the session says that an invocation has given up the turn, or when it does not let wait for that.

        So it is where too many wait, its worker knows no such update, its workflow is closed, the server is away, or
        one run takes long to hand over to the next: what the log shows is to be looked at in any case.

        Raises:
            SessionStuck: The session does not go on.
        """
        handle = self._handle(key)
        request = InvocationInput(invocation_id=invocation_id)
        pause = _FIRST_PAUSE
        while pause < _HAND_OVER:
            asked = time.monotonic()
            try:
                update = handle.execute_update(  # pyright: ignore[reportUnknownMemberType] -- the SDK's overloads
                    WAIT, request, result_type=InvocationResult
                )
                result: InvocationResult = await self._patiently(update, handle.id, _LAST_STUCK_AFTER)
            except (WorkflowUpdateFailedError, WorkflowUpdateRPCTimeoutOrCancelledError, RPCError) as error:
                if HANDS_OVER not in str(error.__cause__):
                    _logger.debug("the session does not let wait", workflow=handle.id, reason=type(error).__name__)
                    return
            else:
                if result.invocation.status not in ("queued", "running"):
                    return
            took = time.monotonic() - asked
            await asyncio.sleep(pause)
            pause = _FIRST_PAUSE if took > _HAND_OVER else pause * 2

    async def _patiently(self, request: Coroutine[Any, Any, _R], workflow_id: str, pause: float = _STUCK_AFTER) -> _R:
        """Await a request, and say so if it waits for a worker.

        Args:
            request: The request.
            workflow_id: Of the session's workflow.
            pause: Seconds until the first look at why there is no answer.

        Raises:
            SessionStuck: It waits in vain: the session's workflow task fails again and again.
        """
        task = asyncio.create_task(request)
        told = False
        try:
            await asyncio.wait({task}, timeout=_SAY_AFTER)
            while not task.done():
                if not told and not await self._is_served_now():
                    told = True
                    _logger.warning(
                        f"no worker serves app {self._app!r}; waiting for one (perdure dev or perdure worker starts it)"
                    )
                await asyncio.wait({task}, timeout=pause)
                stuck = None if task.done() else await why_stuck(self._client, workflow_id)
                if stuck is not None:
                    raise stuck
                pause = min(pause * 2, _LAST_STUCK_AFTER)
            return await task
        finally:
            task.cancel()
            # A cancelled update ends with an error of its own, which nobody else looks at.
            task.add_done_callback(_looked_at)

    async def _is_served_now(self) -> bool:
        """Return the same as `is_served`, asked once for all who wait at the same time."""
        if time.monotonic() >= self._served_until:
            self._served_until = time.monotonic() + _SAY_AFTER
            self._served = asyncio.create_task(self.is_served())
        return await asyncio.shield(self._served)

    async def is_served(self) -> bool:
        """Return whether a worker of the app has asked for work in the last minutes."""
        try:
            return bool(await pollers_of(self._client, self._app))
        except RPCError:
            return True

    async def _answers(self) -> bool:
        """Return whether the server itself answers, whatever its workers do."""
        try:
            await self._client.workflow_service.get_system_info(GetSystemInfoRequest(), timeout=_ANSWERS_WITHIN)
        except RPCError:
            return False
        return True

    async def halted(self, key: SessionKey) -> str | None:
        """Return why no worker takes a step of an open session, if it is so."""
        if not await is_served(self._client, self._app):
            return f"no worker serves app {self._app!r}; start one (perdure dev, or perdure worker)"
        task = (await self._handle(key).describe()).raw_description.pending_workflow_task
        waited = time.time() - task.scheduled_time.ToNanoseconds() / 1e9
        if task.state == PendingWorkflowTaskState.PENDING_WORKFLOW_TASK_STATE_SCHEDULED and waited > _TAKEN_WITHIN:
            return f"no worker of app {self._app!r} has taken its next step for {waited:.0f} s; is one up?"
        stuck = await why_stuck(self._client, key.workflow_id)
        return None if stuck is None else str(stuck)

    async def look(self, key: SessionKey, name: str, *args: Any, closed: bool = True) -> Any:
        """Return what the session's query of some name returns, read from its history.

        Of a closed session it is what the session would go on with.

        Raises:
            SessionClosed: Its workflow is closed, and `closed` is false.
            SessionNotFound: There is no such session.
        """
        return (await self._look(key, name, *args, closed=closed))[0]

    async def look_kept(self, key: SessionKey, name: str, *args: Any, closed: bool = True) -> Looked:
        """Return the same, and what activities keep that are at work; nothing of that, if the run has just gone on."""
        answer, read = await self._look(key, name, *args, closed=closed)
        if read.described.status != WorkflowExecutionStatus.RUNNING:
            return Looked(answer)
        within = keeps_more_within(read.described, read.projection)
        if within is None or not read.is_of_then:
            return Looked(answer, within=within)
        return Looked(answer, await kept_entries(read.described, self._client.data_converter), within)

    async def _look(self, key: SessionKey, name: str, *args: Any, closed: bool) -> tuple[Any, JournalRead]:
        while True:
            read = await self._journal(key, closed=closed)
            status = read.described.status
            if status == WorkflowExecutionStatus.CONTINUED_AS_NEW:
                # The next run is about to start.
                await asyncio.sleep(_FIRST_PAUSE)
                continue
            if status != WorkflowExecutionStatus.RUNNING:
                if await self._lifecycle.status(key) == DELETED:
                    raise missing(key)
                if not closed:
                    raise SessionClosed(status)
            return look(read.projection, key, name, *args), read

    async def _journal(self, key: SessionKey, *, closed: bool) -> JournalRead:
        """Return a session's journal, as soon as the server is there."""
        pause = _FIRST_PAUSE
        while True:
            asked = time.monotonic()
            try:
                async with asyncio.timeout(self._away.patience):
                    found = await self._copies.read(key.workflow_id, closed=closed)
            except (RPCError, TimeoutError) as error:
                await self._check_passing(error, key, asked)
            else:
                self._away.is_over()
                return found
            await asyncio.sleep(pause)
            pause = min(pause * 2, 5.0)

    async def _stuck(self, workflow_id: str, error: RPCError) -> SessionStuck | None:
        """Return why a session does not go on, if the server has refused a request at once since it does not."""
        is_refused = error.status == RPCStatusCode.FAILED_PRECONDITION
        return await why_stuck(self._client, workflow_id) if is_refused else None

    async def _check_passing(self, error: RPCError | TimeoutError, key: SessionKey, asked: float) -> None:
        """Raise what a look failed with, unless another one may succeed.

        Raises:
            ConnectionFailed: The server is away, and has been for a while.
        """
        if isinstance(error, RPCError):
            if error.status == RPCStatusCode.NOT_FOUND:
                raise missing(key) from error
            if error.status not in _PASSING and not _is_cut_off(error):
                raise error
        elif await self._answers():
            # It is only slow: behind an outage, all have much to do.
            self._away.is_over()
            return
        # Whoever follows a run follows it through a restart of the server.
        self._away.lasts(asked)


class SessionClosed(Exception):
    """A session's workflow is closed, in the way that its text names."""

    def __init__(self, status: WorkflowExecutionStatus | None) -> None:
        super().__init__(status.name.lower().replace("_", " ") if status is not None else "closed")


def _looked_at(future: asyncio.Future[Any]) -> None:
    if not future.cancelled():
        future.exception()


def _may_be_sent_again(error: RPCError, request: BaseModel) -> bool:
    """Return whether an update failed for a reason that passes, and cannot be taken twice."""
    if error.status == RPCStatusCode.FAILED_PRECONDITION:
        # A workflow task has just failed. If the server has the update all the same, it knows its id.
        return True
    if _TOO_MANY in error.message:
        return True
    # Whether it arrived is not known, but its request id makes two of it one.
    passes = _is_cut_off(error) or _ABORTED in error.message
    return passes and bool(getattr(request, "request_id", None))


def _is_cut_off(error: RPCError) -> bool:
    """Return whether the connection broke under a request; Temporal's client has no status of its own for that."""
    return error.status == RPCStatusCode.UNKNOWN and "transport error" in error.message


def check_sendable(value: BaseModel, what: str) -> int:
    """Return the bytes of a value; raise `InvalidMessage` if no session takes it, or if it would change on its way."""
    data = payload_bytes(value)
    check_sent(data, what)
    try:
        from_json(to_json(value.model_dump(), bytes_mode="base64"), allow_inf_nan=False)
    except ValueError as error:
        raise InvalidMessage(
            f"the {what} holds a number that JSON has not, NaN or an infinity ({error}); send it as a text"
        ) from error
    return len(data)


class _Request:
    """A request that is sent until the session has taken it: in an update, or, if it is large, ahead of it."""

    def __init__(self, handle: _Handle, name: str, request: BaseModel, size: int) -> None:
        self._handle = handle
        self._name = name
        self._request = request
        self._is_large = name in MAY_BE_AHEAD and size > MAX_UPDATE_BYTES
        self._ahead: SentAhead | None = None
        self._id = str(uuid.uuid4())
        """By which the run knows the update if it comes again."""

    async def update(self, result_type: type[_R]) -> _R:
        """Execute the update."""
        carried = await self._carried()
        try:
            return await self._handle.execute_update(  # pyright: ignore[reportUnknownMemberType] -- the SDK's overloads
                self._name, carried, id=self._id, result_type=result_type
            )
        except WorkflowUpdateFailedError as error:
            self._id = str(uuid.uuid4())
            if _type_of(error) == NOT_HERE:
                self._ahead = None
            raise

    async def _carried(self) -> BaseModel:
        """Return what the update carries; what is large is sent ahead once, for as long as history takes more."""
        if self._ahead is None and self._is_large and await _history_bytes(self._handle) < _MAX_HISTORY_BYTES:
            ahead = SentAhead(sent_ahead=str(uuid.uuid4()))
            await self._handle.signal(SEND_AHEAD, args=[ahead.sent_ahead, self._request])  # pyright: ignore[reportUnknownMemberType] -- the SDK's overloads
            self._ahead = ahead
        return self._ahead or self._request


async def _history_bytes(handle: _Handle) -> int:
    return (await handle.describe()).raw_description.workflow_execution_info.history_size_bytes


def _is_for_next_run(error: WorkflowUpdateFailedError) -> bool:
    """Return whether the run continued as new under the update, or has not seen it, so that it is to be sent again."""
    return _type_of(error) in ("AcceptedUpdateCompletedWorkflow", _UNSEEN, NOT_HERE)


def _type_of(error: WorkflowUpdateFailedError) -> str | None:
    return error.cause.type if isinstance(error.cause, ApplicationError) else None


def _refusal(error: WorkflowUpdateFailedError) -> Exception:
    cause = error.cause
    if isinstance(cause, ApplicationError) and cause.type in REFUSALS:
        return REFUSALS[cause.type](cause.message)
    return error
