"""Rebuilds the tree of an invocation's agent runs from what the invocation logged."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import assert_never

from perdure.journal.entries import ActivityKept, CallbackRan, EventLogged, FailureCaught, RunBegan, RunEntry
from perdure.journal.events import USER, Event
from perdure.journal.node_runs import NodeRun
from perdure.journal.run_paths import agent_in
from perdure.journal.runs import AgentRun, is_state, upwards
from perdure.plan.nodes import CustomNode, LlmNode, Node, Plan


def build_runs(plan: Plan, root: str, entries: Iterable[RunEntry]) -> AgentRun:
    """Return the agent run that started an invocation, rebuilt with all underneath from what was logged so far.

    Args:
        plan: The plan of the invocation.
        root: The agent that started it.
        entries: What it logged.
    """
    builder = _Builder(plan, root)
    for entry in entries:
        builder.add(entry)
    return builder.root


class _NamedRuns:
    """An invocation's agent runs by their paths: those that entries name, and those that were found without."""

    def __init__(self, plan: Plan, root: AgentRun) -> None:
        self._plan = plan
        self._runs = {root.path: root}
        self._held: set[AgentRun] = set()
        """Runs that entries name, and those that follow from these."""
        self._last: dict[tuple[str, str | None], AgentRun] = {}
        """The run in which an agent logged last, or to which control was handed over, of these."""

    def holds(self, run: AgentRun) -> bool:
        """Return whether an entry has named this run, or it follows from those that have."""
        return run in self._held

    def find(self, path: str, agent: str, branch: str | None) -> AgentRun | None:
        """Return the run of a path, begun if nothing was told of it; `None` if it fits the plan, or the agent, not."""
        missing: list[str] = []
        known = path
        while (run := self._runs.get(known)) is None:
            known, _, segment = known.rpartition("/")
            missing.append(segment)
            if not known:
                return None
        while missing:
            child = self._begin(run, missing.pop(), branch, leaf=not missing)
            if child is None:
                return None
            run = child
        if run.agent != agent or agent not in self._plan.nodes:
            return None
        self._held.add(run)
        return run

    def _begin(self, parent: AgentRun, segment: str, branch: str | None, *, leaf: bool) -> AgentRun | None:
        agent, nth = agent_in(segment), segment.partition("#")[2]
        node, above = self._plan.nodes.get(agent), self._plan.nodes.get(parent.agent)
        # Only a custom agent has others work before it has logged anything.
        if node is None or above is None or not (leaf or isinstance(node, CustomNode)):
            return None
        if not self._may_begin(above, agent):
            return None
        run = AgentRun(agent, branch, parent, path=f"{parent.path}/{segment}", nth=int(nth or 1))
        self._runs[run.path] = run
        # What an agent began before its last checkpoint is forgotten, though it may still be at work.
        if run.path == parent.path_of(agent, run.nth):
            parent.children.append(run)
            if len(parent.children) > 1 and parent.children[-2].nth > run.nth:
                parent.children.sort(key=lambda child: child.nth)
        return run

    def _may_begin(self, above: Node, agent: str) -> bool:
        if isinstance(above, CustomNode):
            path = self._plan.path(agent)[:-1]
            # Tools may share an agent that they run.
            return above.name in path or (above.tool is not None and agent not in self._plan.path(above.name))
        return self._plan.parents.get(agent) is above or isinstance(above, LlmNode)

    def log(self, run: AgentRun, event: Event) -> None:
        """Take note of an event in a run that these hold, before it is recorded."""
        self._last[event.author, event.branch] = run
        below = None
        for up in upwards(run):
            if up.ended and (below is None or below in up.children):
                # An end counts only until its author logs again, or whom it has begun since.
                up.ended, up.state = False, None
            below = up
        target = event.actions.transfer_to_agent
        custom = isinstance(self._plan.nodes.get(run.agent), CustomNode)
        if target is not None and target in self._plan.nodes and not custom:
            child = run.last_child(target) or self.add(run, target, run.branch)
            self._held.add(child)
            self._last[target, event.branch] = child

    def find_last(self, agent: str, branch: str | None) -> AgentRun | None:
        """Return whose an entry is that has no path, behind some that have: so are journals rebuilt from history."""
        run = self._last.get((agent, branch))
        if run is None or not _goes_on(run):
            parent = self._plan.parents.get(agent)
            above = self._last.get((parent.name, branch)) if parent is not None else None
            if above is None or not _goes_on(above):
                return None
            run = above.last_child(agent)
            if run is None or not _goes_on(run):
                run = self.add(above, agent, branch)
        self._held.add(run)
        return run

    def add(self, parent: AgentRun, agent: str, branch: str | None) -> AgentRun:
        """Begin a run of a sub-agent of which the log says no path."""
        last = parent.last_child(agent)
        run = parent.begin(agent, branch, 1 if last is None else last.nth + 1)
        parent.children.append(run)
        if run.path:
            self._runs[run.path] = run
        return run

    def restart(self, root: AgentRun) -> AgentRun:
        """Begin the root's run once more, since it logs behind its end."""
        again = AgentRun(root.agent, None, path=root.path)
        self._runs = {root.path: again}
        self._held.clear()
        self._last.clear()
        return again


def _ends_early(run: AgentRun, event: Event) -> bool:
    """Return whether an end stands in front of the work of the agent to which control is handed over, as ADK 2 logs."""
    if event.node_info is None or not event.actions.end_of_agent or not run.children or not run.own:
        return False
    target, child = run.own[-1].actions.transfer_to_agent, run.children[-1]
    return child.agent == target and not (child.log or child.ended)


def _goes_on(run: AgentRun) -> bool:
    return not any(up.ended or up.failure is not None for up in upwards(run))


class _Builder:
    """Replays a log as the call stack that left it: one stack of open runs for each branch."""

    def __init__(self, plan: Plan, root: str) -> None:
        self._plan = plan
        self.root = AgentRun(root, None, path=root)
        self._named = _NamedRuns(plan, self.root)
        self._stacks: dict[str | None, list[AgentRun]] = {None: [self.root]}
        self._cut: dict[AgentRun, list[AgentRun]] = {}
        """What was open of runs whose failure was dealt with."""
        self._caught: dict[AgentRun, list[_Failed]] = {}
        """What failed underneath a custom agent, and how many events of its own it had logged."""
        self._entries_caught = 0
        self._latest: dict[tuple[str, str | None], AgentRun] = {}
        """The run in which an agent logged last."""

    def add(self, entry: RunEntry) -> None:
        match entry:
            case FailureCaught():
                self._catch(entry)
            case RunBegan():
                began = self._named.find(entry.run, entry.agent, entry.branch)
                if began is not None:
                    self._begin(began, entry)
            case CallbackRan():
                called = self._run_of(entry.run, entry.agent, entry.branch)
                if called is not None:
                    called.called_back[entry.which] = entry.ids
            case ActivityKept():
                kept = self._run_of(entry.run, entry.agent, entry.branch)
                if kept is not None:
                    kept.activities.append(entry)
            case EventLogged():
                self._add_event(entry)
            case _:
                assert_never(entry)

    def _begin(self, run: AgentRun, entry: RunBegan) -> None:
        if run.begun_after is not None:
            # A custom agent's code begins at its top again, behind an answer; an LLM agent, behind a task.
            run.checkpoints += 1
            self._forget(run)
            if isinstance(self._plan.nodes[run.agent], LlmNode):
                run.called_back.clear()
        run.begun_after, run.node = entry.after, entry.node

    def _add_event(self, entry: EventLogged) -> None:
        event = entry.event
        run = self._run_of(entry.run, self._agent_of(entry), event.branch)
        if run is None:
            return
        self._take_node(run, event)
        for above in upwards(run):
            above.escalated |= bool(event.actions.escalate)
            if not entry.hidden:
                above.log.append(event)
        if _ends_early(run, event):
            run.end_logged = True
        elif self._named.holds(run):
            self._named.log(run, event)
            self._record(run, event)
            if event.actions.end_of_agent:
                run.ended = True
                self._forget(run)
        else:
            self._record(run, event)
            self._move(run, event)

    def _take_node(self, run: AgentRun, event: Event) -> None:
        """Take from an event as which node of a graph its agent runs, where nothing else tells: in a bare log."""
        above = self._plan.nodes.get(run.parent.agent) if run.parent is not None and run.node is None else None
        path = (event.node_info or {}).get("path")
        if path and isinstance(above, CustomNode) and above.graph is not None:
            run.node = NodeRun(path=path)

    def _agent_of(self, entry: EventLogged) -> str:
        """Return the agent that logged an event: one of google.adk's may give it another author."""
        agent = agent_in(entry.run)
        if isinstance(self._plan.nodes.get(agent), CustomNode):
            return agent
        return entry.event.node if entry.event.author == USER else entry.event.author

    def _run_of(self, path: str, agent: str, branch: str | None) -> AgentRun | None:
        run = self._named.find(path, agent, branch) if path else self._named.find_last(agent, branch)
        # A path that does not fit the plan is one of another plan's.
        return run or self._find(agent, branch)

    def _move(self, run: AgentRun, event: Event) -> None:
        """Take an ended run off its stack, and put one on it to which the agent hands over."""
        if event.actions.end_of_agent:
            run.ended = True
            stack = self._stacks.get(run.branch, [])
            if run in stack:
                del stack[stack.index(run) :]
        target = event.actions.transfer_to_agent
        if target is not None and target in self._plan.nodes:
            self._open(target, run)

    def _record(self, run: AgentRun, event: Event) -> None:
        run.checkpoints += is_state(event)
        if event.actions.agent_state is not None and not event.actions.end_of_agent:
            run.state = event.actions.agent_state
            self._forget(run)
        elif not event.actions.end_of_agent and not run.is_of_callback(event):
            run.own.append(event)

    def _forget(self, run: AgentRun) -> None:
        run.own.clear()
        run.children.clear()
        run.activities.clear()
        self._caught.pop(run, None)

    def _catch(self, entry: FailureCaught) -> None:
        number, self._entries_caught = self._entries_caught, self._entries_caught + 1
        if entry.run:
            self._catch_named(entry, number)
            return
        stack = self._stack(entry.branch) or []
        # Not by `_find`: what the agent gathered besides may still be open.
        run = next((run for run in reversed(stack) if run.agent == entry.agent), None)
        run = run or self._find(entry.agent, entry.branch)
        if run is None:
            return
        if not entry.failures:
            self._try_again(run, stack, entry.again)
            return
        failed: AgentRun | FailureCaught = entry
        if entry.sub_agent is None:
            run.activities.append(entry)
        elif entry.sub_agent in self._plan.nodes:
            failed = self._close(run, stack, entry.sub_agent, entry)
        else:
            return
        self._caught.setdefault(run, []).append(_Failed(number, len(run.own), failed))

    def _catch_named(self, entry: FailureCaught, number: int) -> None:
        run = self._named.find(entry.run, entry.agent, entry.branch)
        if run is None:
            return
        if not entry.failures:
            self._try_again(run, [], entry.again)
            return
        failed: AgentRun | FailureCaught | None = entry
        if entry.sub_agent is None:
            run.activities.append(entry)
        else:
            failed = self._named.find(entry.sub_run, entry.sub_agent, run.branch)
            if failed is None or failed not in run.children:
                return
            failed.failure = entry
        self._caught.setdefault(run, []).append(_Failed(number, len(run.own), failed))

    def _close(self, parent: AgentRun, stack: list[AgentRun], agent: str, entry: FailureCaught) -> AgentRun:
        """Take a failed run off the stack, with what is underneath it: nothing is logged in it any more."""
        failed = _going_on(parent, agent, parent.branch)
        if failed is None:
            failed = self._named.add(parent, agent, parent.branch)
        failed.failure = entry
        self._cut[failed] = [run for run in stack if failed in upwards(run)] or [failed]
        stack[:] = [run for run in stack if failed not in upwards(run)]
        return failed

    def _try_again(self, run: AgentRun, stack: list[AgentRun], numbers: Sequence[int]) -> None:
        """Open the failed runs underneath again, the first of them innermost: it is the first to be entered.

        Not those that the agent has made good itself. What it said since may have been due to a failure; where that
        comes again, so will this.
        """
        caught = self._caught.pop(run, [])
        chosen = [failed for failed in caught if not numbers or failed.number in numbers]
        again = [failed for failed in chosen if not _is_made_good(run, failed.what)]
        left = [failed for failed in caught if failed not in chosen]
        if left:
            self._caught[run] = left
        self._latest = {key: known for key, known in self._latest.items() if run not in upwards(known.parent)}
        for one in reversed(again):
            failed = one.what
            del run.own[one.said :]
            if isinstance(failed, FailureCaught):
                run.activities.remove(failed)
                continue
            failed.failure = None
            opened = self._cut.pop(failed, [])
            stack.extend(opened)
            self._latest.update({(below.agent, below.branch): below for below in opened})

    def _open(self, agent: str, parent: AgentRun) -> AgentRun:
        run = self._named.add(parent, agent, parent.branch)
        self._stacks.setdefault(parent.branch, []).append(run)
        self._latest[agent, parent.branch] = run
        return run

    def _find(self, agent: str, branch: str | None) -> AgentRun | None:
        """Return the innermost open run of an agent on a branch; open it, and what lies between, if there is none."""
        run = self._find_open(agent, branch)
        if run is not None:
            self._latest[agent, branch] = run
        return run

    def _find_open(self, agent: str, branch: str | None) -> AgentRun | None:
        if agent not in self._plan.nodes:
            return None
        stack = self._stack(branch)
        if stack is None:
            return None
        for index in range(len(stack) - 1, -1, -1):
            if stack[index].agent == agent:
                del stack[index + 1 :]
                return stack[index]
        path = self._plan.path(agent)
        while stack and stack[-1].agent not in path:
            stack.pop()
        if not stack:
            return None
        stack.extend(self._to_latest(stack[-1], agent, branch))
        if stack[-1].agent == agent:
            return stack[-1]
        for name in path[path.index(stack[-1].agent) + 1 :]:
            going_on = _going_on(stack[-1], name, branch) if self._may_reopen(stack[-1]) else None
            if going_on is not None:
                stack.append(going_on)
            else:
                self._open(name, stack[-1])
        return stack[-1]

    def _may_reopen(self, run: AgentRun) -> bool:
        """Return whether what is underneath may be of several runs at once: those that a custom agent gathers."""
        return any(isinstance(self._plan.nodes.get(up.agent), CustomNode) for up in upwards(run))

    def _to_latest(self, top: AgentRun, agent: str, branch: str | None) -> list[AgentRun]:
        """Return the runs that lead to where an agent logged last, if that goes on: transfers may lead to it."""
        run, found = self._latest.get((agent, branch)), list[AgentRun]()
        while run is not None and run is not top:
            if run.ended or run.failure is not None or run.parent is None or run not in run.parent.children:
                return []
            found.append(run)
            run = run.parent
        return found[::-1] if run is top and self._may_reopen(top) else []

    def _stack(self, branch: str | None) -> list[AgentRun] | None:
        if not branch:
            if not self._stacks[None]:
                # An end counts only until its author logs again.
                self.root = self._named.restart(self.root)
                self._stacks[None] = [self.root]
            return self._stacks[None]
        *rest, child = branch.split(".")
        if not rest:
            # No parallel agent, as an author's own event or an import may say.
            return None
        parallel = rest.pop()
        owner = self._find(parallel, ".".join(rest) or None)
        if owner is None:
            return None
        stack = self._stacks.get(branch)
        if not stack or stack[0].parent is not owner:
            run = _going_on(owner, child, branch) if self._may_reopen(owner) else None
            if run is None:
                run = self._named.add(owner, child, branch)
            stack = self._stacks[branch] = [run]
        return stack


@dataclass(frozen=True)
class _Failed:
    """A failure underneath a custom agent, as its entry in the journal tells."""

    number: int
    """Which of the invocation's entries of this kind it is."""
    said: int
    """How many events of its own the agent had logged."""
    what: AgentRun | FailureCaught


def _going_on(parent: AgentRun, agent: str, branch: str | None) -> AgentRun | None:
    """Return the first run of a sub-agent that goes on: of several that are tried again, it is entered first."""
    known = (run for run in parent.children if (run.agent, run.branch) == (agent, branch))
    return next((run for run in known if not run.ended and run.failure is None), None)


def _is_made_good(parent: AgentRun, failed: AgentRun | FailureCaught) -> bool:
    """Return whether a later run of the same sub-agent, or a later call of the same function, has come to its end."""
    if isinstance(failed, FailureCaught):
        called = (failed.name, failed.arguments)
        later = parent.activities[parent.activities.index(failed) + 1 :]
        return any(isinstance(kept, ActivityKept) and (kept.name, kept.arguments) == called for kept in later)
    later_runs = parent.children[parent.children.index(failed) + 1 :]
    return any(run.agent == failed.agent and run.ended for run in later_runs)
