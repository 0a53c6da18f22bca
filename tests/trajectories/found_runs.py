"""Whether the runs that a journal names are those that authors and branches tell, as of a log from elsewhere."""

from __future__ import annotations

from collections.abc import Iterable

from perdure.journal.entries import Entry, EventLogged, InvocationSettled
from perdure.journal.fold import apply_entry
from perdure.journal.projection import Invocation, Projection
from perdure.journal.run_tree import build_runs
from perdure.plan.nodes import CustomNode
from perdure.trajectories.run_names import name_runs


def check_runs(entries: Iterable[Entry]) -> int:
    """Check all events of a journal's agents; returns of how many the run was found, which no custom agent has begun.

    Raises:
        AssertionError: Another run was found, or an agent's entry names none.
        LogError: The plan does not have a run that is named.
    """
    projection, checked = Projection(), 0
    for entry in entries:
        if isinstance(entry, InvocationSettled):
            # What has finished forgets its entries.
            checked += _check(projection, projection.invocations[entry.invocation_id])
        apply_entry(projection, entry)
    return checked + sum(_check(projection, invocation) for invocation in projection.invocations.values())


def _check(projection: Projection, invocation: Invocation) -> int:
    plan = projection.plans.get(invocation.plan or "")
    if plan is None or invocation.agent is None:
        return 0
    unnamed = [entry for entry in invocation.entries if not entry.run]
    assert all(isinstance(one, EventLogged) and one.event.author not in plan.nodes for one in unnamed), unnamed
    if any(isinstance(node, CustomNode) for node in plan.nodes.values()):
        build_runs(plan, invocation.agent, invocation.entries)
        return 0
    named = [entry.run if isinstance(entry, EventLogged) else "" for entry in invocation.entries]
    found = name_runs(plan, invocation.agent, [one.model_copy(update={"run": ""}) for one in invocation.entries])
    assert found == named, [pair for pair in zip(found, named, strict=True) if pair[0] != pair[1]]
    return sum(map(bool, named))
