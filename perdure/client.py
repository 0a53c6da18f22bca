"""`Runner`: starts, answers, resumes, stops and follows invocations. It needs an app's name, and none of its code."""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, Mapping
from contextlib import ExitStack, aclosing
from functools import partial
from typing import Any

from google.genai import types
from pydantic import ValidationError
from temporalio.client import Client

from perdure.config import ConnectionConfig, connect
from perdure.errors import InvalidMessage, InvocationRunning, SessionNotFound
from perdure.journal.events import USER, Event, user_content
from perdure.messages.session import (
    RESPOND,
    RESUME,
    SEND_MESSAGE,
    STOP,
    AnswerInput,
    InvocationInput,
    InvocationResult,
    MessageInput,
    SessionView,
    Trial,
)
from perdure.plan.nodes import CallLimit
from perdure.rules.intake import response_part
from perdure.sessions.inspecting import Inspecting
from perdure.sessions.log_reader import LogReader
from perdure.sessions.sessions import Sessions
from perdure.sessions.transfers import Transferring, Transfers
from perdure.streams.hub import TokenHub
from perdure.temporal.payloads import adapt


class Runner(Transferring, Inspecting):
    """Starts, answers, resumes, stops and follows the invocations of one app. ADK: `runners.py`.

    Every method but `create_session` raises `SessionNotFound` if there is no such session, and brings a session back
    whose workflow was terminated, timed out or failed, with its whole journal.
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
        """
        self.app_name = app_name
        self._auto_create = auto_create_session
        self._client = adapt(client)
        self._sessions = Sessions(app_name, self._client, trial=trial, local_tools=local_tools)
        self._transfers = Transfers(app_name, self._client, trial=trial)
        self._reader = LogReader(self._client, self._sessions, streams)

    @classmethod
    async def connect(
        cls,
        app_name: str,
        config: ConnectionConfig | None = None,
        *,
        auto_create_session: bool = False,
        streams: TokenHub | None = None,
        local_tools: bool = False,
    ) -> Runner:
        """Connect to Temporal and return a runner.

        Raises:
            ConnectionFailed: No server answers.
        """
        client = await connect(config)
        return cls(app_name, client, auto_create_session=auto_create_session, streams=streams, local_tools=local_tools)

    async def create_session(
        self, *, user_id: str, session_id: str | None = None, state: Mapping[str, Any] | None = None
    ) -> SessionView:
        """Create a session, with a fresh id if none is given.

        Raises:
            SessionExists: There is one of this id.
        """
        return await self._sessions.create(self._key(user_id, session_id or str(uuid.uuid4())), dict(state or {}))

    async def delete_session(self, *, user_id: str, session_id: str) -> None:
        """Delete a session, its log and its workflow's history. One that does not exist is no error, as in ADK."""
        await self._sessions.delete(self._key(user_id, session_id))

    async def change_state(self, *, user_id: str, session_id: str, state_delta: Mapping[str, Any]) -> Event:
        """Write into a session's state, whatever its invocations do; returns the event that says so.

        `temp:` keys are not kept. What an agent reads afterwards has the new values.

        Raises:
            SharedStateFull: The session has the keys, but its `user:` or `app:` keys are too large to be shared.
        """
        return await self._sessions.change_state(self._key(user_id, session_id), dict(state_delta))

    async def run_async(
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
    ) -> AsyncGenerator[Event, None]:
        """Start, answer or resume an invocation, and yield its agents' events until it waits, ends or is stopped.

        A `new_message` of function responses answers open calls; without a message, `invocation_id` is resumed.
        Dropping the generator does not stop the run. ADK: `Runner.run_async`.

        Args:
            user_id: Whose session.
            session_id: Which session.
            new_message: A text, or a content.
            invocation_id: What to resume, or what the answered calls must belong to.
            state_delta: Keys to write with the message.
            request_id: A retried call with the same id starts one invocation.
            streaming: Also yield `partial` events while a model writes: each holds the text since the last one, under
                the id of the event that will hold all of it. They are not in the log, and need `streams`. Where a model
                call is tried again, the text begins anew, under a greater `custom_metadata["perdure:attempt"]`.
            live: Yield events as they are logged; at the end, with `False`, they cost the worker less: see `follow`.
            max_llm_calls: As in `send_message`, or, of a resume, as in `resume`; an answer takes none.

        Raises:
            RequestRefused: The session did not take it; the subclass says why.
            InvocationFailed: A step failed.
        """
        session = self._key(user_id, session_id).arguments
        with ExitStack() as unless_sent:
            unless_sent.callback(self.expect_tokens(**session) if streaming else lambda: None)
            if new_message is None:
                if invocation_id is None:
                    raise InvalidMessage("give a new_message, or the invocation_id of an invocation to resume")
                resume = partial(self.resume, **session, invocation_id=invocation_id)
                result = await resume(request_id=request_id, max_llm_calls=max_llm_calls)
            else:
                content = user_content(new_message) if isinstance(new_message, str) else new_message
                respond, send = partial(self.respond, **session), partial(self.send_message, **session)
                if any(part.function_response for part in content.parts or []):
                    if max_llm_calls is not None:
                        raise InvalidMessage("max_llm_calls goes with a message, or with a resume")
                    result = await respond(responses=content, invocation_id=invocation_id, request_id=request_id)
                elif invocation_id is not None:
                    raise InvalidMessage("an invocation_id goes with function responses, or with no message to resume")
                else:
                    send = partial(send, max_llm_calls=max_llm_calls)
                    result = await send(message=content, state_delta=state_delta, request_id=request_id)
            unless_sent.pop_all()
        follow = partial(self.follow, **session, invocation_id=result.invocation.id, since=result.offset)
        async with aclosing(follow(streaming=streaming, live=live)) as events:
            async for event in events:
                yield event

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
    ) -> InvocationResult:
        """Accept a message, which starts an invocation when its turn comes; returns at once.

        Args:
            user_id: Whose session.
            session_id: Which session.
            message: A text, or a content.
            state_delta: Keys to write with the message.
            request_id: A retried call with the same id starts one invocation.
            metadata: Becomes the event's `custom_metadata`.
            max_llm_calls: Model calls that the invocation may make, after which it waits for a resume; 0 and less are
                without limit. Default: as the app says. ADK: `RunConfig.max_llm_calls`.

        Raises:
            InvalidMessage: The message is empty, or holds function calls.
            QueueFull: Too many messages of the session wait for their turn.
            RequestIdTaken: Another message, answer or resume had the request id.
        """
        content = user_content(message) if isinstance(message, str) else message
        request = MessageInput(
            content=content,
            state_delta=dict(state_delta or {}),
            request_id=request_id or str(uuid.uuid4()),
            metadata=dict(metadata) if metadata is not None else None,
            max_llm_calls=_call_limit(max_llm_calls),
        )
        try:
            return await self._sessions.update(self._key(user_id, session_id), SEND_MESSAGE, request)
        except SessionNotFound:
            if not self._auto_create:
                raise
        await self._sessions.ensure(self._key(user_id, session_id))
        return await self._sessions.update(self._key(user_id, session_id), SEND_MESSAGE, request)

    async def respond(
        self,
        *,
        user_id: str,
        session_id: str,
        responses: Mapping[str, Any] | types.Content,
        invocation_id: str | None = None,
        request_id: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> InvocationResult:
        """Answer open calls, all of one invocation; returns at once.

        Args:
            user_id: Whose session.
            session_id: Which session.
            responses: Responses by call id, or a content of function responses.
            invocation_id: If given, what the calls must belong to.
            request_id: A retried answer with the same id is not refused as a second one.
            metadata: Who answered and why; becomes the event's `custom_metadata`.

        Raises:
            CallNotFound: A call was never made.
            CallAnswered: A call has its answer; the first one wins.
            MixedInvocations: The calls belong to several invocations.
            InvalidMessage: An answer is malformed.
            RequestIdTaken: Another message, answer or resume had the request id.
        """
        if not isinstance(responses, types.Content):
            parts = [response_part(call_id, response) for call_id, response in responses.items()]
            responses = types.Content(role=USER, parts=parts)
        request = AnswerInput(
            content=responses,
            invocation_id=invocation_id,
            request_id=request_id or str(uuid.uuid4()),
            metadata=dict(metadata) if metadata is not None else None,
        )
        return await self._sessions.update(self._key(user_id, session_id), RESPOND, request)

    async def resume(
        self,
        *,
        user_id: str,
        session_id: str,
        invocation_id: str,
        fresh: bool = False,
        request_id: str | None = None,
        max_llm_calls: int | CallLimit | None = None,
    ) -> InvocationResult:
        """Run a failed or stopped invocation on, or one that has made as many model calls as it may; returns at once.

        One that waits for answers, or has finished, is only reported.

        Args:
            user_id: Whose session.
            session_id: Which session.
            invocation_id: What to run on.
            fresh: First end the session's workflow and bring it back from its log, for a session that no worker can go
                on with since its custom agents' code changed (`SessionStuck`). Its invocations are entered again with
                the code of today; what completed is not run again, what was at work is.
            request_id: A retried resume with the same id runs nothing on a second time. Default: none.
            max_llm_calls: Model calls that the invocation may make from here on, counted anew. Default: as many as its
                message, or else the app, says.

        Raises:
            InvocationNotFound: The session has no such invocation.
            InvocationRunning: It is at work.
            NotResumable: The app is not resumable.
        """
        allowed = _call_limit(max_llm_calls)
        request = InvocationInput(invocation_id=invocation_id, request_id=request_id, max_llm_calls=allowed)
        if not fresh:
            return await self._sessions.update(self._key(user_id, session_id), RESUME, request)
        offset = await self._sessions.take_over(self._key(user_id, session_id))
        try:
            return await self._sessions.update(self._key(user_id, session_id), RESUME, request)
        except InvocationRunning:
            # It was at work, and is again.
            view = await self._sessions.invocation(self._key(user_id, session_id), invocation_id)
            return InvocationResult(invocation=view, offset=offset)

    async def stop(
        self, *, user_id: str, session_id: str, invocation_id: str, reason: str | None = None
    ) -> InvocationResult:
        """Stop an invocation: cancel its activities; returns when it is settled. A resumable app can resume it.

        Raises:
            InvocationNotFound: The session has no such invocation.
            InvocationFinished: It has finished.
        """
        request = InvocationInput(invocation_id=invocation_id, reason=reason)
        return await self._sessions.update(self._key(user_id, session_id), STOP, request)


def _call_limit(given: int | CallLimit | None) -> CallLimit | None:
    """Return a number of model calls as it is sent; raise `InvalidMessage` if it is none."""
    if given is None or isinstance(given, CallLimit):
        return given
    try:
        return CallLimit(most=given)
    except ValidationError as error:
        raise InvalidMessage(f"max_llm_calls is {given!r}; give a whole number, 0 or less for no limit") from error
