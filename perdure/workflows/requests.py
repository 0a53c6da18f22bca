"""What a session takes: messages, answers, resumes, stops and changes of its state, each refused before it is accepted.

The bodies of the session workflow's updates and signals, and of the updates' validators, which leave no trace.
"""

from __future__ import annotations

from collections.abc import Sequence

from structlog.stdlib import BoundLogger
from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError

from perdure.errors import PerdureError, RequestRefused, SessionFull
from perdure.journal.entries import AnswerAccepted, MessageAccepted, ResumeAccepted, StateChanged, TempStateSet
from perdure.journal.events import EventActions
from perdure.journal.projection import Projection, split_state_delta
from perdure.messages.large_requests import SEND_AHEAD
from perdure.messages.session import (
    AnswerInput,
    InvocationInput,
    InvocationResult,
    MessageInput,
)
from perdure.messages.shared_state import StateChangeInput, StateChangeResult, with_delta
from perdure.rules import intake
from perdure.rules.model_calls import is_at_limit
from perdure.rules.repeats import find_repeated
from perdure.views.pages import invocation_view
from perdure.workflows.first_journal import Arrival
from perdure.workflows.request_parsing import parsed
from perdure.workflows.requests_ahead import Ahead
from perdure.workflows.run.limits import RunLimits
from perdure.workflows.run.log import new_invocation_id, user_event
from perdure.workflows.turn_waits import TurnWaits
from perdure.workflows.turns import Turns

_FULL = (
    "the session's log has outgrown what Temporal holds in one run; export it and go on in a new session, or give the"
    " workers an external payload storage"
)


class refusing:
    """Turns a refusal into the form in which it crosses to the client."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, RequestRefused):
            raise ApplicationError(str(error), type=type(error).__name__, non_retryable=True) from error


class SessionRequests:
    """Checks what is sent to a session, and journals what it accepts."""

    def __init__(self, arrival: Arrival, turns: Turns, limits: RunLimits, logger: BoundLogger) -> None:
        """Take requests for the session whose journal arrives, and whose turns are these."""
        self._arrival = arrival
        self._log = arrival.log
        self._turns = turns
        self._limits = limits
        self._logger = logger
        self._ahead = Ahead()
        self._early: list[tuple[str, Sequence[RawValue]]] = []
        self._waits = TurnWaits()
        self._refused = 0

    def take_early(self) -> None:
        """Take what was signalled before the journal was there."""
        early, self._early = self._early, []
        for name, args in early:
            self.signalled(name, args)

    def end_waits(self) -> None:
        """Let all go who wait for an invocation, since the run hands over to the next one."""
        self._waits.end()

    async def _ready(self) -> Projection:
        """Return the projection as soon as the journal is complete; each update goes through here."""
        self._limits.updates += 1
        await self._arrival.wait()
        return self._log.projection

    def _result(self, invocation_id: str, offset: int) -> InvocationResult:
        projection = self._log.projection
        view = invocation_view(projection, projection.invocations[invocation_id])
        return InvocationResult(invocation=view, offset=offset)

    async def send_message(self, sent: RawValue) -> InvocationResult:
        """Accept a message, which starts an invocation when its turn comes."""
        message, _ = self._ahead.take(sent, MessageInput)
        projection = await self._ready()
        offset = len(projection.events)
        with refusing():
            repeated = find_repeated(projection, message)
            if repeated is not None:
                return self._result(*repeated)
            self._check_room()
            intake.check_queue(projection, message)
        task = projection.open_task()
        invocation_id = task.invocation_id if task is not None else new_invocation_id()
        delta, temp = split_state_delta(message.state_delta)
        event = user_event(invocation_id, message.content, EventActions(state_delta=delta), None)
        self._log.append(intake.accepted_message(message, event, task))
        if temp:
            self._log.append(TempStateSet(invocation_id=invocation_id, delta=temp))
        return self._result(invocation_id, offset)

    def check_message(self, sent: RawValue) -> None:
        """Refuse a message that could not be accepted."""
        message = self._ahead.read(sent, MessageInput)
        with refusing():
            intake.check_message(message)
            if not self._arrival.complete or find_repeated(self._log.projection, message) is None:
                self._check_room()
                intake.check_queue(self._log.projection, message)

    def _check_room(self) -> None:
        if self._limits.full:
            raise SessionFull(_FULL)

    async def respond(self, sent: RawValue) -> InvocationResult:
        """Accept an answer to open calls."""
        answer, _ = self._ahead.take(sent, AnswerInput)
        projection = await self._ready()
        offset = len(projection.events)
        with refusing():
            repeated = find_repeated(projection, answer)
            return self._result(*(repeated or (self.accept_answer(answer), offset)))

    def check_answer(self, sent: RawValue) -> None:
        """Refuse an answer that could not be accepted."""
        answer = self._ahead.read(sent, AnswerInput)
        with refusing():
            intake.check_parts(answer.content)
            if self._arrival.complete and find_repeated(self._log.projection, answer) is None:
                intake.check_answer(self._log.projection, answer)

    def accept_answer(self, answer: AnswerInput) -> str:
        """Accept an answer to open calls; returns the invocation that goes on with it, or the one that it starts."""
        projection = self._log.projection
        calls = intake.check_answer(projection, answer)
        content = intake.named(answer.content, calls)
        invocation = projection.invocations.get(calls[0].pending.invocation_id)
        if invocation is None or not projection.is_resumable(invocation):
            again = invocation is not None and projection.begins_again(invocation)
            id = invocation.id if invocation is not None and again else new_invocation_id()
            event = user_event(id, content, EventActions(), None)
            event = event.model_copy(update={"custom_metadata": answer.metadata})
            self._log.append(MessageAccepted(event=event, request_id=answer.request_id, streaming=answer.streaming))
            return event.invocation_id
        for branch, part_of in intake.by_branch(content, calls):
            event = user_event(invocation.id, part_of, EventActions(), branch)
            event = event.model_copy(update={"custom_metadata": answer.metadata})
            self._log.append(AnswerAccepted(event=event, request_id=answer.request_id, streaming=answer.streaming))
        return invocation.id

    async def resume(self, sent: RawValue) -> InvocationResult:
        """Accept a resume; one that is finished, or waits for answers, is only reported."""
        request = parsed(sent, InvocationInput)
        projection = await self._ready()
        with refusing():
            repeated = find_repeated(projection, request)
            if repeated is not None:
                return self._result(*repeated)
            invocation = intake.check_resume(projection, request)
        offset = len(projection.events)
        if invocation.status in ("failed", "stopped") or is_at_limit(invocation):
            self._log.append(
                ResumeAccepted(
                    invocation_id=invocation.id,
                    request_id=request.request_id,
                    max_llm_calls=request.max_llm_calls,
                    streaming=request.streaming,
                )
            )
        return self._result(invocation.id, offset)

    def check_resume(self, sent: RawValue) -> None:
        """Refuse a resume that could not be accepted."""
        request = parsed(sent, InvocationInput)
        if self._arrival.complete:
            with refusing():
                if find_repeated(self._log.projection, request) is None:
                    intake.check_resume(self._log.projection, request)

    async def stop(self, sent: RawValue) -> InvocationResult:
        """Stop an invocation; returns when its activities are cancelled and it is settled."""
        request = parsed(sent, InvocationInput)
        projection = await self._ready()
        offset = len(projection.events)
        with refusing():
            invocation = intake.check_stop(projection, request)
        await self._turns.stop(invocation, request.reason)
        return self._result(request.invocation_id, offset)

    def check_stop(self, sent: RawValue) -> None:
        """Refuse a stop that could not be accepted."""
        request = parsed(sent, InvocationInput)
        if self._arrival.complete:
            with refusing():
                intake.check_stop(self._log.projection, request)

    async def wait(self, sent: RawValue) -> InvocationResult:
        """Return when an invocation has given up the turn; while it has not, if the run hands over to the next one."""
        request = parsed(sent, InvocationInput)
        with self._waits.waiting():
            projection = await self._ready()
            offset = len(projection.events)
            with refusing():
                invocation = intake.find_invocation(projection, request)
            await self._waits.until_settled(invocation)
        return self._result(invocation.id, offset)

    def check_wait(self, sent: RawValue) -> None:
        """Refuse to wait for an invocation that is not there, or if too many wait."""
        request = parsed(sent, InvocationInput)
        with refusing():
            self._waits.check()
            if self._arrival.complete:
                intake.find_invocation(self._log.projection, request)

    async def change_state(self, sent: RawValue) -> StateChangeResult:
        """Write into the session's state, whatever its invocations do."""
        change, was_ahead = self._ahead.take(sent, StateChangeInput)
        projection = await self._ready()
        event = next((event for event in reversed(projection.events) if event.id == change.request_id), None)
        if event is None:
            with refusing():
                self._check_room()
                intake.check_state(projection, change.state_delta)
            event = intake.state_event(change, workflow.time())
            self._log.append(StateChanged(event=event))
        return StateChangeResult(event=with_delta(event, {}) if was_ahead else event)

    def check_change(self, sent: RawValue) -> None:
        """Refuse a change of state that could not be accepted."""
        change = self._ahead.read(sent, StateChangeInput)
        with refusing():
            self._check_room()
            intake.check_state(self._log.projection, change.state_delta)

    def signalled(self, name: str, args: Sequence[RawValue]) -> None:
        """Accept an answer from whatever can only signal; what does not fit leaves an event that says so."""
        if not self._arrival.complete and name != SEND_AHEAD:
            self._early.append((name, args))
            return
        try:
            if name == SEND_AHEAD:
                self._ahead.bring(args)
                return
            intake.check_signal(name, len(args))
            intake.check_sent(args[0].payload.data)
            self.accept_answer(intake.parse_signal(workflow.payload_converter().from_payload(args[0].payload)))
        except (PerdureError, ValueError, TypeError, RuntimeError, KeyError) as error:
            # The reason's text could quote the value.
            self._logger.warning("signal dropped", signal=name, reason=type(error).__name__)
            if name != SEND_AHEAD:
                self._tell_refused(name, error)

    def _tell_refused(self, name: str, error: Exception) -> None:
        """Log an event that says why a signal was not taken: who can only signal has no other answer."""
        if self._refused >= intake.MAX_TOLD_SIGNALS or self._limits.full:
            return
        self._refused += 1
        entries = len(self._log.projection.entries)
        self._log.append(StateChanged(event=intake.refused_signal(name, error, entries, workflow.time())))
