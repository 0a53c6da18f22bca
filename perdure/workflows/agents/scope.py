"""`Scope`: the plan, log, activities and waits that the runners of one invocation share."""

from __future__ import annotations

from collections.abc import Collection, Coroutine, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from temporalio import workflow

from perdure.errors import EffectFailed, LogError
from perdure.journal.compact_json import payload_size
from perdure.journal.entries import (
    MAX_EVENT_BYTES,
    CallbackRan,
    Entry,
    EventLogged,
    Failure,
    RunBegan,
    TempStateSet,
    ToolKept,
    ToolOutput,
)
from perdure.journal.events import Event, EventActions
from perdure.journal.node_runs import NodeRun
from perdure.journal.projection import Invocation, Projection, shared_part
from perdure.journal.run_tree import RunTree, build_runs
from perdure.journal.runs import AgentRun, is_state, upwards
from perdure.journal.tool_output import AgentAsked
from perdure.messages.callbacks import AgentCallback
from perdure.messages.session import JournalSlice
from perdure.messages.shared_state import ShareStateInput
from perdure.messages.step_log import StepLog
from perdure.plan.nodes import CustomNode, Node, Plan
from perdure.rules.checkpoints import is_hidden
from perdure.rules.model_answers import logged_events
from perdure.rules.next_call import Facts
from perdure.views.pages import expired_cause
from perdure.workflows.agents.waits import Waits
from perdure.workflows.run.activities import Activities, Witness
from perdure.workflows.run.log import SessionLog, new_id
from perdure.workflows.run.model_budget import CallBudget
from perdure.workflows.run.progress import Progress
from perdure.workflows.run.slices import Carrier
from perdure.workflows.run.step_failures import told

_TOO_LARGE = (
    "an event of {size:.1f} MB, with what it writes into the state, is over the {most:.1f} MB that Temporal takes;"
    " store the data elsewhere and pass a reference to it"
)


class RunAgent(Protocol):
    """The function that runs one agent from where it stopped; returns whether an event underneath escalated."""

    def __call__(self, scope: Scope, node: Node, run: AgentRun) -> Coroutine[Any, Any, bool]:
        """Run the agent."""
        ...


class Scope:
    """An invocation at work, as its runners share it."""

    def __init__(
        self,
        *,
        plan: Plan,
        invocation: Invocation,
        log: SessionLog,
        activities: Activities,
        carrier: Carrier,
        user_id: str,
        around: Scope | None = None,
    ) -> None:
        """Take up an invocation, or, `around` given, that of an agent which a tool runs in it."""
        self.plan = plan
        self.invocation = invocation
        self.log = log
        self.activities = activities
        self.carrier = carrier
        self.user_id = user_id
        self.session = around.session if around is not None else log.projection
        """The projection of the whole session."""
        self.calls: tuple[str, ...] = ()
        """The calls of tools around it, outermost first."""
        self.waits = Waits(log.projection, around.waits if around is not None else None)
        self.progress = around.progress if around is not None else Progress(activities.progress)
        may_wait = plan.resumable and around is None
        self.budget = CallBudget(plan, invocation, self.waits, self.progress.check_stopped, may_wait=may_wait)
        self.interrupted = False
        """A question for a credential ended the invocation of an app in which nothing pauses: no agent goes on."""
        self.hand_overs = 0
        """Transfers inside of transfers."""
        self.run_agent: RunAgent

    @property
    def projection(self) -> Projection:
        """What the invocation's agents see: the session's projection, or that of the scope under a tool's call."""
        return self.log.projection

    @property
    def facts(self) -> Facts:
        """What the rules of the next step go by."""
        return Facts(self.plan, self.projection, self.invocation, interrupted=self.interrupted)

    def within(self, call_id: str, plan: Plan) -> Scope:
        """Return the scope of the agent that a tool runs."""
        log = self.log.within(call_id)
        scope = Scope(
            plan=plan,
            invocation=log.projection.invocations[self.invocation.id],
            log=log,
            activities=self.activities,
            carrier=self.carrier,
            user_id=self.user_id,
            around=self,
        )
        scope.calls = (*self.calls, call_id)
        scope.run_agent = self.run_agent
        return scope

    def slice(self) -> JournalSlice:
        """Return what the session's journal gained since the last slice, and remember that it is on its way."""
        return self.carrier.slice(self.session)

    def whole(self) -> JournalSlice:
        """Return all of the session's journal, for a step within a workflow task, which cannot ask for any."""
        return JournalSlice(offset=0, entries=tuple(self.session.entries))

    def runs(self) -> RunTree:
        """Return the invocation's agent runs, rebuilt from the journal.

        Raises:
            EffectFailed: It is of an agent that a tool runs, in an imported log, and that names runs of other agents.
        """
        root = self.invocation.agent or self.plan.root.name
        try:
            return build_runs(self.plan, root, self.invocation.entries)
        except LogError as error:
            raise EffectFailed(root, "import", str(error)) from error

    async def log_event(self, event: Event, run: AgentRun, *, hidden: bool = False) -> Event:
        """Log an event of an agent's run in this invocation, and share its `user:` and `app:` keys.

        Raises:
            EffectFailed: The event is too large to be read again.
        """
        event = event.model_copy(update={"invocation_id": self.invocation.id})
        self._check_size(event)
        logged = self._append(event, run, hidden=hidden)
        await self.share(logged)
        return logged

    async def log_answer(self, event: Event, run: AgentRun) -> Event:
        """Log a model's answer, as `log_event` does; in two events if one could not hold it.

        Raises:
            EffectFailed: As `log_event`.
        """
        parts = [part.model_copy(update={"invocation_id": self.invocation.id}) for part in logged_events(event)]
        if len(parts) == 1:
            return await self.log_event(event, run)
        # Both before anything is awaited: a run that is cut off between them would not log the other.
        logged = [self._append(part, run, hidden=False) for part in parts]
        for part in logged:
            await self.share(part)
        return next(part for part in logged if part.content is not None)

    async def share(self, event: Event) -> None:
        """Send an event's `user:` and `app:` keys to where other sessions find them.

        Raises:
            EffectFailed: There would be too much of them; the event stays in the log.
        """
        delta = shared_part(event.actions.state_delta)
        # What a scope writes there its tool's response writes, too.
        if delta and not self.calls:
            request = ShareStateInput(user_id=self.user_id, write_id=event.id, delta=delta)
            await self.activities.share_state(event.author, request)

    async def log_step(self, step: StepLog, run: AgentRun, *, of: AgentCallback | None = None) -> list[Event]:
        """Log what a step of a google.adk agent adds, whole or not at all, and share its `user:` and `app:` keys.

        Args:
            step: What it adds.
            run: The agent's run.
            of: The callbacks that it ran, if it did; their events are no steps of the agent.

        Raises:
            EffectFailed: An event is too large to be read again.
        """
        events = self._checked(step)
        if of is not None:
            ids = run.called_back[of] = tuple(event.id for event in events)
            ran = CallbackRan(
                invocation_id=self.invocation.id,
                agent=run.agent,
                branch=run.branch,
                which=of,
                ids=ids,
                run=run.path,
            )
            self.log.append(ran)
        if step.state:
            self.keep_state(step.state)
        logged = [self._append(event, run, hidden=is_hidden(self.plan, event)) for event in events]
        for event in logged:
            await self.share(event)
        return logged

    async def take(self, entries: Sequence[Entry], run: AgentRun) -> list[Event]:
        """Take over what an activity has logged of steps, and share its `user:` and `app:` keys; returns the events.

        Raises:
            EffectFailed: As `share`.
        """
        self.log.take(entries)
        events = [entry.event for entry in entries if isinstance(entry, EventLogged)]
        for event in events:
            _take_note(event, run)
            await self.share(event)
        return events

    async def log_beside(self, step: StepLog) -> None:
        """Log what a step adds that is no agent's, whole or not at all, and share its `user:` and `app:` keys.

        Raises:
            EffectFailed: An event is too large to be read again.
        """
        events = self._checked(step)
        if step.state:
            self.keep_state(step.state)
        for event in [self.log.log_event(event) for event in events]:
            await self.share(event)

    def _checked(self, step: StepLog) -> list[Event]:
        """Return a step's events with their ids. A compaction belongs to no invocation that ran: ADK gives it an id."""
        of = {"invocation_id": self.invocation.id}
        events = [
            event.model_copy(update={"id": event.id or new_id()} | ({} if event.actions.compaction else of))
            for event in step.events
        ]
        for event in events:
            self._check_size(event)
        return events

    def keep_state(self, state: dict[str, Any], *, authorized: tuple[str, ...] = ()) -> None:
        """Keep what code wrote into the state beside its events, to the end of the invocation.

        Args:
            state: What it wrote.
            authorized: Questions for credentials, by id, whose answers it holds.
        """
        self.log.append(TempStateSet(invocation_id=self.invocation.id, delta=state, authorized=authorized))

    def _check_size(self, event: Event) -> None:
        size = payload_size(event)
        if size > MAX_EVENT_BYTES:
            raise EffectFailed(event.author, "log", _TOO_LARGE.format(size=size / 1e6, most=MAX_EVENT_BYTES / 1e6))

    def log_begin(self, run: AgentRun, node: NodeRun | None = None, asked: AgentAsked | None = None) -> None:
        """Log that an agent's run begins behind an event; as which node it runs, and what asked for it, if it is so."""
        self.log.append(
            RunBegan(
                invocation_id=self.invocation.id,
                agent=run.agent,
                branch=run.branch,
                after=run.begun_after or "",
                run=run.path,
                node=node,
                asked=asked,
            )
        )

    def checkpoint(self, node: Node, run: AgentRun, state: dict[str, Any]) -> None:
        """Log an agent's checkpoint; readers see it only if the app is resumable."""
        self._log_state(node, run, EventActions(agent_state=state), hidden=not self.plan.shows_checkpoints)

    def end(self, node: Node, run: AgentRun, *, hidden: bool | None = None) -> None:
        """Log that an agent's run has ended; readers see it only if the app is resumable."""
        if run.end_logged:
            return
        hidden = not self.plan.shows_checkpoints if hidden is None else hidden
        self._log_state(node, run, EventActions(end_of_agent=True), hidden=hidden)

    def _log_state(self, node: Node, run: AgentRun, actions: EventActions, *, hidden: bool) -> None:
        event = Event(author=node.name, invocation_id=self.invocation.id, branch=run.branch, actions=actions)
        self._append(event, run, hidden=hidden)

    def _append(self, event: Event, run: AgentRun, *, hidden: bool) -> Event:
        node = self.node_of(run)
        if node is not None:
            node_info = (event.node_info or {}) | {"path": node.path}
            event = event.model_copy(update={"node_info": node_info, "isolation_scope": node.scope})
        logged = self.log.log_event(event, hidden=hidden, run=run.path)
        run.checkpoints += is_state(logged)
        _take_note(logged, run)
        return logged

    def node_of(self, run: AgentRun) -> NodeRun | None:
        """Return as which node an agent runs, or who it works for; a graph's own nodes say that themselves."""
        for up in upwards(run):
            node = self.plan.nodes.get(up.agent)
            if up.node is not None or (isinstance(node, CustomNode) and node.graph is not None):
                return up.node
        return None

    def slice_under_way(self, part: JournalSlice | None) -> AbstractContextManager[Witness]:
        """Count a slice as held by the history once its activity is scheduled."""
        return self.carrier.under_way(part)

    @property
    def failures(self) -> list[Failure]:
        """Why branches failed whose siblings are still at work or wait."""
        return [failure for failed in self.progress.failed for failure in told(failed)]

    def keep(self, call_id: str, output: ToolOutput) -> None:
        """Journal a tool's result that no response event holds (yet), so that the tool does not run again."""
        self.progress.logged(call_id)
        if self.invocation.kept.get(call_id) != output:
            self.log.append(ToolKept(invocation_id=self.invocation.id, call_id=call_id, output=output))

    def keep_unlogged(self) -> None:
        """Journal what tools returned whose siblings have not run: the next run goes on from there."""
        for keep in self.progress.unlogged.values():
            keep()

    async def wait_for(self, call_ids: Collection[str]) -> None:
        """Wait until the user has answered all of these calls: for days, if need be.

        Raises:
            EffectFailed: A deadline has passed, and its tool wants that to fail the invocation.
        """
        if call_ids:
            with self.waits.waiting(call_ids) as answered:
                await workflow.wait_condition(answered)
        self.progress.check_stopped()
        expired = self.waits.expired(call_ids)
        if expired is not None:
            raise EffectFailed(expired.pending.agent, expired.pending.name, expired_cause(expired))


def _take_note(logged: Event, run: AgentRun) -> None:
    """Take note of long-running calls in an event of an agent's run."""
    if logged.long_running_tool_ids:
        for up in upwards(run):
            up.asked = True
