"""Shows where each agent of an invocation stands, and what it does next when it is entered again. Pure.

The rules that the workflow follows decide (`next_agents`, `next_call` and `next_step` in `perdure.rules`); here their
answers are put into words.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal, assert_never

from pydantic import BaseModel, ConfigDict

from perdure.journal.credential_questions import credential_requests, credential_targets, needed_by
from perdure.journal.events import ToolConfirmation
from perdure.journal.invocations import Invocation
from perdure.journal.projection import Projection
from perdure.journal.questions import confirmation_targets
from perdure.journal.run_tree import build_runs
from perdure.journal.runs import AgentRun
from perdure.journal.tasks import task_branch
from perdure.plan.contents import types
from perdure.plan.nodes import CustomNode, LlmNode, LoopNode, Node, ParallelNode, Plan, RefusedNode, SequentialNode
from perdure.rules import next_agents
from perdure.rules.llm_turns import Turn, find_turn, has_spoken
from perdure.rules.next_agents import all_branches, child_ahead
from perdure.rules.next_call import (
    AsksApproval,
    AwaitsVerdict,
    BuiltIn,
    Facts,
    Fails,
    InDoubt,
    Kept,
    NextOfCall,
    Rejected,
    Runs,
    TakenAsSaid,
    next_of_call,
)
from perdure.rules.next_step import (
    AskForThem,
    AskModel,
    BeginAnew,
    End,
    EndTurn,
    Fail,
    GiveAnswer,
    GiveTasks,
    HandOver,
    Listen,
    RunAuthorized,
    RunCalls,
    RunConfirmed,
    SignIn,
    Wait,
    WaitFor,
    step_ahead,
)
from perdure.views.graph_standing import NodeStanding, stand_in_graph

CallNext = Literal[
    "result kept",
    "runs",
    "built in",
    "asks for approval",
    "rejected",
    "awaits an answer",
    "answered",
    "asks what became of it",
    "taken as said",
    "not allowed",
    "says nothing",
]


AgentNext = Literal[
    "calls its model", "runs tools", "awaits answers", "hands over", "enters", "runs its code", "ends", "fails"
]

_WAITS: dict[Wait, str] = {
    "sign in": "waits for the credentials of its toolsets",
    "responses": "waits until all of its calls are answered",
    "transfer": "waits until all of its calls are answered, and hands over then",
    "model": "waits until its long-running calls are answered; its model has seen their first values",
}


class NextCall(BaseModel):
    """The next step of one function call when its agent is entered again."""

    model_config = ConfigDict(frozen=True)

    id: str
    tool: str
    next: CallNext
    """`result kept`: its tool has run, and does not run again.
    `runs`: its tool is started, or started again.
    `built in`: it has a response without a tool's run.
    `asks for approval`, `asks what became of it`: a person is asked first.
    `rejected`, `taken as said`: a person has said so, and its tool does not run.
    `awaits an answer`, `answered`: a long-running call, or an approval.
    `not allowed`: it came with an import, and nobody let it run; the step fails.
    `says nothing`: so does it where the import's answer to a question about it cannot be read.
    """
    attempts: int = 0
    """Attempts so far that are known to have started its function."""


class AgentStep(BaseModel):
    """An agent's standing, and its next step."""

    model_config = ConfigDict(frozen=True)

    agent: str
    kind: Literal["llm", "sequential", "loop", "parallel", "custom", "refused"]
    branch: str | None = None
    next: AgentNext
    """`enters`: a sub-agent, or several at once."""
    words: str
    calls: tuple[NextCall, ...] = ()
    below: tuple[AgentStep, ...] = ()
    """The agents that it enters again, or enters next."""
    done: tuple[str, ...] = ()
    """Sub-agents that have ended in this agent run, and are not entered again."""
    graph: tuple[NodeStanding, ...] = ()
    """Of a graph: its nodes, and where each stands."""


def look_ahead(projection: Projection, plan: Plan, invocation: Invocation) -> AgentStep | None:
    """Return where an invocation's agents stand; `None` if the plan lacks the agent that began it."""
    root = plan.nodes.get(invocation.agent or plan.root.name)
    if root is None:
        return None
    past = build_runs(plan, root.name, invocation.entries).root if invocation.entries else None
    return _Outlook(projection, plan, invocation).agent(root, None, past)


class _Outlook:
    def __init__(self, projection: Projection, plan: Plan, invocation: Invocation) -> None:
        self._projection = projection
        self._plan = plan
        self._invocation = invocation
        self._facts = Facts(plan, projection, invocation, looks_ahead=True)

    def agent(self, node: Node, branch: str | None, past: AgentRun | None) -> AgentStep:
        """Return where one agent stands."""
        if past is not None and past.ended and not self._does_task(node, past):
            return _step(node, branch, "ends", "has ended, and is not entered again")
        match node:
            case LlmNode():
                return self._llm(node, branch, past)
            case SequentialNode() | LoopNode():
                return self._in_turn(node, branch, past)
            case ParallelNode():
                return self._parallel(node, branch, past)
            case CustomNode():
                return self._custom(node, branch, past)
            case RefusedNode():
                return _step(node, branch, "ends", f"cannot run: {node.reason}")
            case _:
                assert_never(node)

    def _in_turn(self, node: SequentialNode | LoopNode, branch: str | None, past: AgentRun | None) -> AgentStep:
        step = child_ahead(self._plan, node, past)
        if isinstance(step, next_agents.End):
            return _step(node, branch, "ends", "all of its work is done" if step.is_logged else "has no sub-agents")
        child = node.sub_agents[step.index]
        below = self._resumed(child, branch, past) if step.resumes else self.agent(child, branch, None)
        number = f"sub-agent {step.index + 1} of {len(node.sub_agents)}"
        begins = step.checkpoint is not None and (step.index, step.iteration) == (0, 0)
        if isinstance(node, SequentialNode):
            words = "begins with its first sub-agent" if begins else f"goes on with {number}"
            done = tuple(child.name for child in node.sub_agents[: step.index])
            return _step(node, branch, "enters", words, below=(below,), done=done)
        of = f" of {node.max_iterations} at the most" if node.max_iterations is not None else ""
        words = f"goes on in iteration {step.iteration + 1}{of}, with {number}"
        return _step(node, branch, "enters", "begins its first iteration" if begins else words, below=(below,))

    def _parallel(self, node: ParallelNode, branch: str | None, past: AgentRun | None) -> AgentStep:
        step = all_branches(node, branch, past)
        if isinstance(step, next_agents.End):
            return _step(node, branch, "ends", "has no sub-agents")
        runs = {child.name: past.last_child(child.name) if past is not None else None for child in node.sub_agents}
        done = tuple(name for name, run in runs.items() if run is not None and run.ended)
        entered = [(node.sub_agents[one.index], one.name) for one in step.branches]
        below = tuple(self.agent(child, on, runs[child.name]) for child, on in entered if child.name not in done)
        if not below:
            return _step(node, branch, "ends", "all of its branches have ended", done=done)
        words = f"enters {len(below)} of its {len(node.sub_agents)} branches, all at once"
        return _step(node, branch, "enters", words, below=below, done=done)

    def _custom(self, node: CustomNode, branch: str | None, past: AgentRun | None) -> AgentStep:
        if node.graph is not None:
            return self._graph(node, branch, past)
        if past is None or (past.state is None and not (past.own or past.children or past.activities)):
            return _step(node, branch, "runs its code", "its code runs from the start")
        place = "the start" if past.state is None else "its last checkpoint"
        words = f"its code runs again from {place}: since then {len(past.own)} of its events are logged"
        if past.activities:
            words += f" and {len(past.activities)} results of activities are kept"
        below = tuple(
            self.agent(self._plan.nodes[run.agent], run.branch, run)
            for run in past.children
            if not run.ended and run.agent in self._plan.nodes
        )
        done = tuple(run.agent for run in past.children if run.ended)
        return _step(node, branch, "runs its code", words, below=below, done=done)

    def _graph(self, node: CustomNode, branch: str | None, past: AgentRun | None) -> AgentStep:
        nodes = stand_in_graph(node, self._projection, self._invocation) if node.tool is None else ()
        done = sum(one.standing == "done" for one in nodes)
        words = f"its graph goes on: {done} of {len(nodes)} nodes are done, and do not run again"
        if node.tool is not None:
            words = f"the code of tool {node.tool} goes on; nodes that are done do not run again"
        working = [run for run in past.children if not run.ended] if past is not None else []
        below = tuple(self.agent(self._plan.nodes[run.agent], run.branch, run) for run in working)
        step = _step(node, branch, "runs its code", words if past is not None else "its graph begins", below=below)
        return step.model_copy(update={"graph": nodes})

    def _resumed(self, child: Node, branch: str | None, past: AgentRun | None) -> AgentStep:
        return self.agent(child, branch, past.last_child(child.name) if past is not None else None)

    def _does_task(self, node: Node, run: AgentRun) -> bool:
        """Return whether an agent that has ended a turn goes on with the user's next message."""
        is_task = isinstance(node, LlmNode) and node.mode == "task" and run.node is not None
        return is_task and has_spoken(replace(self._facts, looks_ahead=False), run)

    def _llm(self, node: LlmNode, branch: str | None, past: AgentRun | None) -> AgentStep:
        run = past if past is not None else AgentRun(node.name, branch)
        turn = find_turn(self._facts, node, run)
        what = step_ahead(self._facts, node, turn)
        match what:
            case AskModel() | SignIn() | BeginAnew():
                number = self._projection.model_calls[node.name] + 1
                return _step(node, branch, "calls its model", f"calls {node.model}, its call {number} in this session")
            case WaitFor():
                return _step(
                    node, branch, "awaits answers", _WAITS[what.before], calls=tuple(self._awaited(turn, what))
                )
            case RunCalls() | AskForThem() | RunAuthorized() | RunConfirmed():
                return self._runs_tools(node, branch, run, turn, what)
            case GiveTasks():
                return self._gives_task(node, branch, run, what.calls[0])
            case GiveAnswer():
                return _step(node, branch, "ends", "gives what a tool took as its last answer, and ends")
            case HandOver():
                child = self._plan.nodes[what.agent]
                below = self._resumed(child, branch, run)
                return _step(node, branch, "hands over", f"has handed over to {child.name}", below=(below,))
            case EndTurn() | End() | Listen() | Fail():
                return _ends(node, branch, what)
            case _:
                assert_never(what)

    def _runs_tools(
        self,
        node: LlmNode,
        branch: str | None,
        run: AgentRun,
        turn: Turn,
        what: RunCalls | AskForThem | RunAuthorized | RunConfirmed,
    ) -> AgentStep:
        if isinstance(what, AskForThem):
            return _step(node, branch, "runs tools", "asks a person for what its calls need")
        decisions = what.decisions if isinstance(what, RunConfirmed) else dict[str, ToolConfirmation]()
        authorized = isinstance(what, RunAuthorized)
        found = (
            next_of_call(self._facts, node, turn.step, call, decisions.get(call.id or ""), authorized=authorized)
            for call in what.calls
        )
        calls = tuple(self._call(call, _in_words(one)) for call, one in zip(what.calls, found, strict=True))
        if any(call.next == "awaits an answer" for call in calls) and not any(call.next == "runs" for call in calls):
            return _step(node, branch, "awaits answers", "waits for word on what became of a call", calls=calls)
        words = "does what a person has decided about"
        if isinstance(what, RunCalls):
            words = "does what is left to do of its model's calls; then one event holds all of their responses"
        nodes, children = self._plan.nodes, [child for child in run.children if not child.ended]
        working = [one for one in children if one.node is not None or isinstance(nodes.get(one.agent), CustomNode)]
        below = tuple(self.agent(nodes[one.agent], one.branch, one) for one in working)
        return _step(node, branch, "runs tools", words, calls=calls, below=below)

    def _gives_task(self, node: LlmNode, branch: str | None, run: AgentRun, call: types.FunctionCall) -> AgentStep:
        agent, own = call.name or "", task_branch(branch, call.name or "", call.id or "")
        task = next((child for child in run.children if child.branch == own), None)
        below = self.agent(self._plan.nodes[agent], own, task)
        return _step(node, branch, "enters", f"has given {agent} a task", below=(below,))

    def _awaited(self, turn: Turn, what: WaitFor) -> Iterator[NextCall]:
        """Yield the calls that a person answers, each itself, or a question about it."""
        requests, calling = turn.step.requests, turn.step.calling
        names = {request.id: needed_by(request, None) for request in credential_requests(requests)}
        names |= {call.id: call.name or "" for call in (calling.get_function_calls() if calling is not None else ())}
        about = credential_targets(requests, turn.step.responses)
        about |= {request: (target,) for request, target in confirmation_targets(requests).items()}
        for id in what.ids:
            answered = "answered" if self._facts.is_answered(id) else "awaits an answer"
            known = self._projection.calls.get(id)
            for call_id in about.get(id) or (id,):
                tool = names.get(call_id) or (known.pending.name if known is not None else "")
                yield self._call(types.FunctionCall(id=call_id, name=tool), answered)

    def _call(self, call: types.FunctionCall, next: CallNext) -> NextCall:
        runs = self._projection.tool_runs.get(call.id or "")
        return NextCall(id=call.id or "", tool=call.name or "", next=next, attempts=runs.attempts if runs else 0)


def _in_words(what: NextOfCall) -> CallNext:
    match what:
        case Kept():
            return "result kept"
        case Runs():
            return "result kept" if what.returned else "runs"
        case BuiltIn():
            return "built in"
        case AsksApproval():
            return "asks for approval"
        case Rejected():
            return "rejected"
        case AwaitsVerdict():
            return "awaits an answer"
        case InDoubt():
            return "asks what became of it"
        case TakenAsSaid():
            return "taken as said"
        case Fails():
            return what.why
        case _:
            assert_never(what)


def _ends(node: Node, branch: str | None, what: EndTurn | End | Listen | Fail) -> AgentStep:
    match what:
        case Listen():
            return _step(node, branch, "awaits answers", "does a task, and waits for the user's next message")
        case Fail():
            return _step(node, branch, "fails", f"fails in {what.step}: {what.cause}")
        case EndTurn():
            return _step(node, branch, "ends", "ends with the response of its tools")
        case End():
            return _step(node, branch, "ends", "has given its last answer, and ends")
        case _:
            assert_never(what)


def _step(
    node: Node,
    branch: str | None,
    next: AgentNext,
    words: str,
    *,
    calls: tuple[NextCall, ...] = (),
    below: tuple[AgentStep, ...] = (),
    done: tuple[str, ...] = (),
) -> AgentStep:
    return AgentStep(
        agent=node.name, kind=node.kind, branch=branch, next=next, words=words, calls=calls, below=below, done=done
    )
