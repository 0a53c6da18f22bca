"""The activity of steps that are no model call and no tool: google.adk's callbacks, custom agents, credentials."""

from __future__ import annotations

from dataclasses import asdict

from temporalio import activity
from temporalio.exceptions import ApplicationError

from perdure.activities.attempts import telling
from perdure.activities.heartbeats import beating
from perdure.activities.journal_cache import JournalCache
from perdure.activities.payload_checks import check_size, not_registered, step_log, told
from perdure.compiler.registry import NotRegistered
from perdure.errors import message_of
from perdure.logs import bound
from perdure.messages.callbacks import CALL_BACK, CALLBACK_NAMES, CallbackInput
from perdure.messages.keys import SessionKey
from perdure.messages.rollout import Rollout
from perdure.messages.step_log import StepLog
from perdure.steps.base import CodeFailed, Place, Snapshot, Steps
from perdure.streams.drafts import Drafts
from perdure.streams.hub import TokenHub
from perdure.telemetry.step import tell


class CallbackActivity:
    """Runs the callbacks of one app's agents."""

    def __init__(self, steps: Steps, journals: JournalCache, rollout: Rollout, streams: TokenHub | None = None) -> None:
        self._steps = steps
        self._journals = journals
        self._rollout = rollout
        self._streams = streams

    @activity.defn(name=CALL_BACK)
    async def call(self, call: CallbackInput) -> StepLog:
        """Run the callbacks around an agent, or those around a turn; a custom agent's code; or take up credentials.

        Raises:
            ApplicationError: One raised. Not retried, as in ADK.
        """
        info = activity.info()
        workflow_id, run_id = info.workflow_id or "", info.workflow_run_id or ""
        snapshot = (await self._journals.at(workflow_id, run_id, call.journal)).within(call.scope)
        at = Place(SessionKey.parse(workflow_id), call.invocation_id, call.agent, call.branch, call.run, call.scope)
        names = {"invocation": call.invocation_id, "agent": call.agent}
        tell("function", call.agent, CALLBACK_NAMES[call.which], invocation_id=call.invocation_id)
        with bound(**asdict(at.key), **names), telling("callback", activity.info().attempt), beating():
            try:
                if call.which == "authorize":
                    output = await self._steps.authorize(at, snapshot, call.requests)
                else:
                    drafts = self._drafts(at, snapshot)
                    output = await self._steps.callback(at, snapshot, call.which, call.event, drafts)
            except NotRegistered as error:
                raise not_registered(error, self._rollout) from error
            except CodeFailed as error:
                left = [step_log(error.left)] if error.left.events else []
                raise ApplicationError(message_of(error), *left, type=error.kind, non_retryable=True) from error
            except Exception as error:
                raise told(error, non_retryable=True) from error
        log = step_log(output)
        check_size(log, f"what {CALLBACK_NAMES[call.which]} of agent {call.agent!r} left")
        return log

    def _drafts(self, at: Place, session: Snapshot) -> Drafts | None:
        """Return what the step writes for those who follow; what a tool's agent says is the tool's result."""
        if self._streams is None or at.scope:
            return None
        info = activity.info()
        offset = len(session.projection.events)
        return Drafts(self._streams, info.workflow_id or "", at.invocation_id, offset, info.attempt)
