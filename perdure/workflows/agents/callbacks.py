"""Runs what google.adk has around agents and turns, each in a step of its own, once: callbacks, credentials."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from perdure.journal.events import Event
from perdure.journal.runs import AgentRun
from perdure.messages.callbacks import AgentCallback, Callback, CallbackInput
from perdure.messages.step_log import StepLog
from perdure.plan.nodes import Node, Plan, ToolOptions
from perdure.workflows.agents.scope import Scope

_OPTIONS = ToolOptions(max_attempts=15)
"""What a callback raises fails the step at once; what died with its worker runs again."""

_CODE_OPTIONS = _OPTIONS.model_copy(update={"timeout": timedelta(hours=2)})
"""A custom agent's code may take its time; it is given back every hour."""


async def before_agent(scope: Scope, node: Node, run: AgentRun) -> bool:
    """Run the callbacks before an agent, if they have not run; returns whether the agent is to run.

    Raises:
        EffectFailed: One raised.
    """
    if not node.before or "before" in run.called_back:
        return True
    ended = await _call_back(scope, run, "before")
    if ended:
        # As in ADK, which skips the callbacks behind it, too, and logs no end.
        scope.end(node, run, hidden=True)
    return not ended


async def after_agent(scope: Scope, node: Node, run: AgentRun) -> None:
    """Run the callbacks after an agent, if they have not run.

    Raises:
        EffectFailed: One raised.
    """
    if node.after and "after" not in run.called_back:
        await _call_back(scope, run, "after")


async def begin_turn(scope: Scope, agent: str) -> StepLog:
    """Have plugins look at a turn's message, which is not logged yet, and at the turn; returns what they left.

    Args:
        scope: The invocation.
        agent: Its first agent.

    Raises:
        EffectFailed: One raised.
    """
    if scope.plan.adk is None or not scope.plan.adk.begins:
        return StepLog()
    return await run_step(scope, agent, "begin")


def ends_turns(plan: Plan) -> bool:
    """Return whether anything runs behind a turn."""
    return plan.adk is not None and plan.adk.ends


async def end_turn(scope: Scope, agent: str) -> None:
    """Have plugins look at a turn that has ended, and compact the log.

    Args:
        scope: The invocation.
        agent: Its first agent.

    Raises:
        EffectFailed: One raised, or an event is too large to be read again.
    """
    if ends_turns(scope.plan):
        await scope.log_beside(await run_step(scope, agent, "end"))


async def shown_to_plugins(scope: Scope, run: AgentRun, event: Event) -> Event:
    """Have plugins look at an event of a run that is to be logged; returns it as they want it.

    What tools returned for it is in the journal by then, so none of them runs again if this fails.

    Args:
        scope: The invocation.
        run: The agent run.
        event: The event, with its author.

    Raises:
        EffectFailed: A plugin raised.
    """
    if scope.plan.adk is None or not scope.plan.adk.watches:
        return event
    scope.keep_unlogged()
    step = await run_step(scope, run.agent, "event", branch=run.branch, run=run.path, event=event)
    if step.state:
        scope.keep_state(step.state)
    return step.events[0].model_copy(update={"author": event.author, "branch": event.branch})


async def authorize(scope: Scope, run: AgentRun, requests: Sequence[str]) -> None:
    """Have ADK take up the credentials that a person gave, each once: an authorization code is good for one exchange.

    Args:
        scope: The invocation.
        run: The agent run that asked.
        requests: The answered questions, by id.

    Raises:
        EffectFailed: ADK's code raised.
    """
    fresh = tuple(id for id in requests if id not in scope.invocation.authorized)
    if not fresh:
        return
    scope.progress.check_stopped()
    step = await run_step(scope, run.agent, "authorize", branch=run.branch, run=run.path, requests=fresh)
    scope.keep_state(step.state, authorized=fresh)


async def _call_back(scope: Scope, run: AgentRun, which: AgentCallback) -> bool:
    scope.progress.check_stopped()
    step = await run_step(scope, run.agent, which, branch=run.branch, run=run.path)
    for event in await scope.log_step(step, run, of=which):
        run.escalated |= bool(event.actions.escalate)
    return step.ended


async def run_step(
    scope: Scope,
    agent: str,
    which: Callback,
    *,
    branch: str | None = None,
    run: str = "",
    requests: tuple[str, ...] = (),
    event: Event | None = None,
) -> StepLog:
    """Run one step that is no model call and no tool; what its activity is given is said there.

    Raises:
        EffectFailed: It failed.
    """
    call = CallbackInput(
        which=which,
        agent=agent,
        invocation_id=scope.invocation.id,
        branch=branch,
        run=run,
        scope=scope.calls,
        requests=requests,
        event=event,
        journal=scope.slice(),
    )
    with scope.slice_under_way(call.journal) as witness:
        options = _CODE_OPTIONS if which == "run" else _OPTIONS
        return await scope.activities.callback(call, options, witness)
