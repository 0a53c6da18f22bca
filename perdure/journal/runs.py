"""The agent runs of an invocation, each one stretch of an agent from entry to end, and what an LLM agent does next.

A fresh one starts with nothing; one that is entered again, as `build_runs` found it in the journal, goes on from
there, so that both leave the same log (SEMANTICS.md, R10). A run alone, without an agent, is Temporal's.
An LLM agent that hands over holds the other agent's run as its child, also where that is the agent that handed over to
it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from perdure.errors import EffectFailed
from perdure.journal.credential_questions import is_credential_request
from perdure.journal.entries import ActivityKept, FailureCaught
from perdure.journal.events import USER, Event
from perdure.journal.node_runs import NodeRun
from perdure.journal.questions import is_confirmation_request, is_doubt_request
from perdure.journal.run_paths import MAX_RUN_PATH, MAX_RUNS
from perdure.journal.unusable_answers import is_refused

_TOO_DEEP = (
    f"it would run within more than {MAX_RUNS} others, or their names have more than {MAX_RUN_PATH:,} characters; have"
    " fewer agents within each other"
)


# By identity: two runs of one agent may look the same, and a comparison would go up and down the tree for ever.
@dataclass(eq=False)
class AgentRun:
    """One stretch of an agent from its entry to its end: its last checkpoint, and what it logged since."""

    agent: str
    branch: str | None
    parent: AgentRun | None = field(default=None, repr=False)
    state: dict[str, Any] | None = None
    """The last checkpoint."""
    ended: bool = False
    escalated: bool = False
    """An event from here or underneath escalated."""
    own: list[Event] = field(default_factory=list[Event])
    """The agent's own events since its last checkpoint, checkpoints and ends left out."""
    log: list[Event] = field(default_factory=list[Event])
    """Every visible event from here and underneath."""
    children: list[AgentRun] = field(default_factory=list["AgentRun"])
    """Agent runs underneath since the last checkpoint, which forgets those before it (R6)."""
    activities: list[ActivityKept | FailureCaught] = field(default_factory=list["ActivityKept | FailureCaught"])
    """What came of `run_activity` since the last checkpoint."""
    node: NodeRun | None = None
    """What it has of the graph whose node it is."""
    begun_after: str | None = None
    """The event after which the run began, by id, if its agent is shown its current turn only."""
    failure: FailureCaught | None = None
    """The run failed, and the custom agent above it dealt with that."""
    path: str = ""
    """Its name in the journal (`RunPath`)."""
    nth: int = 1
    """The n-th agent run of the agent since its parent's last checkpoint."""
    end_logged: bool = False
    """The log has its end already, though another agent that it handed over to is yet to work: so does ADK 2."""
    called_back: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    """Which callbacks of the agent have run, `before` and `after`, and the events that they left, by id."""
    checkpoints: int = 0
    """How many checkpoints, and ends, the agent has logged in this run."""

    asked: bool = False
    """A long-running call was made here or underneath."""

    @property
    def asks(self) -> bool:
        """Whether a long-running call was made here or underneath."""
        return self.asked or any(event.long_running_tool_ids for event in self.log)

    @property
    def is_remembered(self) -> bool:
        """Whether it has begun since the last checkpoint of the run above: then it is one of its children."""
        return self.parent is None or self.path == self.parent.path_of(self.agent, self.nth)

    def is_of_callback(self, event: Event) -> bool:
        """Return whether an event is one that the agent's callbacks left."""
        return any(event.id in ids for ids in self.called_back.values())

    def last_child(self, agent: str) -> AgentRun | None:
        """Return the newest run of a sub-agent."""
        return next((run for run in reversed(self.children) if run.agent == agent), None)

    def resume(self, agent: str, branch: str | None) -> AgentRun:
        """Return the newest run of a sub-agent, to go on with, or a new one if there is none.

        Raises:
            EffectFailed: As `begin`.
        """
        run = self.last_child(agent) or self.begin(agent, branch)
        # An author's own event may have named another.
        run.branch = branch
        return run

    def begin(self, agent: str, branch: str | None, nth: int = 1) -> AgentRun:
        """Return a new run of a sub-agent: its n-th since the last checkpoint.

        Raises:
            EffectFailed: It would be within too many others for an entry to name it.
        """
        if not self.may_begin(agent, nth):
            raise EffectFailed(agent, "run", _TOO_DEEP)
        return AgentRun(agent, branch, self, path=self.path_of(agent, nth), nth=nth)

    def may_begin(self, agent: str, nth: int = 1) -> bool:
        """Return whether an entry can name a sub-agent's n-th run since the last checkpoint."""
        path = self.path_of(agent, nth)
        return len(path) <= MAX_RUN_PATH and path.count("/") <= MAX_RUNS

    def path_of(self, agent: str, nth: int = 1) -> str:
        """Return the path of a sub-agent's n-th run since the last checkpoint."""
        since = f"@{self.checkpoints}" if self.checkpoints else ""
        return f"{self.path}/{agent}{since}{f'#{nth}' if nth > 1 else ''}"


def current_child(names: Sequence[str], past: AgentRun | None) -> tuple[str | None, int]:
    """Return the sub-agent at which the checkpoint of a sequential or loop agent stands, and its place.

    `None` without a checkpoint, or if it names no sub-agent, as an imported one may.
    """
    current = (past.state or {}).get("current_sub_agent") if past is not None else None
    return (current, names.index(current)) if current in names else (None, 0)


def times_looped(past: AgentRun | None) -> int:
    """Return how many iterations a loop agent had finished at its checkpoint; an imported one may hold anything."""
    looped = (past.state or {}).get("times_looped") if past is not None else None
    return looped if isinstance(looped, int) and looped >= 0 else 0


def is_state(event: Event) -> bool:
    """Return whether an event is a checkpoint, or an end."""
    return event.actions.agent_state is not None or bool(event.actions.end_of_agent)


def upwards(run: AgentRun | None) -> Iterator[AgentRun]:
    """Yield an agent run and all above it."""
    while run is not None:
        yield run
        run = run.parent


def place_of(run: AgentRun) -> NodeRun | None:
    """Return where in a graph an agent runs, or with which task: its own node, or the nearest above."""
    return next((up.node for up in upwards(run) if up.node is not None), None)


@dataclass
class Standing:
    """An LLM agent's standing: before a model call, or behind one whose calls are not done with."""

    calling: Event | None = None
    """The model's answer with calls."""
    requests: list[Event] = field(default_factory=list[Event])
    """Confirmations and credentials that the calls asked for; or credentials for toolsets, before a model call."""
    doubts: list[Event] = field(default_factory=list[Event])
    """Questions about calls that were cut off."""
    responses: list[Event] = field(default_factory=list[Event])
    """The response event, and others of calls that ran again: after credentials, after confirmations."""
    refused: Event | None = None
    """The model gave no answer; the turn fails of it, and a resume asks again."""
    ended: bool = False
    """The model's answer ended the agent's turn."""


def is_failure(event: Event) -> bool:
    """Return whether an event tells that its agent failed, as ADK 2 logs it; of Perdure, the model's answer is so."""
    return event.node_info is not None and event.error_code is not None and not event.parts


def last_step(own: Sequence[Event], log: Sequence[Event] = ()) -> Standing:
    """Return where an LLM agent stood, by the events of its run; `log` is the session's."""
    step = Standing()
    for event in own[_place_of_last_calling(own) :]:
        if is_confirmation_request(event) or is_credential_request(event):
            step.requests.append(event)
        elif is_doubt_request(event):
            step.doubts.append(event)
        elif event.get_function_calls():
            step = Standing(calling=event)
        elif event.get_function_responses():
            step.responses.append(event)
        elif is_failure(event) or _is_aside(event, step, log):
            continue
        elif is_refused(event):
            step = Standing(refused=event)
        else:
            step = Standing(ended=True)
    return step


def _place_of_last_calling(own: Sequence[Event]) -> int:
    """Return the place of the newest answer with calls, behind which alone a step may stand; 0 if there is none."""
    for place in range(len(own) - 1, 0, -1):
        if own[place].get_function_calls() and not _is_question(own[place]):
            return place
    return 0


def _is_question(event: Event) -> bool:
    return is_confirmation_request(event) or is_credential_request(event) or is_doubt_request(event)


def _is_aside(event: Event, step: Standing, log: Sequence[Event]) -> bool:
    """Return whether a text was said while a long-running call still had no answer: ADK 2 goes on for as long."""
    waits = set(step.calling.long_running_tool_ids or ()) if step.calling is not None else set[str]()
    if event.node_info is None or not waits:
        return False
    for logged in log:
        if logged.id == event.id:
            return True
        if logged.author == USER:
            waits.difference_update(response.id or "" for response in logged.get_function_responses())
        if not waits:
            return False
    return False
