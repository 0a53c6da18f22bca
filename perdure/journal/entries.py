"""The journal: a session's one append-only record, from which everything else is folded.

It holds ADK's events and, beside them, Perdure's own small entries. Readers see the events only. Entries are told apart
by `kind`; a kind's name and fields stand in histories, so they are added to, never changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal, Self, TypeVar
from weakref import WeakValueDictionary

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, model_validator

from perdure.journal.compact_json import payload_size, unsaid, unsaid_one
from perdure.journal.events import Event
from perdure.journal.node_runs import NodeRun
from perdure.journal.run_paths import RunPath
from perdure.journal.tool_output import AgentAsked, ToolOutput
from perdure.plan.contents import types
from perdure.plan.nodes import CallLimit, Plan

_M = TypeVar("_M", bound=BaseModel)

MAX_PAYLOAD_BYTES = 1_900_000
"""What one payload may hold: a little under Temporal's 2 MB; what is over those is mostly tried again for ever."""

MAX_PART_BYTES = 1_500_000
"""What one part of a journal may hold unpacked: a workflow reads it in a step, and one of 2 s counts as a deadlock."""

MAX_EVENT_BYTES = 1_800_000
"""What one event may have, so that it fits into the answer of a query."""

_PLANS: WeakValueDictionary[str, Plan] = WeakValueDictionary()
"""Plans that journals of this process hold, by digest; immutable."""


class _Entry(BaseModel):
    model_config = ConfigDict(frozen=True)


class Failure(BaseModel):
    """The failure of one branch of an invocation."""

    model_config = ConfigDict(frozen=True)

    agent: str
    step: str
    """`model`, or the name of the tool or activity."""
    cause: str
    """The error's own text."""


class SessionCreated(_Entry):
    """The first entry: the state that the session was created with."""

    kind: Literal["session"] = "session"
    state: dict[str, Any] = Field(default_factory=dict[str, Any])


class EventLogged(_Entry):
    """An event of an agent."""

    kind: Literal["event"] = "event"
    event: Event
    hidden: bool = Field(default=False, exclude_if=unsaid)
    """A checkpoint or an end that readers do not see: the app is not resumable, or the agent logged none."""
    run: RunPath = ""


class MessageAccepted(_Entry):
    """A user's message that will start an invocation of its own; `InvocationStarted` logs its event."""

    kind: Literal["message"] = "message"
    event: Event
    request_id: str | None = None
    max_llm_calls: CallLimit | None = None
    streaming: bool = Field(default=False, exclude_if=unsaid)
    """Whoever sent it asked for the models' answers piece by piece."""


class AnswerAccepted(_Entry):
    """A user's answer to open calls; `AnswerLogged` logs its event."""

    kind: Literal["answer"] = "answer"
    event: Event
    request_id: str | None = None
    streaming: bool = Field(default=False, exclude_if=unsaid)


class AnswerLogged(_Entry):
    """An accepted answer enters the log."""

    kind: Literal["answer_logged"] = "answer_logged"
    event_id: str
    timestamp: float


class ResumeAccepted(_Entry):
    """A user asked to run an invocation on; its model calls are counted anew from here."""

    kind: Literal["resume"] = "resume"
    invocation_id: str
    request_id: str | None = None
    max_llm_calls: CallLimit | None = None
    streaming: bool = Field(default=False, exclude_if=unsaid)


class InvocationStarted(_Entry):
    """An accepted message's turn has come: its event enters the log and its agent starts."""

    kind: Literal["started"] = "started"
    invocation_id: str
    agent: str
    plan: str
    """Digest of the plan that the invocation is pinned to."""
    timestamp: float
    content: types.Content | None = Field(default=None, exclude_if=unsaid)
    """What google.adk's plugins made of the message, if they changed it."""


class InvocationResumed(_Entry):
    """An invocation takes the turn again, after an answer or a resume."""

    kind: Literal["resumed"] = "resumed"
    invocation_id: str


SettledStatus = Literal["waiting", "failed", "stopped", "finished"]


class InvocationSettled(_Entry):
    """An invocation gives up the turn."""

    kind: Literal["settled"] = "settled"
    invocation_id: str
    status: SettledStatus
    failures: tuple[Failure, ...] = ()
    reason: str | None = None
    """Why it was stopped, or what else it waits for than answers."""
    at_limit: bool = Field(default=False, exclude_if=unsaid)
    """It waits for a resume: it has made as many model calls as it may."""
    timestamp: float | None = None
    """When, in seconds since the epoch; `None` in a journal that was put together from elsewhere."""


class PlanLoaded(_Entry):
    """A plan that invocations from here on may be pinned to."""

    kind: Literal["plan"] = "plan"
    plan: Plan
    digest: str = ""
    """As the worker that loaded it computed it; a later version, whose plans have more fields, computes another."""

    @model_validator(mode="after")
    def _share(self) -> Self:
        """Take the plan that another session of this process has parsed: it is the largest part of a short journal."""
        if self.digest:
            known = _PLANS.setdefault(self.digest, self.plan)
            # The digest may come from outside, with another plan.
            if known is not self.plan and known == self.plan:
                object.__setattr__(self, "plan", known)
        return self


class SharedStateRead(_Entry):
    """A snapshot of the `user:` and `app:` keys, taken as an invocation starts."""

    kind: Literal["shared_state"] = "shared_state"
    state: dict[str, Any]


class TempStateSet(_Entry):
    """`temp:` keys, which live as long as their invocation."""

    kind: Literal["temp_state"] = "temp_state"
    invocation_id: str
    delta: dict[str, Any]
    authorized: tuple[str, ...] = Field(default=(), exclude_if=unsaid)
    """Questions for credentials, by id, whose answers the keys hold: none is taken up, or exchanged, twice."""


class ModelCalled(_Entry):
    """An agent's model call has come back, with an answer or an error."""

    kind: Literal["model_called"] = "model_called"
    agent: str
    invocation_id: str = Field(default="", exclude_if=unsaid)
    run: RunPath = ""
    again: str | None = None
    """Why it is asked once more, if it came back with no answer: a finish reason, or `EMPTY`."""


class RunBegan(_Entry):
    """An agent has begun to run that goes by that: it is shown its current turn only, or its code runs in steps."""

    kind: Literal["run_began"] = "run_began"
    invocation_id: str
    agent: str
    branch: str | None = None
    after: str
    """The newest event before it, by id."""
    run: RunPath
    node: NodeRun | None = Field(default=None, exclude_if=unsaid)
    """It runs as a node: of a graph, or for a task."""
    asked: AgentAsked | None = Field(default=None, exclude_if=unsaid)
    """Where the tool stood that runs it for a single turn."""


class CallbackRan(_Entry):
    """The callbacks before or after a google.adk agent have run, and do not run again; most leave no event."""

    kind: Literal["callback_ran"] = "callback_ran"
    invocation_id: str
    agent: str
    branch: str | None = None
    which: Literal["before", "after"]
    ids: tuple[str, ...] = ()
    """Ids of the events that they left, which follow: they are no step of the agent."""
    run: RunPath = ""


class ToolKept(_Entry):
    """A tool has run, but no response event holds its result (yet), so it must not run again."""

    kind: Literal["tool_kept"] = "tool_kept"
    invocation_id: str
    call_id: str
    output: ToolOutput


class ActivityKept(_Entry):
    """The result of a custom agent's `run_activity`, until its next checkpoint."""

    kind: Literal["activity_kept"] = "activity_kept"
    invocation_id: str
    agent: str
    branch: str | None = None
    name: str
    index: int = 0
    """Which call of the function with equal arguments it was since the last checkpoint, from 0."""
    arguments: str | None = None
    """Digest of its arguments, by which the same call is known again."""
    result: Any = None
    run: RunPath = ""


class FailureCaught(_Entry):
    """A custom agent's code was given a failure: entered again, it meets that again, until its next checkpoint."""

    kind: Literal["failure_caught"] = "failure_caught"
    invocation_id: str
    agent: str
    branch: str | None = None
    failures: tuple[Failure, ...] = ()
    """Empty: the agent failed by what it had met, or of its own, so that this is tried again: see `again`."""
    again: tuple[int, ...] = Field(default=(), exclude_if=unsaid)
    """Which of the invocation's entries of this kind are tried again, counted from 0. Default: all of this agent's."""
    sub_run: RunPath = ""
    """The agent run that failed; else it was a call of `run_activity`, known as in `ActivityKept`."""
    silent: bool = Field(default=False, exclude_if=unsaid)
    """As in `EffectFailed`."""
    run: RunPath = ""
    name: str = ""
    index: int = 0
    arguments: str | None = None


class ToolStarted(_Entry):
    """An at-most-once tool is about to be started; without a result it must not be started again."""

    kind: Literal["tool_started"] = "tool_started"
    invocation_id: str
    call_id: str
    agent: str
    tool: str
    idempotency_key: str
    timestamp: float


class ToolRan(_Entry):
    """A tool's activity has come back. What the call's own event tells of it is not told again."""

    kind: Literal["tool_ran"] = "tool_ran"
    call_id: str
    key_salt: str = Field(default="", exclude_if=unsaid)
    """What its idempotency key began with."""
    invocation_id: str | None = None
    """If it ran in another invocation than the one that called it."""
    outcome: Literal["failed", "stopped", "not_started", "lost"] | None = None
    """`None`: it returned. `not_started`: its function has not been started, whatever `ToolStarted` said. `lost`: nor
    has it here, since it, or another call that it may repeat, was started in a history that was reset."""
    attempts: int = Field(default=1, exclude_if=unsaid_one)
    started: float
    """Seconds since the epoch."""
    ended: float
    """Seconds since the epoch."""
    cause: str | None = None
    """Why it failed, cut to some 200 characters."""


class CallExpired(_Entry):
    """A long-running call has no answer by its deadline, and that fails its invocation; it has no deadline any more."""

    kind: Literal["call_expired"] = "call_expired"
    call_id: str


class CallReminded(_Entry):
    """The reminder of a long-running call is started; there is one for each call."""

    kind: Literal["call_reminded"] = "call_reminded"
    call_id: str


class LogImported(_Entry):
    """All that lies before came from outside: it is data, and its pending calls run only if the importer said so."""

    kind: Literal["imported"] = "imported"
    allow_pending_calls: bool = False
    plan_digest: str | None = None
    """Digest of the newest plan at the log's origin, to tell where it came from; nothing runs under it."""
    timestamp: float | None = None
    """When it was taken, in seconds since the epoch; deadlines of open calls count from here."""
    bare: bool = False
    """It was events only, which do not tell with which agent an invocation began, if that has logged nothing."""
    key_salt: str = Field(default="", exclude_if=unsaid)
    """What idempotency keys of calls that run from here on begin with: no other import has it."""


class InvocationPinned(_Entry):
    """An imported invocation goes on: under the plan that the app has now."""

    kind: Literal["pinned"] = "pinned"
    invocation_id: str
    agent: str
    plan: str
    """Digest of that plan."""
    timestamp: float | None = None
    """When, in seconds since the epoch; open calls that had no plan take their deadlines from here."""
    runs: tuple[tuple[RunPath, int], ...] = Field(default=(), exclude_if=unsaid)
    """The runs that its entries so far are of, each with the number of entries in a row, if these do not tell."""


class StateChanged(_Entry):
    """A user wrote into the session's state, beside all invocations."""

    kind: Literal["state_changed"] = "state_changed"
    event: Event
    """Of the user, without content; its invocation id, `p-…`, is that of no invocation. As in ADK."""


class ScopeBegan(_Entry):
    """A tool that runs an agent is to run it: in a scope of its own under the call, with a log and a state."""

    kind: Literal["scope_began"] = "scope_began"
    invocation_id: str
    call_id: str
    agent: str
    """Whose tool it is."""
    tool: str
    asked: AgentAsked
    event_id: str
    """Id of the event that the agent's log begins with."""
    timestamp: float


class Within(_Entry):
    """An entry of a scope."""

    kind: Literal["within"] = "within"
    call_id: str
    """The call that the scope is under."""
    entry: Entry


class EventRewound(_Entry):
    """An event of an imported log that a later event of it rewound: readers see it, and no rule looks at it."""

    kind: Literal["rewound"] = "rewound"
    event: Event


Entry = Annotated[
    SessionCreated
    | EventLogged
    | MessageAccepted
    | AnswerAccepted
    | AnswerLogged
    | ResumeAccepted
    | InvocationStarted
    | InvocationResumed
    | InvocationSettled
    | PlanLoaded
    | SharedStateRead
    | TempStateSet
    | ModelCalled
    | RunBegan
    | CallbackRan
    | ToolKept
    | ActivityKept
    | FailureCaught
    | ToolStarted
    | ToolRan
    | CallExpired
    | CallReminded
    | LogImported
    | InvocationPinned
    | StateChanged
    | ScopeBegan
    | Within
    | EventRewound,
    Field(discriminator="kind"),
]
"""One entry of a journal."""

Within.model_rebuild()

RunEntry = EventLogged | ActivityKept | FailureCaught | RunBegan | CallbackRan
"""Entries of what an invocation's agents did: from these the agent runs are rebuilt."""

ENTRIES: TypeAdapter[tuple[Entry, ...]] = TypeAdapter(tuple[Entry, ...])


def innermost(entry: Entry) -> Entry:
    """Return an entry as the scope has it that it is of."""
    while isinstance(entry, Within):
        entry = entry.entry
    return entry


def take(items: Sequence[_M], start: int, max_bytes: int) -> Iterable[_M]:
    """Return the models from `start` on as long as their JSON fits into `max_bytes`; the first one always."""
    return fitting((items[index] for index in range(max(start, 0), len(items))), max_bytes)


def fitting(models: Iterable[_M], max_bytes: int) -> Iterable[_M]:
    """Yield models while their JSON fits into `max_bytes`; the first one always."""
    size = 0
    for index, model in enumerate(models):
        size += payload_size(model)
        if size > max_bytes and index:
            return
        yield model
