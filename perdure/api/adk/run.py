"""Routes that run agents: `/run` returns a turn's events at its end, `/run_sse` as they come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import ExitStack, aclosing
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

from fastapi import APIRouter, HTTPException, Request, Response
from fastapi.responses import StreamingResponse
from google.genai import types

from perdure.api.adk.schemas import RunAgentRequest
from perdure.api.auth.access import call_limit, check_state
from perdure.api.auth.identity import Identity, IdentityOf
from perdure.api.auth.standing import Standing, StandingOf
from perdure.api.base.attribution import answer_metadata
from perdure.api.base.backend import Backend, BackendOf, check_reserved
from perdure.api.base.bodies import CheckedRoute
from perdure.api.base.statuses import error_frame
from perdure.api.base.streams import data_frame, event_frame, until_gone
from perdure.api.v1.addressing import IdempotencyKey
from perdure.client import Runner
from perdure.errors import InvocationFinished, SessionNotFound
from perdure.journal.events import Event
from perdure.messages.keys import SessionKey
from perdure.messages.session import InvocationResult

_GONE = 499
"""What nobody reads, since the client has gone."""

router = APIRouter(route_class=CheckedRoute, tags=["run"])


@dataclass(frozen=True)
class _Started:
    """An invocation that was set going."""

    runner: Runner
    key: SessionKey
    result: InvocationResult
    streaming: bool = False
    live: bool = True

    def events(self) -> AsyncGenerator[Event, None]:
        return self.runner.follow(
            **self.key.arguments,
            invocation_id=self.result.invocation.id,
            since=self.result.offset,
            streaming=self.streaming,
            live=self.live,
        )


@dataclass(frozen=True)
class _Sender:
    """The sender of a request, the key by which it is known if it comes again, and how its answer is to come."""

    identity: Identity
    key: str | None
    streaming: bool = False

    def attributed(self, metadata: dict[str, Any] | None) -> dict[str, Any] | None:
        """Add who answers to an answer's metadata, where somebody has to say who they are."""
        if self.identity.subject is None:
            return metadata
        return {**(metadata or {}), **answer_metadata(self.identity)}


@router.post("/run", response_model=list[Event])
async def run(
    body: RunAgentRequest,
    request: Request,
    backend: BackendOf,
    identity: IdentityOf,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Run until the invocation waits or ends, and return its events. Whoever leaves before does not stop the run."""
    # Nobody sees an event before the last one.
    turn = replace(await _begin(body, backend, _Sender(identity, idempotency_key)), live=False)
    gone = asyncio.create_task(_disconnected(request))
    try:
        found = [event.to_json() async for event in until_gone(turn.events(), backend.closing, gone)]
    finally:
        gone.cancel()
    return Response(f"[{','.join(found)}]", _GONE if gone.done() else 200, media_type="application/json")


@router.post("/run_sse", response_class=StreamingResponse)
async def run_sse(
    body: RunAgentRequest,
    backend: BackendOf,
    identity: IdentityOf,
    standing: StandingOf,
    idempotency_key: IdempotencyKey = None,
) -> StreamingResponse:
    """Run, and stream the events as they are logged. Whoever leaves does not stop the run."""
    if body.streaming and body.service_tier == "deferred":
        raise HTTPException(422, "the service tier 'deferred' cannot stream")
    turn = await _begin(body, backend, _Sender(identity, idempotency_key, body.streaming))
    frames = _frames(turn, backend, whole=body.function_call_event_id is not None, standing=standing)
    return StreamingResponse(frames, media_type="text/event-stream")


async def _begin(body: RunAgentRequest, backend: Backend, sender: _Sender) -> _Started:
    app = body.app_name or backend.default_app
    if not app:
        raise HTTPException(400, "app_name is required when ADK_DEFAULT_APP_NAME is not set")
    check_reserved(app)
    # Approvers may answer over ADK's routes, too, and say nothing beside it.
    deed = "answer" if _only_answers(body.new_message) else "run"
    key = SessionKey(app, body.user_id, body.session_id)
    runner = backend.runner_of(key, deed=deed, as_adk=True)
    check_state(sender.identity, body.state_delta)
    with ExitStack() as unless_sent:
        if sender.streaming:
            unless_sent.callback(runner.expect_tokens(**key.arguments))
        try:
            async with backend.patience():
                await backend.check_served(app)
                result = await _send(body, runner, key, sender)
        except SessionNotFound as error:
            raise HTTPException(404, f"Session not found: {key.session}") from error
        unless_sent.pop_all()
    return _Started(runner, key, result, sender.streaming)


def _only_answers(message: types.Content | None) -> bool:
    parts = message.parts or [] if message is not None else []
    return bool(parts) and all(part.model_dump(exclude_none=True).keys() == {"function_response"} for part in parts)


async def _send(body: RunAgentRequest, runner: Runner, key: SessionKey, sender: _Sender) -> InvocationResult:
    if body.new_message is None:
        return await _resume(body, runner, key, sender)
    message = body.new_message
    answers = [part.function_response for part in message.parts or [] if part.function_response]
    if not answers:
        if body.invocation_id is not None:
            raise HTTPException(400, "an invocationId goes with function responses, or without a newMessage to resume")
        return await runner.send_message(
            **key.arguments,
            message=message,
            state_delta=body.state_delta,
            metadata=body.custom_metadata,
            request_id=sender.key,
            max_llm_calls=call_limit(sender.identity, body.max_llm_calls),
            streaming=sender.streaming,
        )
    return await _answer(body, runner, key, message, answers, sender)


async def _answer(
    body: RunAgentRequest,
    runner: Runner,
    key: SessionKey,
    message: types.Content,
    answers: list[types.FunctionResponse],
    sender: _Sender,
) -> InvocationResult:
    if body.state_delta:
        raise HTTPException(400, "a stateDelta goes with a message; change the state by a request of its own (PATCH)")
    if body.max_llm_calls is not None:
        raise HTTPException(400, "maxLlmCalls goes with a message, or with a resume")
    if not all(answer.id for answer in answers):
        raise HTTPException(400, "a function response has no id; give it the id of the call that it answers")
    # As in ADK, the calls themselves say which invocation is meant.
    return await runner.respond(
        **key.arguments,
        responses=message,
        request_id=sender.key,
        metadata=sender.attributed(body.custom_metadata),
        streaming=sender.streaming,
    )


async def _resume(body: RunAgentRequest, runner: Runner, key: SessionKey, sender: _Sender) -> InvocationResult:
    if body.invocation_id is None:
        raise HTTPException(400, "give a newMessage, or the invocationId of an invocation to resume")
    if body.state_delta:
        raise HTTPException(400, "a stateDelta goes with a newMessage; a resume takes none")
    result = await runner.resume(
        **key.arguments,
        invocation_id=body.invocation_id,
        request_id=sender.key,
        max_llm_calls=call_limit(sender.identity, body.max_llm_calls),
        streaming=sender.streaming,
    )
    if result.invocation.status == "finished":
        raise InvocationFinished(f"invocation {body.invocation_id!r} has finished; send a new message")
    return result


async def _frames(turn: _Started, backend: Backend, *, whole: bool, standing: Standing) -> AsyncIterator[str]:
    plan = backend.plans.get(turn.key.app)
    adk = plan.adk if plan is not None else None
    try:
        async with aclosing(until_gone(turn.events(), backend.closing, standing=standing)) as events:
            async for event in events:
                if event.partial and adk is not None and adk.major < 2:
                    # In 1.x each piece has an id of its own; in 2.x all have that of the whole answer.
                    event = event.model_copy(update={"id": str(uuid4())})
                for part in [event] if whole else split_artifacts(event):
                    yield event_frame(part)
    except Exception as error:
        # The status is sent already, so the stream itself says how it ends.
        yield data_frame(error_frame(error, adk))


def split_artifacts(event: Event) -> list[Event]:
    """Split an event with content and artifacts into one of each, of one id. As in ADK."""
    if event.content is None or not event.actions.artifact_delta:
        return [event]
    without = event.actions.model_copy(update={"artifact_delta": {}})
    return [event.model_copy(update={"actions": without}), event.model_copy(update={"content": None})]


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
