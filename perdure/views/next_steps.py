"""Shows where each agent of an invocation stands, and what it does next when it is entered again. Pure.

The rules are those of `composite`, `llm_agent` and `tool_calls` in `workflows/agents/`, asked and not followed: nothing
is logged, scheduled or awaited here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, assert_never

from pydantic import BaseModel, ConfigDict

from perdure.errors import InvalidMessage
from perdure.journal.credentials import credential_requests, credential_targets, needed_by
from perdure.journal.events import Event, ToolConfirmation
from perdure.journal.invocations import Invocation
from perdure.journal.projection import Projection
from perdure.journal.questions import confirmation_targets, parse_confirmation
from perdure.journal.run_tree import build_runs
from perdure.journal.runs import AgentRun, Standing, last_step
from perdure.journal.tasks import awaits_reply, task_branch
from perdure.plan.contents import types
from perdure.plan.nodes import (
    CustomNode,
    LlmNode,
    LoopNode,
    Node,
    ParallelNode,
    Plan,
    RefusedNode,
    SequentialNode,
)
from perdure.rules.next_agents import End, all_branches, child_ahead
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
    next: Literal["calls its model", "runs tools", "awaits answers", "hands over", "enters", "runs its code", "ends"]
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
    past = build_runs(plan, root.name, invocation.entries) if invocation.entries else None
    return _Outlook(projection, plan, invocation).agent(root, None, past)


class _Outlook:
    def __init__(self, projection: Projection, plan: Plan, invocation: Invocation) -> None:
        self._projection = projection
        self._plan = plan
        self._invocation = invocation
        self._facts = Facts(plan, projection, invocation, looks_ahead=True)

    def agent(self, node: Node, branch: str | None, past: AgentRun | None) -> AgentStep:
        """Return where one agent stands."""
        if past is not None and self._listens(past):
            return _step(node, branch, "awaits answers", "does a task, and waits for the user's next message")
        if past is not None and past.ended:
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
        if isinstance(step, End):
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
        if isinstance(step, End):
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

    def _llm(self, node: LlmNode, branch: str | None, past: AgentRun | None) -> AgentStep:
        step = last_step(past.own) if past is not None else Standing()
        if step.ended:
            return _step(node, branch, "ends", "has given its last answer, and ends")
        calling = step.calling
        if calling is None:
            return self._signs_in(node, branch, step)
        tasks = self._tasks(node, calling, step)
        eager = [call for call in calling.get_function_calls() if call.id not in tasks]
        responded = any(one.id not in tasks for event in step.responses for one in event.get_function_responses())
        if tasks and (responded or not eager):
            return self._gives_task(node, branch, past, tasks)
        if step.responses or self._is_silent(calling):
            return self._behind_response(node, branch, past, calling, step)
        calls = tuple(self._becomes(node, call, step) for call in eager)
        if any(call.next == "awaits an answer" for call in calls) and not any(call.next == "runs" for call in calls):
            return _step(node, branch, "awaits answers", "waits for word on what became of a call", calls=calls)
        words = "does what is left to do of its model's calls; then one event holds all of their responses"
        nodes = self._plan.nodes
        children = [run for run in past.children if not run.ended] if past is not None else []
        working = [run for run in children if run.node is not None or isinstance(nodes.get(run.agent), CustomNode)]
        below = tuple(self.agent(nodes[run.agent], run.branch, run) for run in working)
        return _step(node, branch, "runs tools", words, calls=calls, below=below)

    def _listens(self, run: AgentRun) -> bool:
        node, place = self._plan.nodes.get(run.agent), run.node
        if place is None or not isinstance(node, LlmNode) or node.mode != "task":
            return False
        return awaits_reply(self._projection.own_events, place.scope or "", run.agent)

    def _tasks(self, node: LlmNode, calling: Event, step: Standing) -> dict[str, str]:
        """Return the agents to which an answer gives tasks that are not done, by the calls' ids."""
        told = {one.id for event in step.responses for one in event.get_function_responses()}
        tools = {tool.name for tool in node.tools if tool.delegates == "task"}
        calls = calling.get_function_calls()
        return {call.id or "": call.name or "" for call in calls if call.name in tools and call.id not in told}

    def _gives_task(self, node: LlmNode, branch: str | None, past: AgentRun | None, tasks: dict[str, str]) -> AgentStep:
        call_id, agent = next(iter(tasks.items()))
        own = task_branch(branch, agent, call_id)
        run = next((run for run in past.children if run.branch == own), None) if past is not None else None
        below = (self.agent(self._plan.nodes[agent], own, run),)
        return _step(node, branch, "enters", f"has given {agent} a task", below=below)

    def _is_silent(self, calling: Event) -> bool:
        """Return whether all of the calls are long-running ones whose tools returned nothing: none has a response."""
        kept = self._invocation.kept
        return all(
            call.id in (calling.long_running_tool_ids or ()) and call.id in kept and not kept[call.id or ""].result
            for call in calling.get_function_calls()
        )

    def _signs_in(self, node: LlmNode, branch: str | None, step: Standing) -> AgentStep:
        """Return what comes where toolsets need credentials before the model is asked, if they do."""
        calls = tuple(
            NextCall(
                id=request.id or "",
                tool=needed_by(request, None),
                next="answered" if self._is_answered(request.id or "") else "awaits an answer",
                attempts=0,
            )
            for request in credential_requests(step.requests)
        )
        if any(call.next == "awaits an answer" for call in calls):
            return _step(node, branch, "awaits answers", "waits for the credentials of its toolsets", calls=calls)
        return self._calls_model(node, branch)

    def _calls_model(self, node: LlmNode, branch: str | None) -> AgentStep:
        number = self._projection.model_calls[node.name] + 1
        return _step(node, branch, "calls its model", f"calls {node.model}, its call {number} in this session")

    def _behind_response(
        self, node: LlmNode, branch: str | None, past: AgentRun | None, calling: Event, step: Standing
    ) -> AgentStep:
        awaited = tuple(self._awaited(calling, step))
        if any(call.next == "awaits an answer" for call in awaited):
            return _step(node, branch, "awaits answers", "waits until all of its calls are answered", calls=awaited)
        confirmed = tuple(self._confirmed(node, calling, step))
        if confirmed:
            return _step(node, branch, "runs tools", "does what a person has decided about", calls=confirmed)
        if calling.long_running_tool_ids or step.requests:
            return self._calls_model(node, branch)
        actions = step.responses[-1].actions
        if actions.transfer_to_agent is not None and actions.transfer_to_agent in self._plan.nodes:
            child = self._plan.nodes[actions.transfer_to_agent]
            below = self._resumed(child, branch, past)
            return _step(node, branch, "hands over", f"has handed over to {child.name}", below=(below,))
        if actions.skip_summarization:
            return _step(node, branch, "ends", "ends with the response of its tools")
        return self._calls_model(node, branch)

    def _awaited(self, calling: Event, step: Standing) -> Iterator[NextCall]:
        """Yield the calls, and the approvals, that a person answers."""
        by_target = _requests(step)
        for call in calling.get_function_calls():
            call_id = call.id or ""
            if call_id in (calling.long_running_tool_ids or ()):
                yield self._call(call, "answered" if self._is_answered(call_id) else "awaits an answer")
            elif call_id in by_target:
                is_answered = self._is_answered(by_target[call_id])
                yield self._call(call, "answered" if is_answered else "awaits an answer")

    def _is_answered(self, call_id: str) -> bool:
        known = self._projection.calls.get(call_id)
        return known is not None and known.answer != "open"

    def _confirmed(self, node: LlmNode, calling: Event, step: Standing) -> Iterator[NextCall]:
        """Yield the calls that a person has decided about, and whose final response is not logged."""
        done = {response.id for event in step.responses[1:] for response in event.get_function_responses()}
        confirmations = {target: request for request, target in confirmation_targets(step.requests).items()}
        requests = _requests(step)
        for call in calling.get_function_calls():
            if call.id not in requests or call.id in done:
                continue
            answer = self._facts.answer_to(confirmations.get(call.id or "", ""))
            decision = _decision(answer) if answer is not None else None
            yield self._becomes(node, call, step, decision, authorized=call.id not in confirmations)

    def _becomes(
        self,
        node: LlmNode,
        call: types.FunctionCall,
        step: Standing,
        decision: ToolConfirmation | None = None,
        *,
        authorized: bool = False,
    ) -> NextCall:
        return self._call(call, _in_words(next_of_call(self._facts, node, step, call, decision, authorized=authorized)))

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


def _decision(answer: Mapping[str, Any]) -> ToolConfirmation | None:
    try:
        return parse_confirmation(answer)
    except InvalidMessage:
        return None


def _requests(step: Standing) -> dict[str, str]:
    """Return the questions that calls have asked, by the ids of these calls."""
    credentials = credential_targets(step.requests, step.responses)
    return {target: request for request, target in confirmation_targets(step.requests).items()} | {
        target: request for request, targets in credentials.items() for target in targets
    }


def _step(
    node: Node,
    branch: str | None,
    next: Literal["calls its model", "runs tools", "awaits answers", "hands over", "enters", "runs its code", "ends"],
    words: str,
    *,
    calls: tuple[NextCall, ...] = (),
    below: tuple[AgentStep, ...] = (),
    done: tuple[str, ...] = (),
) -> AgentStep:
    return AgentStep(
        agent=node.name, kind=node.kind, branch=branch, next=next, words=words, calls=calls, below=below, done=done
    )
