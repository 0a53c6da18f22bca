"""`Runner`: starts, answers, resumes, stops and follows invocations. It needs an app's name, and none of its code."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Collection, Mapping
from copy import copy
from typing import Any, Unpack

from temporalio.client import Client

from perdure.config import ConnectionConfig, connect
from perdure.credentials.store import CredentialStore
from perdure.journal.entries import Entry
from perdure.journal.events import Event
from perdure.journal.open_calls import PendingCall, SessionStatus
from perdure.messages.effects import Effect, EffectsPage
from perdure.messages.session import InvocationResult, InvocationView, SessionView, Trial
from perdure.plan.contents import types
from perdure.plan.nodes import CallLimit, Plan
from perdure.sessions.event_batches import EventBatch
from perdure.sessions.listing import ListedSession
from perdure.sessions.sessions import Door, RunnerOptions, Sessions
from perdure.sessions.transfers import ImportedSession, ResumedSession, TriggeredLog, WholeLog, fresh_id
from perdure.streams.hub import TokenHub
from perdure.temporal.payloads import adapt
from perdure.trajectories.given_logs import LogSource
from perdure.views.explanation import EXPLAINED, SessionExplanation


class Runner:
    """Starts, answers, resumes, stops and follows the invocations of one app. ADK: `runners.py`.

    `user_id` and `session_id` say whose session is meant, and which; calls with the same `request_id` count once. With
    `streaming`, a message, an answer or a resume has google.adk's agents answer piece by piece, whoever listens (ADK:
    `RunConfig.streaming_mode`). Every method but `create_session` raises `SessionNotFound` if there is no such session,
    and brings a session back whose workflow was terminated, timed out or failed, with its whole journal.
    """

    def __init__(
        self,
        app_name: str,
        client: Client,
        *,
        auto_create_session: bool = False,
        trial: Trial | None = None,
        streams: TokenHub | None = None,
        local_tools: bool = False,
        credentials: CredentialStore | None = None,
    ) -> None:
        """Make a runner on a connected client.

        Args:
            app_name: The app.
            client: A client of the Temporal server.
            auto_create_session: Create a session that does not exist when it gets its first message. As in ADK.
            trial: What new sessions are to do more often than they would; for proofs and tests.
            streams: Where the tokens come from that `streaming` shows: the hub of the workers in this process, or one
                that a `StreamClient` fills. Default: none, so all events come whole.
            local_tools: The app has some, so sessions created here need no change of runs before the first of them.
            credentials: Where secrets go that answers hold, as the workers' `WorkerConfig` says. Default: history.
        """
        self.app_name = app_name
        self._door: Door = Sessions(
            app_name,
            adapt(client),
            auto_create=auto_create_session,
            trial=trial,
            streams=streams,
            local_tools=local_tools,
            credentials=credentials,
        )

    @classmethod
    async def connect(
        cls, app_name: str, config: ConnectionConfig | None = None, **options: Unpack[RunnerOptions]
    ) -> Runner:
        """Connect to Temporal and return a runner; `options` are those of a runner.

        Raises:
            ConnectionFailed: No server answers.
        """
        return cls(app_name, await connect(config), **options)

    def behind(self, door: Callable[[Door], Door]) -> Runner:
        """Return a runner that reaches its sessions through another door alone, made of this one's."""
        runner = copy(self)
        runner._door = door(self._door)
        return runner

    async def create_session(
        self, *, user_id: str, session_id: str | None = None, state: Mapping[str, Any] | None = None
    ) -> SessionView:
        """Create a session, with a fresh id if none is given.

        Raises:
            SessionExists: There is one of this id.
        """
        return await self._door.session(user_id, session_id or fresh_id()).create(dict(state or {}))

    async def delete_session(self, *, user_id: str, session_id: str) -> None:
        """Delete a session, its log and its workflow's history. One that does not exist is no error, as in ADK."""
        await self._door.session(user_id, session_id).delete()

    async def change_state(self, *, user_id: str, session_id: str, state_delta: Mapping[str, Any]) -> Event:
        """Write into a session's state, whatever its invocations do; returns the event that says so.

        `temp:` keys are not kept. What an agent reads afterwards has the new values.

        Raises:
            SharedStateFull: The session has the keys, but its `user:` or `app:` keys are too large to be shared.
        """
        return await self._door.session(user_id, session_id).change_state(dict(state_delta))

    def run_async(
        self,
        *,
        user_id: str,
        session_id: str,
        new_message: types.Content | str | None = None,
        invocation_id: str | None = None,
        state_delta: Mapping[str, Any] | None = None,
        request_id: str | None = None,
        streaming: bool = False,
        live: bool = True,
        max_llm_calls: int | CallLimit | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> AsyncGenerator[Event, None]:
        """Start, answer or resume an invocation, and yield its agents' events until it waits, ends or is stopped.

        A `new_message` of function responses answers open calls; without a message, `invocation_id` is resumed.
        Dropping the generator does not stop the run. ADK: `Runner.run_async`.

        Args:
            invocation_id: What to resume, or what the answered calls must belong to.
            state_delta: Keys to write with the message; an answer and a resume take none.
            streaming: Also yield `partial` events while a model writes, which are not in the log: each holds the text
                since the last one, under the id of the event that will hold all of it. Where a model call is tried
                again, the text begins anew, under a greater `custom_metadata["perdure:attempt"]`.
            live: Yield events as they are logged; at the end, with `False`, they cost the worker less: see `follow`.
            max_llm_calls, metadata: As in `send_message`, `respond` and `resume`; an answer takes no limit.

        Raises:
            RequestRefused: The session did not take it; the subclass says why.
            InvocationFailed: A step failed.
        """
        return self._door.session(user_id, session_id).run(
            new_message,
            invocation_id=invocation_id,
            state_delta=state_delta,
            request_id=request_id,
            streaming=streaming,
            live=live,
            max_llm_calls=max_llm_calls,
            metadata=metadata,
        )

    async def send_message(
        self,
        *,
        user_id: str,
        session_id: str,
        message: types.Content | str,
        state_delta: Mapping[str, Any] | None = None,
        request_id: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        max_llm_calls: int | CallLimit | None = None,
        streaming: bool = False,
    ) -> InvocationResult:
        """Accept a message, which starts an invocation when its turn comes; returns at once.

        Args:
            state_delta: Keys to write with the message.
            metadata: Becomes the event's `custom_metadata`.
            max_llm_calls: Model calls after which the invocation waits for a resume; 0 and less are without limit.
                Default: as the app says. ADK: `RunConfig.max_llm_calls`.

        Raises:
            InvalidMessage: The message is empty, or holds function calls.
            QueueFull: Too many messages of the session wait for their turn.
            RequestIdTaken: Another message, answer or resume had the request id.
        """
        return await self._door.session(user_id, session_id).send(
            message,
            state_delta=state_delta,
            request_id=request_id,
            metadata=metadata,
            max_llm_calls=max_llm_calls,
            streaming=streaming,
        )

    async def respond(
        self,
        *,
        user_id: str,
        session_id: str,
        responses: Mapping[str, Any] | types.Content,
        invocation_id: str | None = None,
        request_id: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        streaming: bool = False,
    ) -> InvocationResult:
        """Answer open calls, all of one invocation; returns at once.

        Args:
            responses: Responses by call id, or a content of function responses.
            invocation_id: If given, what the calls must belong to.
            metadata: Who answered and why; becomes the event's `custom_metadata`.

        Raises:
            CallNotFound: A call was never made.
            CallAnswered: A call has its answer; the first one wins.
            MixedInvocations: The calls belong to several invocations.
            InvalidMessage: An answer is malformed.
            RequestIdTaken: Another message, answer or resume had the request id.
        """
        return await self._door.session(user_id, session_id).respond(
            responses, invocation_id=invocation_id, request_id=request_id, metadata=metadata, streaming=streaming
        )

    async def resume(
        self,
        *,
        user_id: str,
        session_id: str,
        invocation_id: str,
        fresh: bool = False,
        request_id: str | None = None,
        max_llm_calls: int | CallLimit | None = None,
        streaming: bool = False,
    ) -> InvocationResult:
        """Run a failed or stopped invocation on, or one that has made as many model calls as it may; returns at once.

        One that waits for answers, or has finished, is only reported.

        Args:
            fresh: First end the session's workflow and bring it back from its log, where no worker can go on with it
                as behind a way back to an older Perdure (`SessionStuck`). What completed is not run again.
            max_llm_calls: Model calls from here on. Default: as many as its message, or else the app, says.

        Raises:
            InvocationNotFound: The session has no such invocation.
            InvocationRunning: It is at work.
            NotResumable: The app is not resumable.
        """
        return await self._door.session(user_id, session_id).resume(
            invocation_id, fresh=fresh, request_id=request_id, max_llm_calls=max_llm_calls, streaming=streaming
        )

    async def stop(
        self, *, user_id: str, session_id: str, invocation_id: str, reason: str | None = None
    ) -> InvocationResult:
        """Stop an invocation: cancel its activities; returns when it is settled. A resumable app can resume it.

        Raises:
            InvocationNotFound: The session has no such invocation.
            InvocationFinished: It has finished.
        """
        return await self._door.session(user_id, session_id).stop(invocation_id, reason=reason)

    async def resume_from(
        self,
        events: LogSource,
        *,
        user_id: str,
        session_id: str | None = None,
        state: Mapping[str, Any] | None = None,
        replace: bool = False,
        allow_pending_calls: bool = False,
    ) -> ResumedSession:
        """Drive an event log on, in a session made of it; returns at once, as `send_message` does.

        The last event is the trigger: a user's message; a user's response to a long-running call or to a call without
        response (its tool does not run, the model reacts to the response); an answer to a confirmation; or an agent's
        event behind which its invocation is not over. A rewind, a summary or a change of state behind it is none.

        Args:
            events: The log: events of Perdure or of ADK; or, as objects or as JSON, what `import_session` takes, of
                which the names and Perdure's own entries are not looked at.
            session_id: The new session's id. Default: a fresh one.
            state: The state that the log starts from. Default: as the log tells, if it does.
            replace: A session of this id gets this log; the log that it had is kept under another id.
            allow_pending_calls: Calls in the log that have no response may run. Only for a log that you trust.

        Raises:
            InvalidTrajectory: The events are no log, or the last one cannot drive a turn.
            SessionExists: There is a session of this id, and `replace` is not set.
            SessionUnreadable: The session cannot be replaced, or was replaced by another client meanwhile.
        """
        session = self._door.session(user_id, session_id or fresh_id())
        log = await TriggeredLog.read(events, state=state, allow_pending_calls=allow_pending_calls)
        return await session.drive(log, replace=replace)

    async def import_session(
        self,
        log: LogSource,
        *,
        user_id: str | None = None,
        session_id: str | None = None,
        replace: bool = False,
        allow_pending_calls: bool = False,
        damaged: bool = False,
    ) -> ImportedSession:
        """Make a session of a log; nothing in it is set going.

        Args:
            log: An export, as text or lines; a session of ADK or its events, as JSON or objects; or a `GivenLog`.
            user_id: Whose session. Default: the log's.
            session_id: The session's id. Default: the log's; where it names none, a fresh one.
            replace: A session of this id gets this log; the log that it had is kept under another id.
            allow_pending_calls: Calls without a response may run when their invocation goes on: of a file you trust.
            damaged: The log is an export that was cut or changed: take the events that are left.

        Raises:
            InvalidTrajectory: A line is malformed, or the lines are no log.
            SessionExists: There is a session of this id, and `replace` is not set.
            SessionUnreadable: The session cannot be replaced, or was replaced by another client meanwhile.
        """
        user_id = self._door.whose(user_id)
        whole = await WholeLog.read(log, allow_pending_calls=allow_pending_calls, damaged=damaged)
        return await self._door.session(*whole.names(user_id, session_id)).take(whole, replace=replace)

    def export_session(
        self, *, user_id: str, session_id: str, journal: bool = False, shown_as: Callable[[Entry], Entry] | None = None
    ) -> AsyncGenerator[str, None]:
        """Yield a session as lines of JSON, without line ends: a header, then ADK's events.

        Args:
            journal: Add Perdure's own entries, so that an import can answer and resume what waits, failed or stopped.
            shown_as: What stands in the file for an entry. Default: the entry.

        Raises:
            SessionUnreadable: Its history does not hold the whole journal.
        """
        return self._door.session(user_id, session_id).export(journal=journal, shown_as=shown_as)

    async def get_session(self, *, user_id: str, session_id: str) -> SessionView:
        """Return a session: its state, its invocations and their status."""
        return await self._door.session(user_id, session_id).view()

    async def list_sessions(
        self, *, user_id: str | None = None, status: Collection[SessionStatus] = ()
    ) -> list[ListedSession]:
        """Return the app's sessions, or one user's, or those of some statuses; listings may be a moment behind."""
        return await self._door.list(user_id, status)

    async def invocation(self, *, user_id: str, session_id: str, invocation_id: str) -> InvocationView:
        """Return an invocation.

        Raises:
            InvocationNotFound: The session has no such invocation.
        """
        return await self._door.session(user_id, session_id).invocation(invocation_id)

    async def plan(self, *, user_id: str, session_id: str, invocation_id: str) -> Plan | None:
        """Return the plan that an invocation is pinned to; `None` while it is queued."""
        return await self._door.session(user_id, session_id).plan(invocation_id)

    async def pending(
        self, *, user_id: str | None = None, session_id: str | None = None
    ) -> list[tuple[ListedSession, PendingCall]]:
        """Return the open calls of one session, of a user's sessions, or of all, oldest first.

        Of several sessions those that cannot be read are left out, and logged.

        Raises:
            SessionUnreadable: The history of the one session that was asked for does not hold its whole journal.
        """
        user_id = self._door.whose(user_id)
        if user_id is not None and session_id is not None:
            return await self._door.session(user_id, session_id).pending()
        return await self._door.pending(user_id, session_id)

    async def effects(self, *, user_id: str, session_id: str) -> tuple[Effect, ...]:
        """Return the ledger of a session: each tool call, its attempts and times, and what became of it."""
        return await self._door.session(user_id, session_id).effects()

    async def effects_page(self, *, user_id: str, session_id: str, since: int = 0) -> EffectsPage:
        """Return a page of the ledger, from an offset on: as many calls as the answer of a query takes."""
        return await self._door.session(user_id, session_id).effects_page(since)

    async def explain(
        self, *, user_id: str, session_id: str, invocation_id: str | None = None, since: int = 0, limit: int = EXPLAINED
    ) -> SessionExplanation:
        """Return what a session awaits, why it does not go on, and what a resume would do; nothing is done.

        Args:
            invocation_id: Explain only this invocation. Default: those that are not finished, or the newest.
            since: How many of these are passed over.
            limit: How many are explained at the most; `next` says where to go on.

        Raises:
            InvocationNotFound: The session has no such invocation.
            SessionUnreadable: Its history does not hold the whole journal.
        """
        session = self._door.session(user_id, session_id)
        return await session.explain(invocation_id=invocation_id, since=since, limit=limit)

    def events(
        self, *, user_id: str, session_id: str, since: int = 0, follow: bool = False, streaming: bool = False
    ) -> AsyncGenerator[Event, None]:
        """Yield the log's events from an offset on; with `follow`, for ever, also what is kept; see `run_async`."""
        return self._door.session(user_id, session_id).events(since=since, follow=follow, streaming=streaming)

    async def grown(self, *, user_id: str, session_id: str, length: int) -> int:
        """Wait until a session's journal has another length than `length`; returns it. That costs no history."""
        return await self._door.session(user_id, session_id).grown(length)

    def event_batches(
        self, *, user_id: str, session_id: str, since: int = 0, patience: float = 60.0, streaming: bool = False
    ) -> AsyncGenerator[EventBatch, None]:
        """Yield the log's events from an offset on for ever, some at a time; all who follow one session share the work.

        An empty batch comes after `patience` seconds of silence. With `streaming`, each reads by itself: `run_async`.
        """
        session = self._door.session(user_id, session_id)
        return session.event_batches(since=since, patience=patience, streaming=streaming)

    async def event_count(self, *, user_id: str, session_id: str, at_least: int = 0) -> int:
        """Return the number of events in a session's log; where a follower here knows of `at_least` so many, theirs."""
        return await self._door.session(user_id, session_id).event_count(at_least=at_least)

    def follow(
        self,
        *,
        user_id: str,
        session_id: str,
        invocation_id: str,
        since: int = 0,
        streaming: bool = False,
        live: bool = True,
    ) -> AsyncGenerator[Event, None]:
        """Yield the events of an invocation's agents from an offset of the log until it waits, ends, stops or fails.

        Args:
            streaming: Also yield `partial` events, which are not in the log: see `run_async`.
            live: Yield events as they are logged. Else, unless `streaming`, all as the agents come to rest: the session
                says when, by an update (if at most five wait). That costs one look, and history five events or so.

        Raises:
            InvocationFailed: A step failed, or the session's workflow was closed meanwhile.
        """
        session = self._door.session(user_id, session_id)
        return session.follow(invocation_id, since=since, streaming=streaming, live=live)

    def expect_tokens(self, *, user_id: str, session_id: str) -> Callable[[], None]:
        """Ask workers to stream what the session's models write: for half a minute, until `follow` or `events` reads.

        Called before a message is sent; what it returns takes that back, for when the message could not be sent.
        """
        return self._door.session(user_id, session_id).expect_tokens()
