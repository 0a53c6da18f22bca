"""Rebuilds the tree of an invocation's agent runs from what the invocation logged."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable
from dataclasses import dataclass
from typing import assert_never

from perdure.errors import LogError, quoted
from perdure.journal.entries import ActivityKept, CallbackRan, EventLogged, FailureCaught, RunBegan, RunEntry
from perdure.journal.events import Event
from perdure.journal.node_runs import NodeRun
from perdure.journal.run_paths import MAX_RUNS, agent_in
from perdure.journal.runs import AgentRun, is_state, upwards
from perdure.plan.nodes import CustomNode, LlmNode, ParallelNode, Plan


def build_runs(plan: Plan, root: str, entries: Iterable[RunEntry]) -> RunTree:
    """Return an invocation's agent runs, rebuilt from what was logged so far.

    Args:
        plan: The plan of the invocation.
        root: The agent that started it.
        entries: What it logged.

    Raises:
        LogError: An entry names a run that no agent of the plan has.
    """
    tree = RunTree(plan, root)
    for entry in entries:
        tree.add(entry)
    return tree


class RunTree:
    """An invocation's agent runs. Each entry names the one that it is of; one that names none is of no agent."""

    def __init__(self, plan: Plan, root: str) -> None:
        """Begin with the run of the agent that starts the invocation."""
        self.root = AgentRun(root, None, path=root)
        self.runs = {root: self.root}
        """All of them by their paths, also those that a checkpoint has forgotten."""
        self._plan = plan
        self._caught: dict[AgentRun, list[_Failed]] = {}
        """What failed underneath an agent, and was dealt with."""
        self._entries_caught = 0

    def add(self, entry: RunEntry) -> None:
        """Take in what was logged next.

        Raises:
            LogError: It names a run that no agent of the plan has.
        """
        if isinstance(entry, FailureCaught):
            self._entries_caught += 1
        if not entry.run:
            return
        run = self._find(entry.run, entry.event.branch if isinstance(entry, EventLogged) else entry.branch)
        match entry:
            case EventLogged():
                self._log(run, entry)
            case RunBegan():
                self._begin_anew(run, entry)
            case CallbackRan():
                run.called_back[entry.which] = entry.ids
            case ActivityKept():
                run.activities.append(entry)
            case FailureCaught():
                self._catch(run, entry)
            case _:
                assert_never(entry)

    def begin(self, parent: AgentRun, agent: str, branch: str | None) -> AgentRun:
        """Begin an agent's next run underneath another one.

        Raises:
            LogError: It would be within too many others for an entry to name it.
        """
        last = parent.last_child(agent)
        nth = 1 if last is None else last.nth + 1
        if not parent.may_begin(agent, nth):
            raise LogError(f"agent {quoted(agent)} runs within more than {MAX_RUNS} others, or such of very long names")
        run = self.runs[parent.path_of(agent, nth)] = parent.begin(agent, branch, nth)
        parent.children.append(run)
        return run

    def _find(self, path: str, branch: str | None, *, leaf: bool = True) -> AgentRun:
        """Return the run of a path, begun if nothing was told of it."""
        run = self.runs.get(path)
        if run is not None:
            return run
        above, _, segment = path.rpartition("/")
        if not above:
            raise LogError(f"the run {quoted(path)} is none of agent {quoted(self.root.agent)}, which began")
        parent, agent = self._find(above, branch, leaf=False), agent_in(segment)
        if not self.may_begin(parent.agent, agent):
            raise LogError(f"the run {quoted(path)} is none of app {quoted(self._plan.app)}: its agents are others")
        branch = branch if leaf else self._branch_below(parent, agent, branch)
        run = AgentRun(agent, branch, parent, path=path, nth=int(segment.partition("#")[2] or 1))
        self.runs[path] = run
        # What an agent began before its last checkpoint is forgotten, though it may still be at work.
        if run.is_remembered:
            if parent.children and parent.children[-1].nth > run.nth:
                insort(parent.children, run, key=lambda child: child.nth)
            else:
                parent.children.append(run)
        return run

    def _branch_below(self, parent: AgentRun, agent: str, branch: str | None) -> str | None:
        """Return the branch of a run in which nothing was logged itself; `branch` is that of one underneath."""
        match self._plan.nodes[parent.agent]:
            case CustomNode():
                return branch
            case ParallelNode():
                return f"{parent.branch}.{parent.agent}.{agent}" if parent.branch else f"{parent.agent}.{agent}"
            case _:
                return parent.branch

    def may_begin(self, parent: str, agent: str) -> bool:
        """Return whether an agent has another one run: a sub-agent, or, of LLM agents, whom control is handed to."""
        above = self._plan.nodes.get(parent)
        if above is None or agent not in self._plan.nodes:
            return False
        if isinstance(above, CustomNode):
            # Tools may share an agent that they run.
            shares = above.tool is not None and agent not in self._plan.path(parent)
            return shares or parent in self._plan.path(agent)[:-1]
        return isinstance(above, LlmNode) or self._plan.parents.get(agent) is above

    def _begin_anew(self, run: AgentRun, entry: RunBegan) -> None:
        if run.begun_after is not None:
            # A custom agent's code begins at its top again, behind an answer; an LLM agent, behind a task.
            run.checkpoints += 1
            self._forget(run)
            if isinstance(self._plan.nodes.get(run.agent), LlmNode):
                run.called_back.clear()
        run.begun_after, run.node = entry.after, entry.node

    def _log(self, run: AgentRun, entry: EventLogged) -> None:
        event = entry.event
        self._take_node(run, event)
        for above in upwards(run):
            above.escalated |= bool(event.actions.escalate)
            if not entry.hidden:
                above.log.append(event)
        if _ends_early(run, event):
            run.end_logged = True
            return
        _go_on(run)
        self._record(run, event)
        target = self.target_of(run, event)
        if target is not None and run.last_child(target) is None and run.may_begin(target):
            self.begin(run, target, run.branch)

    def target_of(self, run: AgentRun, event: Event) -> str | None:
        """Return the agent to which control goes over with an event of a run."""
        target = event.actions.transfer_to_agent
        hands_over = isinstance(self._plan.nodes.get(run.agent), LlmNode) and target in self._plan.nodes
        return target if hands_over else None

    def _take_node(self, run: AgentRun, event: Event) -> None:
        """Take from an event as which node of a graph its agent runs, where nothing else tells: in a bare log."""
        above = self._plan.nodes.get(run.parent.agent) if run.parent is not None and run.node is None else None
        path = (event.node_info or {}).get("path")
        if path and isinstance(above, CustomNode) and above.graph is not None:
            run.node = NodeRun(path=path)

    def _record(self, run: AgentRun, event: Event) -> None:
        run.checkpoints += is_state(event)
        if is_state(event):
            run.ended = bool(event.actions.end_of_agent)
            if not run.ended:
                run.state = event.actions.agent_state
            self._forget(run)
        elif not run.is_of_callback(event):
            run.own.append(event)

    def _forget(self, run: AgentRun) -> None:
        run.own.clear()
        run.children.clear()
        run.activities.clear()
        self._caught.pop(run, None)

    def _catch(self, run: AgentRun, entry: FailureCaught) -> None:
        if not entry.failures:
            self._try_again(run, entry)
            return
        failed: AgentRun | FailureCaught = entry
        if not entry.sub_run:
            run.activities.append(entry)
        else:
            failed = self._find(entry.sub_run, run.branch)
            if failed.parent is not run or not failed.is_remembered:
                return
            failed.failure = entry
        self._caught.setdefault(run, []).append(_Failed(self._entries_caught - 1, len(run.own), failed))

    def _try_again(self, run: AgentRun, entry: FailureCaught) -> None:
        """Open what failed underneath again, but for what the agent has made good itself.

        What it said since may have been due to a failure; where that comes again, so will this.
        """
        numbers, caught, made_good = set(entry.again), self._caught.pop(run, []), _made_good(run)
        left = [failed for failed in caught if numbers and failed.number not in numbers]
        if left:
            self._caught[run] = left
        chosen = [failed for failed in caught if not numbers or failed.number in numbers]
        again = [failed for failed in chosen if id(failed.what) not in made_good]
        for failed in reversed(again):
            del run.own[failed.said :]
            if isinstance(failed.what, AgentRun):
                failed.what.failure = None
        tried = {id(failed.what) for failed in again}
        run.activities[:] = [one for one in run.activities if id(one) not in tried]


def _ends_early(run: AgentRun, event: Event) -> bool:
    """Return whether an end stands in front of the work of the agent to which control is handed over, as ADK 2 logs."""
    if event.node_info is None or not event.actions.end_of_agent or not run.children or not run.own:
        return False
    target, child = run.own[-1].actions.transfer_to_agent, run.children[-1]
    return child.agent == target and not (child.log or child.ended)


def _go_on(run: AgentRun) -> None:
    """Take back ends: one counts only until its author logs again, or whom it has begun since."""
    below = None
    for up in upwards(run):
        if up.ended and (below is None or below.is_remembered):
            up.ended, up.state = False, None
        below = up


@dataclass(frozen=True)
class _Failed:
    """A failure underneath an agent, as its entry in the journal tells."""

    number: int
    """Which of the invocation's entries of this kind it is."""
    said: int
    """How many events of its own the agent had logged."""
    what: AgentRun | FailureCaught


def _made_good(run: AgentRun) -> set[int]:
    """Return what failed, by `id`, where a later run of the same sub-agent, or call of the same function, has ended."""
    found, ended, kept = set[int](), set[str](), set[tuple[str, str | None]]()
    for child in reversed(run.children):
        if child.agent in ended:
            found.add(id(child))
        if child.ended:
            ended.add(child.agent)
    for one in reversed(run.activities):
        if (one.name, one.arguments) in kept:
            found.add(id(one))
        if isinstance(one, ActivityKept):
            kept.add((one.name, one.arguments))
    return found
