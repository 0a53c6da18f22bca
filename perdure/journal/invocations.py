"""An invocation, a turn that is due, and a long-running call, as the projection knows them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from perdure.journal.entries import Failure, RunEntry, TempStateSet, ToolOutput, ToolStarted
from perdure.journal.events import Event
from perdure.journal.open_calls import InvocationStatus, PendingCall
from perdure.plan.nodes import CallLimit, Expiry, LlmNode, Plan


@dataclass
class Call:
    """A long-running function call."""

    pending: PendingCall
    responded: bool = False
    """Its tool has run: the response event is logged, or the tool returned nothing."""
    answer: Literal["open", "accepted", "logged"] = "open"
    expiry: Expiry | None = None
    """What happens at its deadline."""
    remind_at: float | None = None
    """When its reminder is due, in seconds since the epoch."""
    expired: float | None = None
    """The deadline that has passed and fails the invocation, until it has."""


@dataclass
class Turn:
    """An accepted request that waits until its invocation may work."""

    kind: Literal["message", "answer", "resume"]
    invocation_id: str


@dataclass
class Invocation:
    """One invocation, from its accepted message on."""

    id: str
    message: Event
    """The user's event that started it."""
    status: InvocationStatus = "queued"
    agent: str | None = None
    plan: str | None = None
    failures: tuple[Failure, ...] = ()
    reason: str | None = None
    at_limit: bool = False
    """It has made as many model calls as it may."""
    settled: float | None = None
    """Seconds since the epoch at which it last gave up the turn."""
    asked: CallLimit | None = None
    """How many model calls its message allows."""
    granted: CallLimit | None = None
    """How many its last resume allows."""
    streaming: bool = False
    """Its models answer piece by piece, as whoever wrote last asked for it."""
    model_calls: Counter[str] = field(default_factory=Counter[str])
    """Model calls by agent that came back since its start, or since its last resume."""
    entries: list[RunEntry] = field(default_factory=list["RunEntry"])
    """What its agents did, in order: the source of a re-entry."""
    kept: dict[str, ToolOutput] = field(default_factory=dict[str, ToolOutput])
    """Results of tools that must not run again, by call id."""
    started: dict[str, ToolStarted] = field(default_factory=dict[str, ToolStarted])
    """At-most-once calls that were started, by call id, until their response is logged or a person lets them start
    again: without a kept result such a call is in doubt."""
    refused: set[str] = field(default_factory=set[str])
    """Events that tell that a model gave no answer, by id, until the invocation has failed of it."""
    asked_again: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    """Why the model is asked again in an agent run, by its path, for each time since it answered last."""
    temp: dict[str, Any] = field(default_factory=dict[str, Any])
    authorized: set[str] = field(default_factory=set[str])
    """Questions for credentials, by id, whose answers have been taken up."""
    answers: list[Event] = field(default_factory=list[Event])
    """Accepted answers that are not logged yet, in order of arrival."""

    def keep_temp(self, entry: TempStateSet) -> None:
        """Keep `temp:` keys to the end of the invocation."""
        self.temp.update(entry.delta)
        self.authorized.update(entry.authorized)

    def name_runs(self, runs: Sequence[tuple[str, int]]) -> None:
        """Give the entries the names of their runs, each for a number of entries in a row.

        Raises:
            ValueError: These are not as many as there are.
        """
        if sum(count for _, count in runs) != len(self.entries):
            raise ValueError("it names more or fewer runs than there are entries")
        paths = [path for path, count in runs for _ in range(count)]
        named = [entry.model_copy(update={"run": path}) for entry, path in zip(self.entries, paths, strict=True)]
        self.entries[:] = named

    def forget(self) -> None:
        """Forget what only those who go on with it need to know."""
        self.entries.clear()
        self.kept.clear()
        self.started.clear()
        self.temp.clear()


def set_deadline(call: Call, plan: Plan | None, since: float) -> None:
    """Give a call the deadline and the reminder that its tool has in a plan, counted from a time."""
    node = plan.nodes.get(call.pending.agent) if plan is not None else None
    tool = node.tool(call.pending.name) if isinstance(node, LlmNode) else None
    if tool is None:
        return
    call.expiry = tool.expiry
    if tool.expiry is not None:
        call.pending = call.pending.model_copy(update={"deadline": since + tool.expiry.after.total_seconds()})
    call.remind_at = since + tool.remind_in.total_seconds() if tool.remind_in is not None else None


def restart_deadline(call: Call, now: float) -> None:
    """Count a call's deadline and its reminder from now on, as far as they have not come yet."""
    since = call.pending.since
    if call.expiry is not None and call.pending.deadline is not None:
        since = call.pending.deadline - call.expiry.after.total_seconds()
        call.pending = call.pending.model_copy(update={"deadline": now + call.expiry.after.total_seconds()})
    if call.remind_at is not None:
        call.remind_at += now - since
