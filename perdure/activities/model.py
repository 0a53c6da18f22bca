"""The model activity: makes a request of plan and log, and an event of the model's answer."""

from __future__ import annotations

from collections.abc import AsyncIterable, Coroutine, Generator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, cast

from temporalio import activity
from temporalio.exceptions import ApplicationError

from perdure.activities.artifacts import offered_artifacts, placeholder_texts
from perdure.activities.journal_cache import JournalCache, Snapshot
from perdure.activities.payload_checks import check_bytes, check_size, not_registered, told
from perdure.activities.user_code import CodeRunner, telling
from perdure.agents.artifacts import SessionArtifacts
from perdure.agents.custom import ReadonlyContext
from perdure.agents.placeholders import artifact_names, resolve_instruction
from perdure.artifacts.service import ArtifactService
from perdure.compiler.registry import NotRegistered, Registry
from perdure.errors import ArtifactError, DefinitionError, ModelError, message_of
from perdure.journal.entries import MAX_EVENT_BYTES
from perdure.journal.events import Event, ModelAnswer
from perdure.journal.projection import Projection
from perdure.logs import bound
from perdure.messages.rollout import Rollout
from perdure.messages.session import CALL_MODEL, ModelInput, ModelOutput, split_workflow_id
from perdure.models.base import BaseLlm, LlmRequest, LlmResponse
from perdure.plan.nodes import LlmNode, Plan
from perdure.rules.model_answers import derived_id, logged_size
from perdure.steps.prompt import build_config, build_contents, without_session_ids
from perdure.streams.hub import Draft, Piece, TokenHub, Writer
from perdure.telemetry.step import tell, tell_provider

_DEFECT_ATTEMPTS = 3
_MAX_VALUE = 100

_MAX_PAUSE = 86_400.0
"""Seconds; quotas that are counted by the day come back then."""


class ModelActivity:
    """The activity that calls the models of one app."""

    def __init__(
        self,
        registry: Registry,
        journals: JournalCache,
        code: CodeRunner,
        rollout: Rollout,
        artifacts: ArtifactService | None = None,
        streams: TokenHub | None = None,
    ) -> None:
        self._registry = registry
        self._artifacts = artifacts
        self._journals = journals
        self._code = code
        self._rollout = rollout
        self._streams = streams

    @activity.defn(name=CALL_MODEL)
    async def call(self, call: ModelInput) -> ModelOutput:
        """Call an agent's model with what it may see of the log.

        Raises:
            ApplicationError: The model failed. Retried if its provider may answer later, after the pause it asks for.
        """
        info = activity.info()
        workflow_id = info.workflow_id or ""
        snapshot = await self._journals.at(workflow_id, info.workflow_run_id or "", call.journal)
        app, user, session = split_workflow_id(workflow_id)
        names = {"invocation": call.invocation_id, "agent": call.agent}
        with bound(app=app, user=user, session=session, **names), telling("model"):
            try:
                with self._writing(call, snapshot) as (writer, event_id):
                    response = await self._answer(call, snapshot, workflow_id, writer)
            except ModelError as error:
                raise ApplicationError(
                    message_of(error),
                    type="ModelError",
                    non_retryable=not error.retryable,
                    next_retry_delay=_seconds(error.retry_after),
                ) from error
            except NotRegistered as error:
                raise not_registered(error, self._rollout) from error
            except (ArtifactError, DefinitionError) as error:
                raise told(error, non_retryable=True) from error
            except Exception as error:
                # A defect in a provider or an instruction function; what may be answered later is a ModelError.
                raise told(error, non_retryable=info.attempt >= _DEFECT_ATTEMPTS) from error
        output = ModelOutput(event=_event(response, event_id))
        what = f"the answer of agent {call.agent!r}'s model"
        check_size(output, what)
        check_bytes(logged_size(_node(call, snapshot)[1], call.branch, output.event), MAX_EVENT_BYTES, what)
        return output

    @contextmanager
    def _writing(self, call: ModelInput, snapshot: Snapshot) -> Generator[tuple[Writer | None, str | None]]:
        """Write for those who follow the session, if anybody does; under the id that the event gets in the log."""
        info = activity.info()
        # The workflow would draw an id, but only when the answer is complete; one that is proposed it takes.
        event_id = derived_id(info.workflow_run_id or "", "answer", info.activity_id)
        draft = Draft(
            session=info.workflow_id or "",
            id=event_id,
            attempt=info.attempt,
            offset=len(snapshot.projection.events),
            author=call.agent,
            invocation_id=call.invocation_id,
            branch=call.branch,
        )
        writer = self._streams.begin(draft) if self._streams is not None else None
        # An earlier attempt may have been streamed by another worker.
        retried = self._streams is not None and info.attempt > 1
        try:
            yield writer, event_id if writer is not None or retried else None
        finally:
            if writer is not None:
                writer.end()

    async def _answer(
        self, call: ModelInput, snapshot: Snapshot, workflow_id: str, writer: Writer | None
    ) -> LlmResponse:
        plan, node = _node(call, snapshot)
        tell("model", node.name, "model", invocation_id=call.invocation_id, model=node.model)
        model = self._registry.model(node)
        request = await self._request(snapshot, plan, node, call, workflow_id)
        if not model.pairs_by_id:
            request = request.model_copy(update={"contents": without_session_ids(request.contents)})
        tell_provider(model.provider)
        response = await self._code.run_async(_generate(model, request, writer))
        if response is None:
            # A defect, more often than not: that is tried again a few times only.
            raise ModelError(
                f"model {request.model!r} of agent {request.agent!r} yielded no response"
                " (partial ones do not count); yield an LlmResponse, or raise a ModelError that says why there is none",
                retryable=activity.info().attempt < _DEFECT_ATTEMPTS,
            )
        if _asks_person(node, response):
            self._journals.rest(workflow_id, activity.info().workflow_run_id or "")
        return response

    async def _request(
        self, snapshot: Snapshot, plan: Plan, node: LlmNode, call: ModelInput, workflow_id: str
    ) -> LlmRequest:
        session = snapshot.projection
        state = session.visible_state(call.invocation_id)
        # Before anything is awaited: a parallel branch may let the worker's copy of the log grow meanwhile.
        contents = build_contents(
            session.events,
            agent=node.name,
            branch=call.branch,
            include_contents=node.include_contents,
            begun_after=call.begun_after,
            memo=snapshot.memo,
        )
        artifacts = SessionArtifacts(self._artifacts, *split_workflow_id(workflow_id), wait=self._code.wait)
        if node.dynamic_instruction:
            context = _context(session, node, call, artifacts, state)
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
            config=build_config(plan, node, instruction),
            agent=node.name,
            call_index=call.call_index,
        )

    async def _instruction(self, node: LlmNode, state: dict[str, Any], artifacts: SessionArtifacts) -> str:
        names = artifact_names(node.instruction)
        texts = await self._code.run_async(placeholder_texts(names, artifacts)) if names else {}
        return resolve_instruction(node.instruction, state, texts)


def _node(call: ModelInput, snapshot: Snapshot) -> tuple[Plan, LlmNode]:
    session = snapshot.projection
    plan = session.plans[call.plan or session.invocations[call.invocation_id].plan or ""]
    node = plan.nodes[call.agent]
    if not isinstance(node, LlmNode):
        raise DefinitionError(f"agent {call.agent!r} has no model")
    return plan, node


def _asks_person(node: LlmNode, response: LlmResponse) -> bool:
    """Return whether an answer calls a tool whose result a person sends, or may have to approve."""
    parts = (response.content.parts or []) if response.content is not None else []
    tools = [node.tool(part.function_call.name or "") for part in parts if part.function_call]
    return any(tool is not None and (tool.kind == "long_running" or tool.confirmation != "never") for tool in tools)


def _event(response: LlmResponse, event_id: str | None) -> Event:
    fields = {name: getattr(response, name) for name in ModelAnswer.model_fields if name != "partial"}
    fields["id"] = event_id
    return Event(**{name: value for name, value in fields.items() if value is not None})


def _context(
    session: Projection, node: LlmNode, call: ModelInput, artifacts: SessionArtifacts, state: dict[str, Any]
) -> ReadonlyContext:
    return ReadonlyContext(
        invocation_id=call.invocation_id,
        agent_name=node.name,
        state=state,
        user_content=session.invocations[call.invocation_id].message.content,
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


def _seconds(value: float | None) -> timedelta | None:
    """Return the pause that a provider asks for, a day at the most; `None` if it asks for none that can be kept."""
    return timedelta(seconds=min(value, _MAX_PAUSE)) if value is not None and value > 0 else None
