"""Whether the step that `explain` tells of is the step that comes: asked right before an event is logged."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from perdure.journal.entries import Entry, EventLogged
from perdure.journal.events import USER, Event
from perdure.journal.fold import apply_entry
from perdure.journal.projection import Projection
from perdure.journal.questions import is_confirmation_request, is_doubt_request
from perdure.journal.runs import is_failure
from perdure.plan.nodes import LlmNode, LoopNode, ParallelNode, Plan, SequentialNode
from perdure.views.next_steps import AgentStep, look_ahead


def walk(step: AgentStep) -> Iterator[AgentStep]:
    """Yield a step and all underneath."""
    yield step
    for below in step.below:
        yield from walk(below)


def check_told(entries: Iterable[Entry], plan: Plan | None = None) -> int:
    """Check all events of a journal's agents; returns how many are of LLM agents.

    Args:
        entries: The journal, with all checkpoints and ends, also those that readers do not see.
        plan: Its plan, if the journal names none.

    Raises:
        AssertionError: Another agent, or another step, was told of.
    """
    projection, checked = Projection(), 0
    for entry in entries:
        if isinstance(entry, EventLogged) and entry.event.author != USER:
            invocation = projection.invocations.get(entry.event.invocation_id)
            known = plan or (projection.plan_of(invocation) if invocation is not None else None)
            # Of an imported log nothing was run here, and that a step failed is no step.
            if invocation is not None and known is not None and not is_failure(entry.event):
                root = look_ahead(projection, known, invocation)
                assert root is not None
                checked += _check(entry.event, known, list(walk(root)))
        apply_entry(projection, entry)
    return checked


def _check(event: Event, plan: Plan, steps: list[AgentStep]) -> bool:
    found = [step for step in steps if (step.agent, step.branch) == (event.author, event.branch)]
    node = plan.nodes[event.author]
    if not found:
        # A custom agent decides.
        assert any(step.next == "runs its code" for step in steps), event
    elif isinstance(node, (SequentialNode, LoopNode, ParallelNode)):
        state = event.actions.agent_state
        assert {step.next for step in found} == {"ends" if state is None else "enters"}, (event, found)
        if state:
            (below,) = (step.below[0] for step in found)
            # One that has nothing to do logs nothing.
            assert below.agent == state["current_sub_agent"] or below.next == "ends", (event, found)
    elif isinstance(node, LlmNode):
        wanted = _what_logs(event)
        told = {step.next for step in found}
        over = any(step.next == "hands over" and step.below[0].next == "ends" for step in found)
        assert wanted in told or (wanted == "ends" and over), (event, told)
    return bool(found) and isinstance(node, LlmNode)


def _what_logs(event: Event) -> str:
    """Return what an LLM agent did that left an event."""
    if event.actions.end_of_agent:
        return "ends"
    if event.get_function_responses() or is_confirmation_request(event) or is_doubt_request(event):
        return "runs tools"
    return "calls its model"
