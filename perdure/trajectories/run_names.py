"""Names the agent runs of a log from elsewhere, whose events tell authors and branches only. Pure.

Done once, as an invocation of such a log is pinned to a plan: what Perdure logs itself names its runs. Authors and
branches tell runs apart exactly, but for those that a custom agent has at work at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from perdure.errors import LogError
from perdure.journal.compact_json import payload_size
from perdure.journal.entries import MAX_EVENT_BYTES, EventLogged, InvocationPinned, RunEntry
from perdure.journal.events import USER
from perdure.journal.projection import Projection
from perdure.journal.run_tree import RunTree, build_runs
from perdure.journal.runs import AgentRun, upwards
from perdure.plan.nodes import CustomNode, Plan
from perdure.trajectories.wholeness import ADVICE


def with_runs(pinned: InvocationPinned, session: Projection, plan: Plan) -> InvocationPinned:
    """Return the entry by which an imported invocation is pinned, with the names of its runs, if its log has none.

    Args:
        pinned: The entry.
        session: The session.
        plan: The plan that it names.

    Raises:
        LogError: The log names runs that the plan does not have, or has too many within each other.
    """
    entries = session.invocations[pinned.invocation_id].entries
    if any(entry.run for entry in entries):
        _check(plan, pinned.agent, entries)
        return pinned
    names = name_runs(plan, pinned.agent, entries)
    pinned = pinned.model_copy(update={"runs": tuple((name, len(list(same))) for name, same in groupby(names))})
    if payload_size(pinned) > MAX_EVENT_BYTES:
        raise LogError("the imported log has more agent runs than one entry of the journal can name")
    return pinned


def _check(plan: Plan, root: str, entries: Sequence[RunEntry]) -> None:
    try:
        build_runs(plan, root, entries)
    except LogError as error:
        raise LogError(f"the imported log has other agents: {error}{ADVICE}") from error


def name_runs(plan: Plan, root: str, entries: Sequence[RunEntry]) -> list[str]:
    """Return the paths of the agent runs that entries without one are of; empty where no agent logged one.

    Args:
        plan: The plan of the invocation.
        root: The agent that started it.
        entries: What it logged.

    Raises:
        LogError: There are too many runs within each other.
    """
    stacks = _Stacks(plan, root)
    return [stacks.take(entry) if isinstance(entry, EventLogged) else "" for entry in entries]


class _Stacks:
    """Replays events as the call stack that left them: one stack of open runs for each branch."""

    def __init__(self, plan: Plan, root: str) -> None:
        self._plan = plan
        self._tree = RunTree(plan, root)
        self._stacks: dict[str, list[AgentRun]] = {}
        self._latest: dict[tuple[str, str], AgentRun] = {}
        """The run in which an agent logged last on a branch."""
        self._newest: dict[tuple[AgentRun, str, str], AgentRun] = {}
        """The newest run of an agent on a branch underneath another run."""

    def take(self, entry: EventLogged) -> str:
        """Take in the next event; returns the path of its run."""
        event, branch = entry.event, entry.event.branch or ""
        run = self._find(event.node if event.author == USER else event.author, branch)
        if run is None:
            return ""
        self._tree.add(entry.model_copy(update={"run": run.path}))
        stack, target = self._stacks.get(branch, []), self._tree.target_of(run, event)
        if run.ended and run in stack:
            del stack[stack.index(run) :]
        elif target is not None:
            below = run.last_child(target) or self._tree.begin(run, target, run.branch)
            stack.append(below)
            self._latest[target, branch] = self._newest[run, target, branch] = below
        return run.path

    def _find(self, agent: str, branch: str) -> AgentRun | None:
        """Return the innermost open run of an agent on a branch; open it, and what lies between, if there is none."""
        stack = self._stack(branch) if agent in self._plan.nodes else None
        if stack is None or not self._unwind(stack, agent):
            return None
        path = self._plan.path(agent)
        if stack[-1].agent != agent:
            stack += self._to_latest(stack[-1], agent, branch)
        for name in path[path.index(stack[-1].agent) + 1 :]:
            stack.append(self._enter(stack[-1], name, branch))
        self._latest[agent, branch] = stack[-1]
        return stack[-1]

    def _stack(self, branch: str) -> list[AgentRun] | None:
        if not branch:
            # An end counts only until its author logs again.
            self._stacks[""] = self._stacks.get("") or [self._tree.root]
            return self._stacks[""]
        *above, parallel, child = ["", *branch.split(".")]
        owner = self._find(parallel, ".".join(above[1:]))
        if owner is None or not self._tree.may_begin(parallel, child):
            # No parallel agent's, as an author's own event or an import may say.
            return None
        stack = self._stacks.get(branch)
        if not stack or stack[0].parent is not owner or not _goes_on(stack[0]):
            stack = self._stacks[branch] = [self._enter(owner, child, branch)]
        return stack

    def _unwind(self, stack: list[AgentRun], agent: str) -> bool:
        """Leave on top the innermost run of an agent, or of one above it in the plan; returns whether there is one."""
        names = [run.agent for run in stack]
        if agent in names:
            del stack[len(names) - names[::-1].index(agent) :]
        path = self._plan.path(agent)
        while stack and stack[-1].agent not in path:
            stack.pop()
        return bool(stack)

    def _enter(self, parent: AgentRun, agent: str, branch: str) -> AgentRun:
        """Return a new run of a sub-agent; of those that a custom agent gathers, the one that goes on."""
        run = self._newest.get((parent, agent, branch))
        if run is None or not _goes_on(run) or not self._gathers(parent):
            run = self._newest[parent, agent, branch] = self._tree.begin(parent, agent, branch or None)
        return run

    def _to_latest(self, top: AgentRun, agent: str, branch: str) -> list[AgentRun]:
        """Return the runs that lead to where an agent logged last, if that goes on: transfers may lead to it."""
        run, found = self._latest.get((agent, branch)), list[AgentRun]()
        while run is not None and run is not top:
            if not _goes_on(run):
                return []
            found.append(run)
            run = run.parent
        return found[::-1] if run is top and self._gathers(top) else []

    def _gathers(self, run: AgentRun) -> bool:
        """Return whether what is underneath may be of several runs at once."""
        return any(isinstance(self._plan.nodes.get(up.agent), CustomNode) for up in upwards(run))


def _goes_on(run: AgentRun) -> bool:
    return run.is_remembered and not run.ended
