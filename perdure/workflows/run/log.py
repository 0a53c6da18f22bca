"""`SessionLog`: the journal inside its workflow; every entry is appended here, and folded at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from google.genai import types
from temporalio import workflow

from perdure.journal.entries import (
    AnswerLogged,
    Entry,
    EventLogged,
    InvocationSettled,
    PlanLoaded,
    SettledStatus,
    TempStateSet,
    Within,
)
from perdure.journal.events import Event, EventActions
from perdure.journal.fold import apply_entry, fold_journal
from perdure.journal.projection import split_state_delta
from perdure.rules.ids import call_ids
from perdure.workflows.run.metrics import count


class SessionLog:
    """Appends to the journal, with the ids and times that only a workflow may draw."""

    def __init__(self, entries: tuple[Entry, ...] = (), *, seed: str) -> None:
        """Fold a journal.

        Args:
            entries: The journal so far.
            seed: What ids of function calls are derived from.
        """
        self.projection = fold_journal(entries)
        self._seed = seed
        self.listeners: list[Callable[[Event], None]] = []
        """Told of each agent event as it is logged."""
        self.entry_listener: Callable[[], None] | None = None
        """Told that the journal has grown."""
        self.plan_listener: Callable[[], None] | None = None
        """Told when a plan has come that is new to the session."""
        self.settle_listener: Callable[[InvocationSettled], None] | None = None
        """Told when an invocation gives up the turn, or ends without one."""

    def append(self, entry: Entry) -> None:
        """Append one entry."""
        known = len(self.projection.events)
        self._add(entry)
        if self.entry_listener is not None:
            self.entry_listener()
        if isinstance(entry, Within):
            # What waits in a scope is shown here.
            self._tell(self.projection.events[known:])
        if isinstance(entry, PlanLoaded) and self.plan_listener is not None:
            self.plan_listener()
        if isinstance(entry, InvocationSettled) and self.settle_listener is not None:
            self.settle_listener(entry)

    def _add(self, entry: Entry) -> None:
        count(entry, self.projection)
        apply_entry(self.projection, entry)

    def _tell(self, events: Sequence[Event]) -> None:
        for event in events:
            for listener in self.listeners:
                listener(event)

    def within(self, call_id: str) -> SessionLog:
        """Return the log of the scope under a call."""
        return _ScopeLog(self, call_id, seed=f"{self._seed}/{call_id}")

    def log_event(self, event: Event, *, hidden: bool = False, run: str = "") -> Event:
        """Log an event: `temp:` keys are kept apart, id and time are filled in.

        Args:
            event: The event.
            hidden: Readers do not see it.
            run: The path of the agent's run; empty if no agent of the plan logs it, as where a plugin does.

        Returns:
            The event as it was logged.
        """
        delta, temp = split_state_delta(event.actions.state_delta)
        update: dict[str, object] = {"id": event.id or new_id(), "timestamp": workflow.time()}
        if temp:
            self.append(TempStateSet(invocation_id=event.invocation_id, delta=temp))
            update["actions"] = event.actions.model_copy(update={"state_delta": delta})
        logged = event.model_copy(update=update)
        self.append(EventLogged(event=logged, hidden=hidden, run=run))
        if not hidden:
            self._tell([logged])
        return logged

    def take(self, entries: Iterable[Entry]) -> None:
        """Append what an activity has logged."""
        for entry in entries:
            self.append(entry)
            if isinstance(entry, EventLogged) and not entry.hidden:
                self._tell([entry.event])

    def log_answers(self, invocation_id: str) -> None:
        """Log an invocation's accepted answers, as far as the responses of their own calls are logged."""
        invocation = self.projection.invocations[invocation_id]
        while (event := self.projection.loggable_answer(invocation)) is not None:
            self.append(AnswerLogged(event_id=event.id, timestamp=workflow.time()))

    def call_ids(self, *parts: object) -> Iterator[str]:
        """Yield fresh ids for the function calls that `parts` name, without an end."""
        return call_ids(self._seed, *parts)

    def settle(self, invocation_id: str, status: SettledStatus, **fields: Any) -> None:
        """Log that an invocation gives up the turn, or ends without one."""
        settled = InvocationSettled(invocation_id=invocation_id, status=status, timestamp=workflow.time(), **fields)
        self.append(settled)

    def stop(self, invocation_id: str, reason: str | None) -> None:
        """Settle an invocation as stopped."""
        self.settle(invocation_id, "stopped", reason=reason)


class _ScopeLog(SessionLog):
    """The log of a scope: each of its entries stands in the log around it."""

    def __init__(self, around: SessionLog, call_id: str, *, seed: str) -> None:
        super().__init__(seed=seed)
        self.projection = around.projection.scopes[call_id]
        self._around = around
        self._call_id = call_id

    def _add(self, entry: Entry) -> None:
        self._around.append(Within(call_id=self._call_id, entry=entry))


def new_id() -> str:
    """Return a fresh event id."""
    return str(workflow.uuid4())


def new_invocation_id() -> str:
    """Return a fresh invocation id, in ADK's form."""
    return f"e-{workflow.uuid4()}"


def user_event(invocation_id: str, content: types.Content, actions: EventActions, branch: str | None) -> Event:
    """Return a user's event, ready to be accepted."""
    return Event(
        id=new_id(),
        timestamp=workflow.time(),
        author="user",
        invocation_id=invocation_id,
        branch=branch,
        content=content.model_copy(update={"role": "user"}),
        actions=actions,
    )
