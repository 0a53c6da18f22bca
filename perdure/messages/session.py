"""Arguments and results of every activity, update, signal and query, with their names.

Each crosses a process border, so each is one frozen model whose fields are only ever added, with a default.
"""

from __future__ import annotations

import json
from hashlib import sha256
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import to_json

from perdure.journal.compact_json import briefly, unsaid, unsaid_none, unsaid_one
from perdure.journal.entries import Entry, Failure, InvocationSettled
from perdure.journal.events import Event, ToolConfirmation
from perdure.journal.open_calls import InvocationStatus, PendingCall, SessionStatus
from perdure.journal.packing import unpack
from perdure.journal.run_paths import RunPath
from perdure.journal.tool_runs import idempotency_key
from perdure.messages.step_log import StepLog
from perdure.messages.stretches import Stretch
from perdure.plan.contents import types
from perdure.plan.nodes import CallLimit, Plan

LOAD_PLAN = "perdure:load_plan"
CALL_MODEL = "perdure:model"
LOAD_JOURNAL = "perdure:load_journal"
KEEP_JOURNAL = "perdure:keep_journal"
"""Perdure's own activity and workflow types contain a colon, so no tool and no app has such a name."""

JOURNAL_MEMO = "perdure:journal"
"""Name of a memo that a run writes and takes back at once: a slice of its journal stands in history then."""

SEND_MESSAGE = "send_message"
RESPOND = "respond"
RESUME = "resume"
STOP = "stop"
WAIT = "wait"
EXTEND_JOURNAL = "extend_journal"
FUNCTION_RESPONSE = "function_response"
EVENTS = "events"
SESSION = "session"
PENDING = "pending"
JOURNAL = "journal"
EFFECTS = "effects"
PLAN = "plan"

NOT_REGISTERED = "NotRegistered"
"""Error type of work whose worker lacks the code: another worker, or a later deployment, may have it."""

HANDS_OVER = "the session's run hands over to the next one"
"""Why an update `wait` is refused that is to be sent again."""

LOADING = "the session's journal is on its way"
"""Why a query fails while a run fetches the journal that it goes on from; it is to be asked again."""

PAGE_BYTES = 480_000
"""Size of a page of events; Temporal refuses answers of queries over 2 MB, and warns of those over half a megabyte."""


class _Message(BaseModel):
    model_config = ConfigDict(frozen=True)


class JournalReference(_Message):
    """The journal of another run of the same workflow, which may be too large for a payload."""

    run_id: str
    length: int
    """Entries."""


class Trial(_Message):
    """Settings that make a session do often what it does seldom, for proofs and tests (docs/prove.md)."""

    steps_per_run: int | None = None
    """Continue as new after this many activities, custom agents' code not counted. Default: as the server suggests."""
    dead_after: float | None = None
    """Seconds after which a silent worker counts as dead: heartbeat timeout and workflow task timeout at the most."""
    reenter: bool = False
    """Drop an invocation's coroutines at every pause, so that each answer re-enters from the projection."""


class SessionInput(_Message):
    """The argument of a session's workflow."""

    state: dict[str, Any] = Field(default_factory=dict[str, Any])
    """The session's first state."""
    journal: str | None = None
    """Packed journal, or the first part of one, which the run goes on from."""
    carried: JournalReference | None = None
    """Where the journal is if it does not fit in here; the run fetches it by activities."""
    length: int | None = None
    """Entries of a journal of which `journal` is the first part only; the rest comes by the update `extend_journal`."""
    stopped: tuple[InvocationSettled, ...] = Field(default=(), exclude_if=unsaid)
    """Entries behind a carried journal whose run did not hand over by itself: what was running is stopped."""
    search_attributes: bool = False
    """An earlier run found that Perdure's search attributes exist in this namespace."""
    notices: bool = Field(default=False, exclude_if=unsaid)
    """An earlier run was told to have people told of what waits and fails."""
    trial: Trial | None = None


class MessageInput(_Message):
    """Update `send_message`."""

    content: types.Content
    state_delta: dict[str, Any] = Field(default_factory=dict[str, Any])
    request_id: str | None = None
    """A second message of one request id starts nothing and gets the first one's invocation."""
    metadata: dict[str, Any] | None = None
    """Becomes the event's `custom_metadata`."""
    max_llm_calls: CallLimit | None = None
    """Model calls of the invocation. Default: as the app says."""
    streaming: bool = Field(default=False, exclude_if=unsaid)
    """google.adk's agents answer piece by piece, whoever listens. ADK: `RunConfig.streaming_mode`."""


class AnswerInput(_Message):
    """Update `respond`: answers to open calls, all of one invocation, taken whole or not at all."""

    content: types.Content
    """A user's content that holds function responses."""
    invocation_id: str | None = None
    """If given, the invocation that the calls must belong to."""
    request_id: str | None = None
    metadata: dict[str, Any] | None = None
    """Becomes the event's `custom_metadata`: who answered, and why."""
    streaming: bool = Field(default=False, exclude_if=unsaid)
    """As of a message, from now on."""


class InvocationInput(_Message):
    """Updates `resume`, `stop` and `wait`."""

    invocation_id: str
    reason: str | None = None
    request_id: str | None = None
    """Of a resume: a second one of one request id runs nothing on, and is told the same."""
    max_llm_calls: CallLimit | None = None
    """Of a resume: model calls from then on. Default: as many as the message, or else the app, says."""
    streaming: bool = Field(default=False, exclude_if=unsaid)
    """Of a resume: as of a message, from then on."""


class InvocationView(_Message):
    """An invocation as its readers see it."""

    id: str
    status: InvocationStatus
    agent: str | None = None
    """The agent that started it; `None` while it is queued."""
    failures: tuple[Failure, ...] = ()
    pending: tuple[PendingCall, ...] = ()
    plan: str | None = None
    reason: str | None = None
    """Why it was stopped, or what else it waits for than answers."""
    settled: float | None = None
    """Seconds since the epoch at which it last failed, was stopped, ended or began to wait, as far as that is known."""
    resumable: bool = False
    """Whether `resume` would take it now."""


class InvocationResult(_Message):
    """The result of every update: the invocation, and how many events were logged before it."""

    invocation: InvocationView
    offset: int
    """Events in the log when the update was accepted; follow from here."""


class PageInput(_Message):
    """Queries `events` and `journal`."""

    since: int = 0
    """Offset of the first event (or entry) wanted."""
    invocation_id: str | None = None
    """Also report this invocation."""
    max_bytes: int = PAGE_BYTES
    """What the page may have as JSON; of a journal, before it is packed."""


class EventsPage(_Message):
    """A page of the event log."""

    events: tuple[Event, ...]
    total: int
    """Events in the whole log."""
    status: SessionStatus
    invocation: InvocationView | None = None
    kept: tuple[Event, ...] = Field(default=(), exclude=True)
    """As of `SessionView`."""
    more_within: float | None = Field(default=None, exclude=True)
    """Seconds, about, in which more may be kept, of which history does not tell."""


class JournalPage(_Message):
    """A part of the journal, packed.

    Query `journal`, update `extend_journal`, activities `perdure:load_journal` and `perdure:keep_journal`.
    """

    packed: str
    offset: int = 0
    """Offset of the first entry."""
    total: int
    """Entries in the whole journal."""
    carried: JournalReference | None = None
    """The run was closed before it had fetched its journal, which is still to be found here."""

    @property
    def entries(self) -> tuple[Entry, ...]:
        """The entries. Raises `LogError` if they are malformed."""
        return unpack(self.packed)


class SessionView(_Message):
    """The projected session."""

    app_name: str
    user_id: str
    id: str
    state: dict[str, Any]
    status: SessionStatus
    invocations: tuple[InvocationView, ...] = ()
    """In order of arrival; of a long session those that are finished are left out but for the newest."""
    invocation_count: int = 0
    """All of them."""
    event_count: int = 0
    last_update_time: float = 0.0
    """Seconds since the epoch of the last event."""
    kept: tuple[Event, ...] = Field(default=(), exclude=True)
    """Events that activities keep which are at work: not in the log yet, which has them when the activity ends."""


class PendingView(_Message):
    """Query `pending`: every open call of the session."""

    calls: tuple[PendingCall, ...] = ()


class PlanInput(_Message):
    """Query `plan`."""

    digest: str


class PlanView(_Message):
    """A plan that invocations of the session are pinned to."""

    plan: Plan | None = None
    """`None` if the session knows no plan of this digest."""


class JournalSlice(_Message):
    """A slice of the journal that a worker's copy may lack: the entries from an offset to the journal's end.

    A worker that lacks what lies before reads it in the run's history.
    """

    offset: int
    entries: tuple[Entry, ...] = Field(default=(), exclude_if=unsaid)
    packed: str | None = None
    """The entries, packed, where that saves much."""
    count: int = Field(default=0, exclude_if=unsaid)
    """How many entries are packed."""

    @property
    def length(self) -> int:
        """Entries in the journal at the time of the call."""
        return self.offset + len(self.entries) + self.count

    def unpacked(self) -> tuple[Entry, ...]:
        """Return the entries, packed ones too."""
        return unpack(self.packed) if self.packed is not None else self.entries


class LoadPlanInput(_Message):
    """Activity `perdure:load_plan`."""

    user_id: str
    known: str | None = None
    """Digest of the newest plan that the journal holds; it is not sent again."""
    journal: JournalSlice | None = Field(default=None, exclude_if=unsaid)
    """What the history lacks of the journal, if that is little."""


class LoadPlanOutput(_Message):
    """A worker's answer about an app as an invocation starts."""

    digest: str
    plan: Plan | None = None
    shared: dict[str, Any] | None = None
    """`user:` and `app:` keys, where the plan's code can touch them."""
    search_attributes: bool = False
    """Whether Perdure's search attributes exist in this namespace."""
    notices: bool = Field(default=False, exclude_if=unsaid)
    """Whether the worker was given settings of notices."""


class LoadJournalInput(_Message):
    """Activity `perdure:load_journal`: asks for a part of another run's journal."""

    journal: JournalReference
    since: int


class ModelInput(_Message):
    """Activity `perdure:model`. Holds a reference to the log and what is new, never the conversation."""

    agent: str
    invocation_id: str
    branch: str | None = None
    plan: str | None = None
    """Digest of the invocation's plan, where the journal does not name it."""
    call_index: int
    """How many model calls of this agent came back before, over the whole session; equal in every attempt."""
    begun_after: str | None = None
    """The event after which the agent's run began, by id, if it is shown its current turn only."""
    begun_with: str | None = None
    """The agent run's first event, by id, where what it said before counts: google.adk's."""
    run: RunPath = ""
    scope: tuple[str, ...] = Field(default=(), exclude_if=unsaid)
    """The calls of tools that run the agent, outermost first."""
    steps: int = Field(default=1, exclude_if=unsaid_one)
    """How many steps of the agent the activity may take: this call, its tools, and so on."""
    tried: int = Field(default=0, exclude_if=unsaid)
    """Attempts of this call that failed in the activity of an earlier one."""
    answer_id: str | None = Field(default=None, exclude_if=unsaid)
    """The event under which these were streamed, by id."""
    journal: JournalSlice


class ModelOutput(_Message):
    """A model's answer: an event without id, time, author and invocation; of google.adk's agents what the step logs."""

    event: Event | None = None
    step: StepLog | None = None
    before: Stretch | None = Field(default=None, exclude_if=unsaid_none)
    """The steps that were taken before this answer; behind them there may be no answer."""

    @property
    def is_answer(self) -> bool:
        """Whether the model answered."""
        return self.event is not None or self.step is not None

    @property
    def answer(self) -> Event:
        """The model's answer; an empty event if it gave none."""
        if self.event is not None:
            return self.event
        return self.step.events[-1] if self.step is not None and self.step.events else Event()


class ToolInput(_Message):
    """A tool's activity; its activity type is the tool's name, for other functions of it `TOOL:KIND`."""

    kind: Literal["tool", "reconcile", "reminder"] = "tool"
    """Which function of the tool is to run."""
    agent: str
    tool: str
    args: dict[str, Any] = Field(default_factory=dict[str, Any])
    function_call_id: str
    invocation_id: str
    branch: str | None = None
    confirmation: ToolConfirmation | None = None
    """The person's decision, if the call needed one."""
    state: dict[str, Any] | None = None
    """The session's state where the tool takes a context and the state is small."""
    length: int | None = None
    """Otherwise the length of the journal that the state is to be folded from."""
    key_salt: str = Field(default="", exclude_if=unsaid)
    """What the session's idempotency keys begin with, if its log was imported."""
    run: RunPath = ""
    """The agent run, of google.adk's agents."""
    known: int | None = None
    """Of an at-most-once tool: the length of the journal that tells which calls this history has started."""
    scope: tuple[str, ...] = Field(default=(), exclude_if=unsaid)
    """The calls of tools that run the agent, outermost first."""
    journal: JournalSlice | None = None
    """What the journal gained since the last slice; left out beside large arguments, and where a tool runs locally."""
    reads: bool = Field(default=False, exclude_if=unsaid)
    """The tool may look at the whole session: google.adk's, and what runs an agent. A local one is given all of it."""
    again: str | None = None
    """Of an at-most-once tool: the answer by which a person lets the call start again."""
    authorized: bool = Field(default=False, exclude_if=unsaid)
    """The call runs again, since a person has given the credential that it needed."""
    tried: int = Field(default=0, exclude_if=unsaid)
    """Attempts of this call that failed in the activity of the model that made it."""

    @property
    def idempotency_key(self) -> str:
        """Equal in every attempt and every resume of the same call, and unique to it."""
        return idempotency_key(self.invocation_id, self.function_call_id, self.key_salt)


class CodeInput(_Message):
    """The activity behind a custom agent's `run_activity`; its activity type is the function's name."""

    kind: Literal["code"] = "code"
    name: str
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = Field(default_factory=dict[str, Any])
    agent: str | None = None
    """The custom agent. This and what follows says whose result it will be, for whoever reads it out of history."""
    invocation_id: str | None = None
    branch: str | None = None
    run: RunPath = ""
    """The agent run."""
    scope: tuple[str, ...] = Field(default=(), exclude_if=unsaid)
    """The calls of tools that run the agent, outermost first."""
    index: int = 0
    """Which call of the function with equal arguments it is since the agent's last checkpoint, from 0."""
    journal: JournalSlice | None = None
    """What the journal gained since the last slice; left out beside large arguments."""

    @property
    def arguments(self) -> str:
        """Digest of the arguments as they travel, equal for equal ones."""
        with briefly():
            data = to_json((self.args, self.kwargs), by_alias=True, exclude_none=True, bytes_mode="base64")
        return sha256(json.dumps(json.loads(data), sort_keys=True).encode()).hexdigest()[:16]


class CodeOutput(_Message):
    """The result of a function of `App(activities=[…])`."""

    result: Any = None


DEADLINE_SUMMARY = "deadline of an answer"
"""Summary of the timers that watch deadlines, by which a history's reader tells them from those of agents."""
