"""Where each agent of an invocation was: the tree of runs, rebuilt from what the invocation logged.

A fresh run starts with nothing; a re-entered one gets its `Run` and goes on from there, so that both leave the same log
(SEMANTICS.md, R10). A run is one stretch of an agent from its entry to its end. An LLM agent that hands over holds the
other agent's run as its child, also where that is the agent that handed over to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from perdure.doubts import is_doubt_request
from perdure.events import Event
from perdure.journal import ActivityKept, EventLogged, FailureCaught
from perdure.plan import CustomNode, Plan
from perdure.responses import is_confirmation_request


# By identity: two runs of one agent may look the same, and a comparison would go up and down the tree for ever.
@dataclass(eq=False)
class Run:
    """What is known of one run of one agent."""

    agent: str
    branch: str | None
    parent: Run | None = field(default=None, repr=False)
    state: dict[str, Any] | None = None
    """The last checkpoint."""
    ended: bool = False
    escalated: bool = False
    """An event from here or underneath escalated."""
    own: list[Event] = field(default_factory=list[Event])
    """The agent's own events since its last checkpoint, checkpoints and ends left out."""
    log: list[Event] = field(default_factory=list[Event])
    """Every visible event from here and underneath."""
    children: list[Run] = field(default_factory=list["Run"])
    """Runs underneath since the last checkpoint, which forgets those before it (R6)."""
    activities: list[ActivityKept | FailureCaught] = field(default_factory=list["ActivityKept | FailureCaught"])
    """What came of `run_activity` since the last checkpoint."""
    failure: FailureCaught | None = None
    """The run failed, and the custom agent above it dealt with that."""

    def last_child(self, agent: str) -> Run | None:
        """Return the newest run of a sub-agent."""
        return next((run for run in reversed(self.children) if run.agent == agent), None)


def current_child(names: Sequence[str], past: Run | None) -> tuple[str | None, int]:
    """Return the sub-agent at which the checkpoint of a sequential or loop agent stands, and its place.

    `None` without a checkpoint, or if it names no sub-agent, as an imported one may.
    """
    current = (past.state or {}).get("current_sub_agent") if past is not None else None
    return (current, names.index(current)) if current in names else (None, 0)


def times_looped(past: Run | None) -> int:
    """Return how many iterations a loop agent had finished at its checkpoint; an imported one may hold anything."""
    looped = (past.state or {}).get("times_looped") if past is not None else None
    return looped if isinstance(looped, int) and looped >= 0 else 0


def build_runs(
    plan: Plan, root: str, entries: Iterable[EventLogged | ActivityKept | FailureCaught], *, reopens: bool = True
) -> Run:
    """Return the run of the agent that started an invocation, rebuilt from what the invocation logged so far.

    Args:
        plan: The plan of the invocation.
        root: The agent that started it.
        entries: What it logged.
        reopens: A run that a custom agent began and that has not ended goes on, whatever was logged meanwhile, as do
            two that it gathers. Development versions took what came later for another run.
    """
    builder = _Builder(plan, root, reopens=reopens)
    for entry in entries:
        builder.add(entry)
    return builder.root


class _Builder:
    """Replays a log as the call stack that left it: one stack of open runs for each branch."""

    def __init__(self, plan: Plan, root: str, *, reopens: bool) -> None:
        self._plan = plan
        self._reopens = reopens
        self.root = Run(root, None)
        self._stacks: dict[str | None, list[Run]] = {None: [self.root]}
        self._cut: dict[Run, list[Run]] = {}
        """What was open of runs whose failure was dealt with."""
        self._caught: dict[Run, list[_Failed]] = {}
        """What failed underneath a custom agent, and how many events of its own it had logged."""
        self._entries_caught = 0
        self._latest: dict[tuple[str, str | None], Run] = {}
        """The run in which an agent logged last."""

    def add(self, entry: EventLogged | ActivityKept | FailureCaught) -> None:
        if isinstance(entry, FailureCaught):
            self._catch(entry)
            return
        if isinstance(entry, ActivityKept):
            run = self._find(entry.agent, entry.branch)
            if run is not None:
                run.activities.append(entry)
            return
        event = entry.event
        run = self._find(event.author, event.branch)
        if run is None:
            return
        for above in _upwards(run):
            above.escalated |= bool(event.actions.escalate)
            if not entry.hidden:
                above.log.append(event)
        self._record(run, event)

    def _record(self, run: Run, event: Event) -> None:
        if event.actions.end_of_agent:
            run.ended = True
            stack = self._stacks[run.branch]
            del stack[stack.index(run) :]
        elif event.actions.agent_state is not None:
            run.state = event.actions.agent_state
            run.own.clear()
            run.children.clear()
            run.activities.clear()
            self._caught.pop(run, None)
        else:
            run.own.append(event)
        target = event.actions.transfer_to_agent
        if target is not None and target in self._plan.nodes:
            self._open(target, run)

    def _catch(self, entry: FailureCaught) -> None:
        number, self._entries_caught = self._entries_caught, self._entries_caught + 1
        stack = self._stack(entry.branch) or []
        # Not by `_find`: what the agent gathered besides may still be open.
        run = next((run for run in reversed(stack) if run.agent == entry.agent), None)
        run = run or self._find(entry.agent, entry.branch)
        if run is None:
            return
        if not entry.failures:
            self._try_again(run, stack, entry.again)
            return
        failed: Run | FailureCaught = entry
        if entry.sub_agent is None:
            run.activities.append(entry)
        elif entry.sub_agent in self._plan.nodes:
            failed = self._close(run, stack, entry.sub_agent, entry)
        else:
            return
        self._caught.setdefault(run, []).append(_Failed(number, len(run.own), failed))

    def _close(self, parent: Run, stack: list[Run], agent: str, entry: FailureCaught) -> Run:
        """Take a failed run off the stack, with what is underneath it: nothing is logged in it any more."""
        failed = _going_on(parent, agent, parent.branch)
        if failed is None:
            failed = Run(agent, parent.branch, parent)
            parent.children.append(failed)
        failed.failure = entry
        self._cut[failed] = [run for run in stack if failed in _upwards(run)] or [failed]
        stack[:] = [run for run in stack if failed not in _upwards(run)]
        return failed

    def _try_again(self, run: Run, stack: list[Run], numbers: Sequence[int]) -> None:
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
        self._latest = {key: known for key, known in self._latest.items() if run not in _upwards(known.parent)}
        for one in reversed(again):
            failed = one.what
            del run.own[one.said :]
            if isinstance(failed, FailureCaught):
                run.activities.remove(failed)
                continue
            failed.failure = None
            opened = self._cut.pop(failed)
            stack.extend(opened)
            self._latest.update({(below.agent, below.branch): below for below in opened})

    def _open(self, agent: str, parent: Run) -> Run:
        run = Run(agent, parent.branch, parent)
        parent.children.append(run)
        self._stacks[parent.branch].append(run)
        self._latest[agent, parent.branch] = run
        return run

    def _find(self, agent: str, branch: str | None) -> Run | None:
        """Return the innermost open run of an agent on a branch; open it, and what lies between, if there is none."""
        run = self._find_open(agent, branch)
        if run is not None:
            self._latest[agent, branch] = run
        return run

    def _find_open(self, agent: str, branch: str | None) -> Run | None:
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

    def _may_reopen(self, run: Run) -> bool:
        """Return whether what is underneath may be of several runs at once: those that a custom agent gathers."""
        return self._reopens and any(isinstance(self._plan.nodes.get(up.agent), CustomNode) for up in _upwards(run))

    def _to_latest(self, top: Run, agent: str, branch: str | None) -> list[Run]:
        """Return the runs that lead to where an agent logged last, if that goes on: transfers may lead to it."""
        run, found = self._latest.get((agent, branch)), list[Run]()
        while run is not None and run is not top:
            if run.ended or run.failure is not None or run.parent is None or run not in run.parent.children:
                return []
            found.append(run)
            run = run.parent
        return found[::-1] if run is top and self._may_reopen(top) else []

    def _stack(self, branch: str | None) -> list[Run] | None:
        if not branch:
            if not self._stacks[None]:
                # An end counts only until its author logs again.
                self.root = Run(self.root.agent, None)
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
                run = Run(child, branch, owner)
                owner.children.append(run)
            stack = self._stacks[branch] = [run]
        return stack


@dataclass(frozen=True)
class _Failed:
    """What failed underneath a custom agent, as its entry in the journal tells."""

    number: int
    """Which of the invocation's entries of this kind it is."""
    said: int
    """How many events of its own the agent had logged."""
    what: Run | FailureCaught


def _going_on(parent: Run, agent: str, branch: str | None) -> Run | None:
    """Return the first run of a sub-agent that goes on: of several that are tried again, it is entered first."""
    known = (run for run in parent.children if (run.agent, run.branch) == (agent, branch))
    return next((run for run in known if not run.ended and run.failure is None), None)


def _is_made_good(parent: Run, failed: Run | FailureCaught) -> bool:
    """Return whether a later run of the same sub-agent, or a later call of the same function, has come to its end."""
    if isinstance(failed, FailureCaught):
        called = (failed.name, failed.arguments)
        later = parent.activities[parent.activities.index(failed) + 1 :]
        return any(isinstance(kept, ActivityKept) and (kept.name, kept.arguments) == called for kept in later)
    later_runs = parent.children[parent.children.index(failed) + 1 :]
    return any(run.agent == failed.agent and run.ended for run in later_runs)


def _upwards(run: Run | None) -> Iterator[Run]:
    while run is not None:
        yield run
        run = run.parent


@dataclass
class Standing:
    """Where an LLM agent stands: before a model call, or behind one whose calls are not done with."""

    calling: Event | None = None
    """The model's answer with calls."""
    requests: list[Event] = field(default_factory=list[Event])
    """Confirmations that the calls asked for."""
    doubts: list[Event] = field(default_factory=list[Event])
    """Questions about calls that were cut off."""
    responses: list[Event] = field(default_factory=list[Event])
    """The response event, and a second one after confirmations."""
    ended: bool = False
    """The model's answer ended the agent's turn."""


def last_step(own: Iterable[Event]) -> Standing:
    """Return where an LLM agent stood, by the events of its run."""
    step = Standing()
    for event in own:
        if is_confirmation_request(event):
            step.requests.append(event)
        elif is_doubt_request(event):
            step.doubts.append(event)
        elif event.get_function_calls():
            step = Standing(calling=event)
        elif event.get_function_responses():
            step.responses.append(event)
        else:
            step = Standing(ended=True)
    return step
