"""Bodies of answers about effects, plans, imports, and what a resume would do."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import WithJsonSchema

from perdure.api.v1.schemas import FailureOf, Invocation, Pending, Resource
from perdure.journal.open_calls import InvocationStatus, SessionStatus
from perdure.journal.tool_runs import Outcome
from perdure.plan.diff import Change
from perdure.plan.nodes import Plan
from perdure.sessions.transfers import ImportedSession
from perdure.views.explanation import Awaited, InvocationExplanation, SessionExplanation, Takes
from perdure.views.next_steps import CallNext


class EffectOf(Resource):
    """A tool call in the ledger of its session."""

    call_id: str
    tool: str
    agent: str
    branch: str | None
    invocation_id: str
    idempotency_key: str
    """What the tool got, and passed on."""
    attempts: int
    called: float
    """Seconds since the epoch; so are the next two."""
    started: float | None
    ended: float | None
    outcome: Outcome
    cause: str | None
    """Why the last run failed."""


class EffectsList(Resource):
    """A page of the ledger, in the order of the calls."""

    effects: list[EffectOf]
    next: int
    """The offset behind them."""
    total: int
    """Calls in the whole ledger."""


PlanJson = Annotated[Plan, WithJsonSchema({"type": "object", "description": "As `perdure plan --json`."})]
"""The document does not tell the fields: they are ADK's and google-genai's own."""


class AppPlan(Resource):
    """The plan that an app's next invocation is pinned to, as this server's code has it."""

    digest: str
    plan: PlanJson


class PinnedPlan(Resource):
    """The plan that an invocation is pinned to."""

    invocation_id: str
    digest: str | None
    """Not set while it is queued."""
    plan: PlanJson | None
    app_digest: str | None
    """Digest of the app's plan as this server's code has it; not set for an app that the server was not given."""
    changes: list[Change] | None
    """From the pinned plan to the app's; empty if they are equal."""


class AwaitedOf(Resource):
    """An open call, and what answers it."""

    call: Pending
    takes: Takes
    """`value`, `decision` (approve or reject), or `verdict` on a call that was cut off."""
    who: str
    example: dict[str, Any]
    """A response of the right form."""

    @classmethod
    def of(cls, awaited: Awaited) -> AwaitedOf:
        """Return an awaited call as a resource."""
        return cls(call=Pending.of(awaited.call), takes=awaited.takes, who=awaited.who, example=awaited.example)


class NextCallOf(Resource):
    """The next step of one function call."""

    id: str
    tool: str
    next: CallNext
    attempts: int


class NodeOf(Resource):
    """A node of a graph, and where it stands."""

    path: str
    """Names of the graphs around it within the outermost one, and its own, with slashes."""
    kind: str
    standing: str
    """`done`, `has begun`, `waits` (for a person) or `not reached`."""
    runs: int
    leads_to: list[str]
    """Nodes behind it, by name, each with the routes that lead there: `approve (SMALL)`."""
    first: bool


class StepOf(Resource):
    """An agent's standing, and its next step."""

    agent: str
    kind: str
    branch: str | None
    next: str
    words: str
    calls: list[NextCallOf]
    below: list[StepOf]
    """The agents that it enters again, or enters next."""
    done: list[str]
    """Sub-agents that have ended, and are not entered again."""
    graph: list[NodeOf]
    """Of a graph: its nodes."""


class KeptOf(Resource):
    """A tool's result that no event holds yet; its tool does not run again."""

    call_id: str
    tool: str
    agent: str


class ResumeOf(Resource):
    """The outcome that a resume would have now."""

    verdict: str
    """`runs on`, `nothing` or `refused`."""
    why: str
    step: StepOf | None
    kept: list[KeptOf]
    answers: list[str]
    """Calls whose answers are accepted, and enter the log as soon as they may."""


class ExplainedInvocation(Resource):
    """An invocation's standing, and why it does not go on."""

    id: str
    status: InvocationStatus
    agent: str | None
    plan: str | None
    """Digest of its plan."""
    reason: str | None
    failures: list[FailureOf]
    behind: list[str]
    """Of a queued one: invocations that work before it, the first of them."""
    behind_count: int
    """All that work before it."""
    awaits: list[AwaitedOf]
    resume: ResumeOf

    @classmethod
    def of(cls, explained: InvocationExplanation) -> ExplainedInvocation:
        """Return an explanation as a resource."""
        awaits = [AwaitedOf.of(awaited) for awaited in explained.awaits]
        return cls.model_validate(
            {**explained.model_dump(exclude={"awaits", "arrived", "dealt_with"}), "awaits": awaits}
        )


class Explanation(Resource):
    """A session's standing: what it awaits, why it does not go on, and what a resume would do."""

    app_name: str
    user_id: str
    id: str
    status: SessionStatus
    closed: str | None
    """How its workflow ended, if it is closed; the next message, answer or resume brings it back."""
    halted: str | None
    """Why no worker takes a step of it, if it is so: none serves its app, or its workflow tasks fail."""
    total: int
    """All of its invocations."""
    invocations: list[ExplainedInvocation]
    """The one that was asked for; else those that are not finished, or the newest; of many, a page."""
    open_count: int
    """All that there are of these."""
    next: int | None
    """Where the next page of them begins; not set behind the last one."""
    listens: str | None
    """The agent whose task is open: the user's next message is for it."""

    @classmethod
    def of(cls, explained: SessionExplanation) -> Explanation:
        """Return an explanation as a resource."""
        return cls(
            **explained.model_dump(exclude={"invocations", "invocation_count", "raised"}),
            total=explained.invocation_count,
            invocations=[ExplainedInvocation.of(one) for one in explained.invocations],
        )


class Imported(Resource):
    """A session that was made of a log."""

    app_name: str
    user_id: str
    session_id: str
    event_count: int
    invocations: list[Invocation]
    """As the log left them; nothing of it is set going."""
    replaced: str | None
    """Session id under which the log that stood here before is kept."""
    notes: list[str]
    """What of the log was left out, or is not known."""

    @classmethod
    def of(cls, imported: ImportedSession) -> Imported:
        """Return an imported session as a resource."""
        told = [Invocation.of(view) for view in imported.invocations]
        return cls(**imported.model_dump(exclude={"invocations"}), invocations=told)
