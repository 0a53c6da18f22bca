"""The model activity: takes up an agent's model call as a step, and gives the workflow its event."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import asdict, replace
from datetime import timedelta

from temporalio import activity
from temporalio.client import Client
from temporalio.exceptions import ApplicationError

from perdure.activities.attempts import telling
from perdure.activities.heartbeats import beating
from perdure.activities.journal_cache import JournalCache
from perdure.activities.kept_steps import keeping, kept_before
from perdure.activities.payload_checks import check_bytes, check_size, not_registered, step_log, told
from perdure.activities.stretches import RunsTools, Stretches, answer_id
from perdure.compiler.registry import NotRegistered
from perdure.errors import ArtifactError, CredentialError, DefinitionError, ModelError, message_of
from perdure.journal.entries import MAX_EVENT_BYTES
from perdure.journal.events import Event
from perdure.logs import bound
from perdure.messages.keys import SessionKey
from perdure.messages.rollout import Rollout
from perdure.messages.session import CALL_MODEL, ModelInput, ModelOutput
from perdure.messages.step_log import StepLog
from perdure.plan.nodes import MODEL_OPTIONS, LlmNode
from perdure.rules.model_answers import logged_size
from perdure.steps.base import ATTEMPTS_OF_DEFECTS, ModelCall, ModelFailed, Place, Snapshot, Steps, llm_node
from perdure.steps.debug_lines import log_answer
from perdure.steps.model_call import NoResponse
from perdure.streams.hub import Draft, TokenHub, Writer
from perdure.telemetry.step import tell, tell_result

_MAX_PAUSE = 86_400.0
"""Seconds; quotas that are counted by the day come back then."""


class ModelActivity:
    """The activity that calls the models of one app."""

    def __init__(
        self,
        client: Client,
        steps: Steps,
        journals: JournalCache,
        rollout: Rollout,
        tools: RunsTools,
        streams: TokenHub | None = None,
    ) -> None:
        self._client = client
        self._steps = steps
        self._journals = journals
        self._rollout = rollout
        self._tools = tools
        self._streams = streams

    @activity.defn(name=CALL_MODEL)
    async def call(self, call: ModelInput) -> ModelOutput:
        """Call an agent's model with what it may see of the log; and take further steps behind that, if it may.

        Raises:
            ApplicationError: The model failed. Retried if its provider may answer later, after the pause it asks for.
        """
        at = _place(call)
        names = {"invocation": call.invocation_id, "agent": call.agent}
        with bound(**asdict(at.key), **names):
            if call.steps > 1:
                return await self._several(at, call)
            snapshot = await self._snapshot(call)
            with telling("model", _attempt(call)), beating():
                return await self._ask(call, snapshot, _attempt(call))

    async def _several(self, at: Place, call: ModelInput) -> ModelOutput:
        """Take several steps; or hand over what an earlier attempt has kept: each has its own attempts."""
        try:
            kept = kept_before()
            if kept is not None:
                return ModelOutput(before=kept)
            async with keeping(self._client) as steps:
                snapshot = await self._snapshot(call, beats=False)
                stretches = Stretches(at, self._ask_in_time, self._prepare, self._tools, steps)
                return await stretches.run(call, snapshot, _attempt(call))
        except ApplicationError:
            raise
        except Exception as error:
            # The server counts no attempts of it.
            raise told(error, non_retryable=_attempt(call) >= MODEL_OPTIONS.max_attempts) from error

    async def _snapshot(self, call: ModelInput, *, beats: bool = True) -> Snapshot:
        info = activity.info()
        id, run_id = info.workflow_id or "", info.workflow_run_id or ""
        return (await self._journals.at(id, run_id, call.journal, beats=beats)).within(call.scope)

    async def _ask_in_time(self, call: ModelInput, session: Snapshot, attempt: int) -> ModelOutput:
        """Ask an agent's model, within its time, and no more often than it may be asked."""
        options = llm_node(session.projection, _place(call), call.plan)[1].model_options
        seconds, most = options.timeout.total_seconds(), options.max_attempts
        if 0 < most < attempt:
            told_all = "each attempt was cut off: its worker was lost, or could not begin"
            raise ApplicationError(told_all, type="TimeoutError", non_retryable=True)
        with telling("model", attempt):
            try:
                async with asyncio.timeout(seconds):
                    return await self._ask(call, session, attempt)
            except TimeoutError as error:
                late = f"the model has taken more than {seconds:g} s"
                raise ApplicationError(late, type="TimeoutError", non_retryable=attempt == most) from error
            except ApplicationError as error:
                if attempt != most or error.non_retryable:
                    raise
                raise ApplicationError(error.message, *error.details, type=error.type, non_retryable=True) from error

    async def _ask(self, call: ModelInput, snapshot: Snapshot, attempt: int) -> ModelOutput:
        info, at = activity.info(), _place(call)
        try:
            node = llm_node(snapshot.projection, at, call.plan)[1]
            output = await self._answer(call, at, node, snapshot, attempt)
        except ModelError as error:
            final = isinstance(error, NoResponse | ModelFailed) and attempt >= ATTEMPTS_OF_DEFECTS
            raise ApplicationError(
                message_of(error),
                *_left(error),
                type="ModelError",
                non_retryable=final or not error.retryable,
                next_retry_delay=_seconds(error.retry_after),
            ) from error
        except NotRegistered as error:
            raise not_registered(error, self._rollout) from error
        except (ArtifactError, CredentialError, DefinitionError) as error:
            raise told(error, non_retryable=True) from error
        except Exception as error:
            # A defect in a provider or an instruction function; what may be answered later is a ModelError.
            raise told(error, non_retryable=attempt >= ATTEMPTS_OF_DEFECTS) from error
        if _asks_person(node, output.answer):
            self._journals.rest(info.workflow_id or "", info.workflow_run_id or "")
        what = f"the answer of agent {call.agent!r}'s model"
        check_size(output, what)
        check_bytes(logged_size(node, call.branch, output.answer), MAX_EVENT_BYTES, what)
        tell_result(output)
        return output

    async def _answer(self, call: ModelInput, at: Place, node: LlmNode, session: Snapshot, attempt: int) -> ModelOutput:
        tell("model", node.name, "model", invocation_id=call.invocation_id, model=node.model)
        step = _step(call)
        with self._writing(call, session, attempt) as (writer, event_id):
            output = await self._steps.call_model(at, session, step, writer)
        events = list(output.events)
        log_answer(events)
        if event_id is not None and events:
            events[-1] = events[-1].model_copy(update={"id": event_id})
        if session.projection.is_adk(at.invocation_id, call.plan):
            return ModelOutput(step=step_log(replace(output, events=tuple(events))))
        [event] = events
        return ModelOutput(event=event)

    def _prepare(self, call: ModelInput, session: Snapshot) -> None:
        self._steps.prepare_model_call(_place(call), session, _step(call))

    @contextmanager
    def _writing(
        self, call: ModelInput, snapshot: Snapshot, attempt: int
    ) -> Generator[tuple[Writer | None, str | None]]:
        """Write for those who follow the session, if anybody does; under the id that the event gets in the log."""
        event_id = answer_id(call)
        draft = Draft(
            session=activity.info().workflow_id or "",
            id=event_id,
            attempt=attempt,
            offset=len(snapshot.projection.events),
            author=call.agent,
            invocation_id=call.invocation_id,
            branch=call.branch,
        )
        # What an agent says that a tool runs is the tool's result, not the session's answer.
        writer = self._streams.begin(draft) if self._streams is not None and not call.scope else None
        # An earlier attempt may have been streamed by another worker.
        retried = self._streams is not None and attempt > 1
        try:
            yield writer, event_id if writer is not None or retried else None
        finally:
            if writer is not None:
                writer.end()


def _attempt(call: ModelInput) -> int:
    """Return which attempt of a call the activity makes first."""
    return activity.info().attempt + call.tried


def _step(call: ModelInput) -> ModelCall:
    return ModelCall(plan=call.plan, index=call.call_index, begun_after=call.begun_after, begun_with=call.begun_with)


def _place(call: ModelInput) -> Place:
    key = SessionKey.parse(activity.info().workflow_id or "")
    return Place(key, call.invocation_id, call.agent, call.branch, call.run, call.scope)


def _asks_person(node: LlmNode, answer: Event) -> bool:
    """Return whether an answer calls a tool whose result a person sends, or may have to approve."""
    tools = [node.tool(call.name or "") for call in answer.get_function_calls()]
    return any(tool is not None and (tool.kind == "long_running" or tool.confirmation != "never") for tool in tools)


def _left(error: ModelError) -> list[StepLog]:
    """Return what a failed step of google.adk's leaves in the log, as details of its error."""
    return [step_log(error.left)] if isinstance(error, ModelFailed) and error.left.events else []


def _seconds(value: float | None) -> timedelta | None:
    """Return the pause that a provider asks for, a day at the most; `None` if it asks for none that can be kept."""
    return timedelta(seconds=min(value, _MAX_PAUSE)) if value is not None and value > 0 else None
