"""A model call: from plan and log to a request, from the model's answer to an event."""

from __future__ import annotations

from collections.abc import AsyncIterable, Coroutine
from contextlib import suppress
from dataclasses import astuple
from typing import Any, cast

from perdure.agents.artifacts import SessionArtifacts
from perdure.agents.context import ReadonlyContext
from perdure.agents.placeholders import artifact_names, resolve_instruction
from perdure.artifacts.service import ArtifactService
from perdure.compiler.registry import Registry
from perdure.errors import ModelError
from perdure.journal.events import Event, ModelAnswer
from perdure.journal.projection import Projection
from perdure.models.base import BaseLlm, LlmRequest, LlmResponse
from perdure.plan.contents import types
from perdure.plan.nodes import LlmNode, Plan
from perdure.steps.artifacts import offered_artifacts, placeholder_texts
from perdure.steps.base import ModelCall, Place, Snapshot, StepOutput, llm_node
from perdure.steps.debug_lines import log_request
from perdure.steps.prompt import build_config, build_contents, without_session_ids
from perdure.steps.structured_answers import AnswerCalls
from perdure.steps.user_code import CodeRunner
from perdure.streams.hub import Piece, Writer
from perdure.telemetry.step import tell_provider

_MAX_VALUE = 100


class NoResponse(ModelError):
    """A model yielded nothing: a defect, more often than not, so it is asked again a few times only."""


class ModelCalls:
    """Calls the models of one app's agents."""

    def __init__(self, registry: Registry, code: CodeRunner, artifacts: ArtifactService | None) -> None:
        self._registry = registry
        self._code = code
        self._artifacts = artifacts
        self._answers = AnswerCalls(registry, code)

    async def call(self, at: Place, session: Snapshot, call: ModelCall, writer: Writer | None) -> StepOutput:
        """Ask an agent's model, as `Steps.call_model` says."""
        plan, node = llm_node(session.projection, at, call.plan)
        model = self._registry.model(node)
        request = await self._request(session, plan, node, at, call, takes_both=model.output_schema_and_tools)
        if not model.pairs_by_id:
            request = request.model_copy(update={"contents": without_session_ids(request.contents)})
        tell_provider(model.provider)
        log_request(request.model, request.contents, request.config)
        response = await self._code.run_async(_generate(model, request, writer))
        if response is None:
            raise NoResponse(
                f"model {request.model!r} of agent {request.agent!r} yielded no response"
                " (partial ones do not count); yield an LlmResponse, or raise a ModelError that says why there is none",
                retryable=True,
            )
        return StepOutput(events=(await self._answers.checked(node, _event(response)),))

    def prepare(self, at: Place, session: Snapshot, call: ModelCall) -> None:
        """Make the contents of a call's request, as `Steps.prepare_model_call` says."""
        with suppress(Exception):
            _contents(session, llm_node(session.projection, at, call.plan)[1], at, call)

    async def _request(
        self, snapshot: Snapshot, plan: Plan, node: LlmNode, at: Place, call: ModelCall, *, takes_both: bool
    ) -> LlmRequest:
        session = snapshot.projection
        state = session.visible_state(at.invocation_id)
        # Before anything is awaited: a parallel branch may let the worker's copy of the log grow meanwhile.
        contents = _contents(snapshot, node, at, call)
        artifacts = SessionArtifacts(self._artifacts, *astuple(at.key), wait=self._code.wait)
        if node.dynamic_instruction:
            context = _context(session, node, at, artifacts, state)
            instruction = await self._code.run(self._registry.instruction(node.name), context)
        else:
            instruction = await self._instruction(node, state, artifacts)
        if self._registry.loads_artifacts(node.name):
            told, loaded = await self._code.run_async(offered_artifacts(contents, artifacts))
            instruction = "\n\n".join(filter(None, (instruction, told)))
            contents = [*contents, *loaded]
        return LlmRequest(
            model=node.model,
            contents=contents,
            config=build_config(plan, node, instruction, takes_both=takes_both),
            agent=node.name,
            call_index=call.index,
        )

    async def _instruction(self, node: LlmNode, state: dict[str, Any], artifacts: SessionArtifacts) -> str:
        names = artifact_names(node.instruction)
        texts = await self._code.run_async(placeholder_texts(names, artifacts)) if names else {}
        return resolve_instruction(node.instruction, state, texts)


def _contents(session: Snapshot, node: LlmNode, at: Place, call: ModelCall) -> list[types.Content]:
    """Return what of a session an agent's model sees, of which the session's memo keeps most."""
    return build_contents(
        session.projection.own_events,
        agent=node.name,
        branch=at.branch,
        include_contents=node.include_contents,
        begun_after=call.begun_after,
        memo=session.memo,
    )


def _event(response: LlmResponse) -> Event:
    fields = {name: getattr(response, name) for name in ModelAnswer.model_fields if name != "partial"}
    fields["content"] = _without_responses(response.content)
    return Event(**{name: value for name, value in fields.items() if value is not None})


def _without_responses(content: types.Content | None) -> types.Content | None:
    """Leave out what a model writes as the response of a tool: it would stand for one in the log."""
    if content is None or not any(part.function_response for part in content.parts or []):
        return content
    return content.model_copy(update={"parts": [part for part in content.parts or [] if not part.function_response]})


def _context(
    session: Projection, node: LlmNode, at: Place, artifacts: SessionArtifacts, state: dict[str, Any]
) -> ReadonlyContext:
    return ReadonlyContext(
        invocation_id=at.invocation_id,
        agent_name=node.name,
        state=state,
        user_content=session.invocations[at.invocation_id].message.content,
        app_name=artifacts.app_name,
        user_id=artifacts.user_id,
        session_id=artifacts.session_id,
        artifacts=artifacts,
    )


async def _generate(model: BaseLlm, request: LlmRequest, writer: Writer | None) -> LlmResponse | None:
    last: LlmResponse | None = None
    # What a subclass brings may be anything, whatever its signature says.
    responses: Any = model.generate_content_async(request, stream=writer is not None)
    if not isinstance(responses, AsyncIterable):
        if isinstance(responses, Coroutine):
            responses.close()
        raise _no_generator(model, request, "its generate_content_async is no async generator")
    async for response in responses:  # pyright: ignore[reportUnknownVariableType] -- see above
        if not isinstance(response, LlmResponse):
            raise _no_generator(model, request, f"it yielded {_brief(cast(object, response))}")
        if not response.partial:
            last = response
        elif writer is not None:
            writer.add(*_pieces(response))
    return last


def _no_generator(model: BaseLlm, request: LlmRequest, what: str) -> ModelError:
    return ModelError(
        f"model {request.model!r} of agent {request.agent!r} cannot be used: {what}; {type(model).__name__} must yield"
        " LlmResponse objects",
        retryable=False,
    )


def _brief(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _MAX_VALUE else f"{text[:_MAX_VALUE]}…"


def _pieces(response: LlmResponse) -> list[Piece]:
    """Return what is shown of a part of an answer: text and thoughts; calls get their ids when they are logged."""
    parts = (response.content.parts or []) if response.content is not None else []
    return [Piece(part.text, bool(part.thought)) for part in parts if part.text]
