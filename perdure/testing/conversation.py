"""`Conversation`: a user's session with an app that a test serves."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, cast

from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode
from temporalio.testing import TimeSkipper

from perdure.client import Runner
from perdure.errors import ConnectionFailed, InvocationFailed, InvocationNotFound
from perdure.journal.events import REQUEST_CONFIRMATION, Event
from perdure.journal.open_calls import PendingCall
from perdure.messages.keys import SessionArguments, SessionKey
from perdure.messages.session import InvocationResult, SessionView
from perdure.plan.contents import types
from perdure.plan.nodes import Plan
from perdure.prove.outcome import places
from perdure.prove.scenario import Answer, ProofScenario, Resume
from perdure.prove.scenario import Turn as ProofTurn
from perdure.sessions.transfers import fresh_id
from perdure.testing.prompts import Prompt, RecordedModel
from perdure.testing.raised import Raised
from perdure.testing.server import AppWorker
from perdure.testing.turn import Turn, call_text
from perdure.views.forms.declared import answer_problem, answer_schema, example_answer
from perdure.views.next_steps import AgentStep
from perdure.views.pages import awaited_tool

__all__ = ["Conversation", "Served"]

_LOOK_SECONDS = 0.02


@dataclass(frozen=True, kw_only=True)
class Served:
    """An app that is served for a test."""

    target: object
    """The app, or where it is, as the test named it."""
    app_name: str
    """The name that it is served under."""
    worker: AppWorker
    client: Client
    runner: Runner
    raised: Raised
    """Where its code raised."""
    models: Mapping[str, RecordedModel]
    """The scripted models, by agent."""
    timeout: timedelta


class Conversation:
    """A user's session with an app that is served for the test.

    Each method waits until the invocation rests, and returns the turn; one whose invocation fails raises
    `InvocationFailed`. For all else there is the `runner`, with `who`: `await talk.runner.stop(**talk.who, …)`.
    """

    def __init__(self, served: Served, key: SessionKey, state: Mapping[str, Any]) -> None:
        self._served = served
        self._key = key
        self._state = dict(state)
        self._log: list[Event] = []
        self._taken: list[ProofTurn] = []

    @property
    def runner(self) -> Runner:
        """The client of the app."""
        return self._served.runner

    @property
    def who(self) -> SessionArguments:
        """Whose session it is, and which: the first arguments of the runner's methods."""
        return self._key.arguments

    @property
    def served(self) -> Served:
        """What serves it."""
        return self._served

    @property
    def log(self) -> Sequence[Event]:
        """The events of all turns so far."""
        return self._log

    async def send(self, message: types.Content | str, *, state_delta: Mapping[str, Any] | None = None) -> Turn:
        """Send a message, and wait until its invocation waits for an answer or has finished.

        Args:
            message: What the user says.
            state_delta: Keys to write into the session's state with it.

        Raises:
            InvocationFailed: A step failed: a tool raised, or a script had no more steps.
            RequestRefused: The session did not take it.
            AssertionError: The agents are at work for longer than `timeout`; it tells with what.
        """
        __tracebackhide__ = True
        if isinstance(message, str) and not state_delta:
            self._taken.append(ProofTurn(message=message))
        else:
            self._taken.append(ProofTurn())
        return await self._rest(await self.runner.send_message(**self.who, message=message, state_delta=state_delta))

    async def respond(self, answers: Mapping[str, Any], *, unchecked: bool = False) -> Turn:
        """Answer open calls, and wait as `send` does.

        Args:
            answers: By the tool's name, or by the call's id: its result, any JSON. Several open calls of one tool take
                a list, in their order. A tool that asks for a confirmation takes `True` or `False`.
            unchecked: Send answers that are not of the types that their calls declare, too, as a session takes them.

        Raises:
            AssertionError: No such call is open, or another number of them than of answers; it tells which are. Or an
                answer is not of the type that its call declares.
        """
        __tracebackhide__ = True
        chosen = _chosen([call for _, call in await self.runner.pending(**self.who)], answers)
        if not unchecked:
            await self._check(chosen)
        self._taken.append(ProofTurn(respond=tuple(self._as_proved(call, answer) for call, answer in chosen)))
        responses = {call.id: answer for call, answer in chosen}
        return await self._rest(await self.runner.respond(**self.who, responses=responses))

    async def resume(self) -> Turn:
        """Run the last invocation on, which failed or was stopped, and wait as `send` does.

        Raises:
            InvocationNotFound: The session has none that a resume would run on.
        """
        __tracebackhide__ = True
        found = [invocation for invocation in (await self.session()).invocations if invocation.resumable]
        if not found:
            raise InvocationNotFound("the session has no invocation that failed or was stopped, and can be resumed")
        ids = list(dict.fromkeys(event.invocation_id for event in self._log))
        self._taken.append(ProofTurn(resume=Resume(invocation=ids.index(found[-1].id) + 1)))
        return await self._rest(await self.runner.resume(**self.who, invocation_id=found[-1].id))

    async def skip_time(self, by: timedelta) -> Turn:
        """Let a time pass in a moment, deadlines and reminders in it included; returns what came of it.

        It is the time of this session: the clock of the machine, which tools and models read, goes on as ever.

        Raises:
            InvocationFailed: A deadline passed that fails its invocation.
            ConnectionFailed: The server is too old for that.
        """
        __tracebackhide__ = True
        session = await self.session()
        waiting = [invocation for invocation in session.invocations if invocation.pending] or session.invocations[-1:]
        assert waiting, "no time can be skipped before the first message"
        workflow = self._served.client.get_workflow_handle(self._key.workflow_id)
        skipper = TimeSkipper(self._served.client)
        try:
            await skipper.fast_forward(workflow, by)
        except RPCError as error:
            if error.status is not RPCStatusCode.UNIMPLEMENTED:
                raise
            raise ConnectionFailed(
                f"the server cannot skip time ({error}); `pip install -U 'perdure[testing]'` brings one that can"
            ) from error
        now = (await skipper.get_current_time(workflow)).timestamp()
        async with asyncio.timeout(self._served.timeout.total_seconds()):
            while True:
                at_work = (await workflow.describe()).raw_description
                due = [call for _, call in await self.runner.pending(**self.who) if (call.deadline or now + 1) <= now]
                if not due and not at_work.pending_activities and not at_work.HasField("pending_workflow_task"):
                    break
                await asyncio.sleep(_LOOK_SECONDS)
        return await self._rest(InvocationResult(invocation=waiting[-1], offset=len(self._log)))

    async def restart_worker(self) -> None:
        """End the worker at once and start another, as a deployment or a crash would.

        A model call or a tool that is at work is cut off, and tried again. The new worker has nothing in memory: it
        replays the session.
        """
        await self._served.worker.restart()

    async def session(self) -> SessionView:
        """Return the session: its state, its invocations and their status."""
        return await self.runner.get_session(**self.who)

    async def state(self) -> dict[str, Any]:
        """Return the session's state, with its `user:` and `app:` keys."""
        return (await self.session()).state

    def prompts(self, agent: str) -> list[Prompt]:
        """Return what a scripted agent's model was asked, oldest first, in all sessions of the app.

        Raises:
            AssertionError: The test has no script for such an agent.
        """
        __tracebackhide__ = True
        model = self._served.models.get(agent)
        if model is None:
            known = ", ".join(map(repr, self._served.models)) or "none"
            raise AssertionError(f"the test has no script for an agent {agent!r}; it has for {known}")
        return list(model.prompts)

    async def another(
        self, *, user_id: str | None = None, session_id: str | None = None, state: Mapping[str, Any] | None = None
    ) -> Conversation:
        """Begin another session with the same app.

        Args:
            user_id: Whose. Default: the same user's.
            session_id: Its id. Default: a fresh one.
            state: Its state at the beginning.
        """
        return await begin(self._served, user_id or self._key.user, session_id, state)

    def scenario(self, name: str) -> ProofScenario:
        """Return what the user did so far as a scenario of a proof.

        Raises:
            AssertionError: The user did what no scenario can tell.
        """
        if untold := [turn for turn in self._taken if turn == ProofTurn()]:
            raise AssertionError(
                f"{len(untold)} of the conversation's messages are no plain text, or came with a state_delta, which no"
                " proof can repeat; give it a scenario (docs/prove.md)"
            )
        script = {agent: model.script() for agent, model in self._served.models.items()}
        return ProofScenario(name=name, state=self._state, script=script, turns=tuple(self._taken))

    async def _check(self, chosen: Sequence[tuple[PendingCall, Any]]) -> None:
        __tracebackhide__ = True
        plans: dict[str, Plan | None] = {}
        for call, answer in chosen:
            id = call.invocation_id
            if id not in plans:
                plans[id] = await self.runner.plan(**self.who, invocation_id=id)
            schema = answer_schema(call, plans[id])
            problem = answer_problem(answer, schema) if schema is not None else None
            if problem is not None:
                raise AssertionError(
                    f"the answer {answer!r} to {call_text(call)} is not of the type that it declares: {problem} An"
                    f" answer is such as {example_answer(call, plans[id])}; respond(…, unchecked=True) sends another"
                )

    def _as_proved(self, call: PendingCall, answer: Any) -> Answer:
        ids = [call_id for call_id, place in places(self._log).items() if place.name == call.name]
        response = cast("dict[str, Any]", answer) if isinstance(answer, dict) else {"result": answer}
        return Answer(call=call.name, occurrence=ids.index(call.id) + 1, response=response)

    async def _rest(self, result: InvocationResult) -> Turn:
        """Wait until an invocation rests, and read what was logged."""
        __tracebackhide__ = True
        begun, invocation_id = len(self._log), result.invocation.id
        try:
            async with asyncio.timeout(self._served.timeout.total_seconds()):
                async for _ in self.runner.follow(**self.who, invocation_id=invocation_id, since=result.offset):
                    pass
        except TimeoutError:
            raise AssertionError(await self._at_work(invocation_id)) from None
        except InvocationFailed as failed:
            if where := self._served.raised.where(self._key.workflow_id):
                failed.add_note(where)
            # Without the frames of the client, which tell a reader nothing.
            raise failed.with_traceback(None) from None
        finally:
            self._log += [event async for event in self.runner.events(**self.who, since=begun)]
        invocation = await self.runner.invocation(**self.who, invocation_id=invocation_id)
        return Turn(tuple(self._log[begun:]), invocation)

    async def _at_work(self, invocation_id: str) -> str:
        told = await self.runner.explain(**self.who, invocation_id=invocation_id)
        [invocation] = told.invocations
        step = invocation.resume.step
        lines = [f"\n  {line}" for line in (_steps(step) if step is not None else ())]
        return (
            f"the invocation is {invocation.status} for more than {self._served.timeout.total_seconds():g} s; if it"
            f" takes so long, write start(…, timeout=timedelta(…)):{''.join(lines)}"
        )


async def begin(served: Served, user_id: str, session_id: str | None, state: Mapping[str, Any] | None) -> Conversation:
    """Create a session, and return the conversation."""
    key = SessionKey(served.app_name, user_id, session_id or fresh_id())
    await served.runner.create_session(**key.arguments, state=state)
    return Conversation(served, key, state or {})


def _chosen(pending: Collection[PendingCall], answers: Mapping[str, Any]) -> list[tuple[PendingCall, Any]]:
    """Return each call that is answered, and its answer."""
    __tracebackhide__ = True
    chosen: list[tuple[PendingCall, Any]] = []
    for name, answer in answers.items():
        calls = [call for call in pending if name in (call.id, call.name, awaited_tool(call))]
        each: list[Any] = [answer]
        if isinstance(answer, list) and len(calls) > 1:
            each = cast("list[Any]", answer)
        if len(calls) != len(each):
            known = ", ".join(f"{call_text(call)} of agent {call.agent}" for call in pending) or "none at all"
            if not calls:
                raise AssertionError(f"no call of {name!r} waits for an answer; what does is {known}")
            raise AssertionError(
                f"{len(calls)} calls of {name!r} wait for an answer; give a list of as many, in their order ({known})"
            )
        chosen += [(call, _answer(call, value)) for call, value in zip(calls, each, strict=True)]
    return chosen


def _answer(call: PendingCall, value: Any) -> Any:
    return {"confirmed": value} if call.name == REQUEST_CONFIRMATION and isinstance(value, bool) else value


def _steps(step: AgentStep) -> Iterator[str]:
    yield f"{step.agent}: {step.words}"
    for call in step.calls:
        yield f"{step.agent}: {call.tool}: {call.next}" + (
            f", {call.attempts} attempts so far" if call.attempts else ""
        )
    for below in step.below:
        yield from _steps(below)
