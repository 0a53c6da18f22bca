"""The seam between an activity and what a step of an agent does: plain values in and out, no word of Temporal.

An activity takes a step up, gives it what it needs, and passes on what it returns. Perdure's own agents have their
steps in `steps.native`; whoever runs other agents implements `Steps`.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

from google.genai import types

from perdure.errors import DefinitionError, ModelError, PerdureError
from perdure.journal.events import Event, ToolConfirmation
from perdure.journal.projection import Projection
from perdure.journal.run_paths import RunPath
from perdure.journal.tool_output import ToolOutput
from perdure.messages.keys import SessionKey
from perdure.messages.step_log import CodeFailure, NextAgent, NextCall
from perdure.plan.nodes import LlmNode, Plan
from perdure.rules.large_results import MAX_RESULT_BYTES
from perdure.steps.prompt import PromptMemo
from perdure.streams.drafts import Drafts
from perdure.streams.hub import Writer


@dataclass(frozen=True)
class Place:
    """Where in a session a step stands."""

    key: SessionKey
    """The session."""
    invocation_id: str
    agent: str
    branch: str | None = None
    run: RunPath = ""
    """The agent run."""
    scope: tuple[str, ...] = ()
    """The calls of tools that run the agent, outermost first."""


@dataclass(frozen=True)
class Snapshot:
    """A session as it was when a step was scheduled."""

    projection: Projection
    memo: PromptMemo
    """For prompts of this session."""
    around: Projection | None = None
    """The whole session, where the projection is that of an agent that a tool runs."""

    def within(self, scope: Sequence[str]) -> Snapshot:
        """Return what the agents see that tools run, by the calls around them, outermost first."""
        return replace(self, projection=self.projection.scope(scope), around=self.projection) if scope else self


@dataclass(frozen=True)
class ModelCall:
    """What a model call is about, beside its place."""

    plan: str | None
    """Digest of the invocation's plan, where the journal does not name it."""
    index: int
    """How many model calls of this agent came back before, over the whole session; equal in every attempt."""
    begun_after: str | None = None
    """The event after which the agent run began, by id, if it is shown its current turn only."""
    begun_with: str | None = None
    """The agent run's first event, by id, if it has logged one."""


async def _nothing(_at_most_once: bool) -> None:
    pass


@dataclass(frozen=True)
class ToolCall:
    """A tool call that is to run."""

    id: str
    tool: str
    args: Mapping[str, Any]
    key: str
    """Its idempotency key: equal in every attempt and every resume, unique to the call."""
    state: Mapping[str, Any]
    """The session's state as the tool sees it."""
    session: Snapshot | None = None
    """The session, where the step needs more of it than the state."""
    kind: str = "tool"
    """Which function of the tool it is for: `tool`, `reconcile`, `reminder`."""
    confirmation: ToolConfirmation | None = None
    """The person's decision, if the call needed one."""
    authorized: bool = False
    """The call runs again, since a person has given the credential that it needed."""
    begin: Callable[[bool], Awaitable[None]] = _nothing
    """Awaited right before the tool's function starts, with whether that may be at most once; what it raises ends the
    step, and nothing has started."""
    until: float = math.inf
    """When the step is to return at the latest, by `time.monotonic`: given up later, the tool would run again."""
    most_bytes: int = MAX_RESULT_BYTES
    """What the output may take as JSON."""


@dataclass(frozen=True)
class StepOutput:
    """What a step adds to the log."""

    events: tuple[Event, ...] = ()
    """With content and actions; id, time, author and invocation are given to them when they are logged."""
    state: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """What the step wrote into the state by other ways than an event's delta; it lasts as the invocation does."""
    ended: bool = False
    """The agent's run, or the turn, is to end behind the events, whatever they say."""
    message: types.Content | None = None
    """What the user's message is to be, if plugins changed it."""
    agents: tuple[NextAgent, ...] = ()
    """Of a custom agent's code: the sub-agents that it waits for."""
    calls: tuple[NextCall, ...] = ()
    """Of a custom agent's code: the functions of `run_activity` that it waits for."""
    failed: CodeFailure | None = None
    """Of a custom agent's code: the failure of another step by which it has ended."""
    returned: ToolOutput | None = None
    """Of a tool's step that failed: what the tool had returned before that, so that it does not run again."""
    done: tuple[str, ...] = ()
    """Of a graph: nodes that ended and left no event that tells so, by path."""
    output: ToolOutput | None = None
    """Of a tool that runs nodes: its output, once its code has ended."""
    goes_on: bool = False
    """The code is at work besides: of a graph, nodes of it are, or may go on once what this step adds is kept."""
    wakes_in: float | None = None
    """A timer of the code's own is due in so many seconds."""


Callback = Literal["before", "after", "begin", "end", "event", "run", "graph", "tool"]
"""Which callbacks: before an agent's run begins, or behind its end; those of plugins around an invocation's turn; or
plugins' look at an event. Or a custom agent's own code, or nodes of a graph, or a tool that runs nodes.
"""


ATTEMPTS_OF_DEFECTS = 3
"""How often a step is taken that fails of the app's own code, or of what its toolsets connect to."""


class StepRefused(PerdureError):
    """Code has run, and what it returned cannot be used. Running it again would not help."""

    def __init__(self, kind: str, message: str) -> None:
        """Say what is wrong; `kind` is the failure's type."""
        super().__init__(message)
        self.kind = kind


class ModelFailed(ModelError):
    """A model step failed, and says what it leaves in the log. It is tried again twice, or not at all."""

    def __init__(self, message: str, left: StepOutput, *, retryable: bool = False) -> None:
        """Say why, what is left, and whether the model was not even asked."""
        super().__init__(message, retryable=retryable)
        self.left = left


class ToolFailed(StepRefused):
    """A tool step failed, and says what it leaves in the log."""

    def __init__(self, kind: str, message: str, left: StepOutput, *, attempts: int | None = 1) -> None:
        """Say why, what is left, and how often it is tried at the most; `None` is as the tool's options say."""
        super().__init__(kind, message)
        self.left = left
        self.attempts = attempts


class CodeFailed(StepRefused):
    """A custom agent's code raised, and says what it leaves in the log."""

    def __init__(self, kind: str, message: str, left: StepOutput) -> None:
        """Say why, and what is left."""
        super().__init__(kind, message)
        self.left = left


class Steps(Protocol):
    """The steps of one app's agents. Their code runs on one loop; none blocks the loop of the caller."""

    async def call_model(self, at: Place, session: Snapshot, call: ModelCall, writer: Writer | None) -> StepOutput:
        """Ask an agent's model; returns its answer as an event.

        Args:
            at: The agent.
            session: The session; its log is shared and must not be changed.
            call: Which call it is.
            writer: Gets what the model writes while it writes it.

        Raises:
            ModelError: The model failed, and says whether it may be asked again.
            DefinitionError: The agent cannot ask a model. Not retried.
            NotRegistered: This process lacks the agent's code.
        """
        ...

    def prepare_model_call(self, at: Place, session: Snapshot, call: ModelCall) -> None:
        """Do of a model call what only reads the session, and keep it in the session's memo, for `call_model`.

        It runs no code of the user's. Raises nothing: the call itself tells of what is wrong.
        """
        ...

    async def callback(
        self,
        at: Place,
        session: Snapshot,
        which: Callback,
        event: Event | None = None,
        drafts: Drafts | None = None,
    ) -> StepOutput:
        """Run the callbacks before or after an agent, or those around a turn, of which `at` names the first agent.

        Or have plugins look at an `event` that is to be logged; returns it as they want it. Or run a custom agent's
        code, up to where it waits for sub-agents that have not run; `drafts` get the parts of what it says.

        Raises:
            NotRegistered: This process lacks the agent.
            CodeFailed: A custom agent's code raised.
            Exception: What a callback raised.
        """
        ...

    async def authorize(self, at: Place, session: Snapshot, requests: Sequence[str]) -> StepOutput:
        """Take up the credentials that a person gave, so that tools find them in the state.

        Args:
            at: The agent that asked.
            session: The session, with the answers.
            requests: The questions for credentials, by id.

        Raises:
            NotRegistered: This process lacks the agent.
            Exception: What ADK's code raised.
        """
        ...

    async def run_tool(self, at: Place, call: ToolCall) -> ToolOutput:
        """Run a tool's function, or say that a person has to confirm the call first.

        Returns what its response event is made of, once all calls of one answer have returned. Whatever the tool gave,
        nothing is raised once its function has returned.

        Raises:
            NotRegistered: This process lacks the tool.
            Exception: What the tool raised; it may run again.
        """
        ...

    async def reconcile(self, at: Place, call: ToolCall) -> ToolOutput:
        """Ask a tool's `reconcile` function whether a call that was cut off took effect; no result: it cannot tell.

        Raises:
            StepRefused: It returned something else.
        """
        ...

    async def remind(self, at: Place, call: ToolCall) -> None:
        """Run a long-running tool's reminder."""
        ...

    async def run_function(self, at: Place, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run a function of `App(activities=[…])`; returns its result as JSON.

        Raises:
            StepRefused: It returned no JSON.
        """
        ...


def llm_node(session: Projection, at: Place, plan: str | None) -> tuple[Plan, LlmNode]:
    """Return an LLM agent's node, and the plan that its invocation is pinned to.

    Args:
        session: The session.
        at: The agent.
        plan: The plan's digest, where the journal does not name it.

    Raises:
        DefinitionError: It is no LLM agent.
    """
    found = session.plans[plan or session.invocations[at.invocation_id].plan or ""]
    node = found.nodes[at.agent]
    if not isinstance(node, LlmNode):
        raise DefinitionError(f"agent {at.agent!r} has no model")
    return found, node
