"""`Plan`: an app compiled into frozen plain data, with a digest.

An invocation is pinned to the plan that it started with. Code (tool functions, instruction providers, custom agents) is
referred to by agent and tool name and found in the worker's registry; everything else that a run needs stands here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from datetime import timedelta
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from perdure.plan.contents import types
from perdure.plan.graph_shapes import GraphShape, is_one, is_unset
from perdure.plan.output_schemas import arguments_for

_FROZEN = ConfigDict(frozen=True, ignored_types=(cached_property,))

TRANSFER = "transfer_to_agent"
"""The built-in tool that hands control to another agent."""

EXIT_LOOP = "exit_loop"
"""The built-in tool that ends the loop around its agent."""

SET_MODEL_RESPONSE = "set_model_response"
"""The built-in tool by which a model answers that has an `output_schema`, and other tools. As in ADK."""


class ToolOptions(BaseModel):
    """Timeouts and retries of a tool's activity. All durations are `timedelta`."""

    model_config = _FROZEN

    timeout: timedelta = timedelta(minutes=10)
    """Start-to-close time of one attempt. Default: 10 minutes."""
    heartbeat_timeout: timedelta = timedelta(seconds=3.5)
    """How long a silent worker counts as alive. Perdure heartbeats for the tool. Default: 3.5 s."""
    max_attempts: int = 3
    """Attempts before the tool has failed; 0 is without limit. Default: 3."""
    initial_interval: timedelta = timedelta(seconds=0.5)
    """Pause before the second attempt. Default: 0.5 s."""
    backoff: float = 2.0
    """Factor from one pause to the next. Default: 2."""
    max_interval: timedelta = timedelta(minutes=1)
    """Longest pause. Default: 1 minute."""
    non_retryable: tuple[str, ...] = ()
    """Names of exception types that fail the tool at once."""


ADK_OPTIONS = ToolOptions(max_attempts=15)
"""google.adk tries nothing again by itself: the step says so of each failure. What died with its worker is."""

MODEL_OPTIONS = ToolOptions(max_attempts=15)
"""A model call retries what its provider may answer later, for eight minutes, unless agent or app say otherwise."""

MAX_LLM_CALLS = 500
"""Model calls of an invocation, unless the app, the message or a resume say otherwise. As in ADK."""

MaxLlmCalls = Annotated[int, Field(strict=True, lt=2**31)]
"""A number of model calls; 0 and less are without limit, as in ADK."""


MAX_STEPS = 100
"""Steps of an agent that one activity may take, at the most."""


class CallLimit(BaseModel):
    """The most model calls of an invocation, as whoever started or resumed it asked."""

    model_config = _FROZEN

    most: MaxLlmCalls
    """0 and less are without limit."""
    lowers: bool = False
    """It may only lower what the app allows."""


class Expiry(BaseModel):
    """The outcome of a long-running call without an answer in time."""

    model_config = _FROZEN

    after: timedelta
    """From the call to its deadline."""
    how: Literal["answer", "fail"]
    """`fail`: the invocation fails."""
    answer: Any = None
    """Otherwise, what the session answers."""


class ToolPlan(BaseModel):
    """One tool of one LLM agent."""

    model_config = _FROZEN

    name: str
    kind: Literal["function", "long_running", "transfer", "exit_loop"] = "function"
    """`transfer` and `exit_loop` are the built-in tools, which run without an activity."""
    declaration: types.FunctionDeclaration
    """What the model is told of the tool."""
    needs_context: bool = False
    """The function takes a `ToolContext`, so that the session's state travels with the call."""
    confirmation: Literal["never", "always", "ask"] = "never"
    """`ask`: a predicate in the worker decides for each call."""
    options: ToolOptions = ToolOptions()
    at_most_once: bool = False
    """The tool is never started a second time by itself; `options` allows one attempt."""
    reconcile: bool = False
    """A function in the worker can say whether a call that was cut off took effect."""
    on_failure: Literal["fail", "tell_model"] = "fail"
    """After the last attempt: fail the invocation, or tell the model and go on."""
    expiry: Expiry | None = None
    """The deadline of a long-running call's answer."""
    remind_in: timedelta | None = None
    """From a long-running call to its reminder, a function in the worker."""
    response_schema: dict[str, Any] | None = None
    """JSON schema of a long-running call's answer, where the tool declares one; forms are made from it."""
    local: bool = False
    """Runs as a local activity, in the worker that has the session, without a round trip through the server."""
    retries: bool = Field(default=False, exclude_if=is_unset)
    """Of google.adk's tools: what raised is tried again, as `options` say; google.adk itself tries nothing again."""
    agent: Node | None = Field(default=None, exclude_if=is_unset)
    """Of an `AgentTool`: the agent that it runs, in a scope of its own under the call."""
    skip_summarization: bool = Field(default=False, exclude_if=is_unset)
    """Of Perdure's `AgentTool`: the agent's result ends the turn of the agent that asked."""
    plugins: bool = Field(default=False, exclude_if=is_unset)
    """Of google.adk's: the app's plugins look at that agent's run, too."""
    delegates: Literal["task", "single_turn"] | None = Field(default=None, exclude_if=is_unset)
    """Of google.adk 2: a call hands a task to the sub-agent of the tool's name, whose mode this is."""
    runs_nodes: bool = Field(default=False, exclude_if=is_unset)
    """Of google.adk 2: its code runs nodes, so it runs as a graph does; it is a node below its agent, too."""
    runs_through: bool = Field(default=False, exclude_if=is_unset)
    """Of google.adk's: its code waits for nothing, so the calls behind it begin once it has ended."""


class AdkRules(BaseModel):
    """Marks an app of google.adk's own objects: their steps are done by its code."""

    model_config = _FROZEN

    major: Literal[1, 2]
    """Whose rules hold where google.adk 1.x and 2.x differ in what users see."""
    logs_failures: bool = Field(default=False, exclude_if=is_unset)
    """A step's failure is an event, too: 2.x does so where the root is an LLM agent."""
    keeps_finished: bool = Field(default=False, exclude_if=is_unset)
    """What calls responded is logged where another one of the answer failed."""
    begins: bool = Field(default=False, exclude_if=is_unset)
    """Plugins look at a user's message, or at a turn before it begins, in a step of its own."""
    ends: bool = Field(default=False, exclude_if=is_unset)
    """Plugins look at a turn that has ended, or the log is compacted then, in a step of its own."""
    watches: bool = Field(default=False, exclude_if=is_unset)
    """Plugins look at each event before it is logged; at what the workflow makes, in a step of its own."""
    hides_checkpoints: bool = Field(default=False, exclude_if=is_unset)
    """Readers see no checkpoints, though the app waits for answers: a graph does so in any app."""


class _Node(BaseModel):
    model_config = _FROZEN

    name: str
    description: str = ""
    sub_agents: tuple[Node, ...] = ()
    before: bool = Field(default=False, exclude_if=is_unset)
    """Callbacks run before the agent, in a step of their own."""
    after: bool = Field(default=False, exclude_if=is_unset)
    """Callbacks run after it."""


class LlmNode(_Node):
    """An `LlmAgent`."""

    kind: Literal["llm"] = "llm"
    model: str
    """Name by which the worker finds the model."""
    instruction: str = ""
    """Text with `{key}` and `{key?}` placeholders; empty if `dynamic_instruction`."""
    dynamic_instruction: bool = False
    """The instruction is a function, found in the registry under the agent's name."""
    tools: tuple[ToolPlan, ...] = ()
    """The declared tools; `transfer_to_agent` is added where the agent has someone to transfer to."""
    output_key: str | None = None
    output_schema: dict[str, Any] | None = Field(default=None, exclude_if=is_unset)
    """JSON schema of the agent's answer. The type that checks it is found in the worker, by the agent's name."""
    include_contents: Literal["default", "none"] = "default"
    generate_content_config: dict[str, Any] = Field(default_factory=dict[str, Any])
    """JSON of a `types.GenerateContentConfig`, fields that are `None` left out."""
    disallow_transfer_to_parent: bool = False
    disallow_transfer_to_peers: bool = False
    max_llm_calls: int = 0
    """Model calls of this agent in an invocation; 0 is without limit."""
    model_options: ToolOptions = MODEL_OPTIONS
    """How its model calls are timed and tried again."""

    values: dict[str, Any] = Field(default_factory=dict[str, Any], exclude_if=is_unset)
    """Of google.adk's agents: plain values of further fields, as JSON; a field that is not here was not set."""
    code: tuple[str, ...] = Field(default=(), exclude_if=is_unset)
    """And the further fields that held code, by name."""
    mode: Literal["task", "single_turn"] | None = Field(default=None, exclude_if=is_unset)
    """Of google.adk 2's: it does tasks, in talk with the user or without; no agent transfers to it."""

    def tool(self, name: str) -> ToolPlan | None:
        """Return the agent's tool of this name, if it has one; with a schema for answers, that which takes these."""
        if name == SET_MODEL_RESPONSE and self.output_schema is not None:
            return _answer_tool(self.output_schema)
        return next((tool for tool in self.tools if tool.name == name), None)


def _answer_tool(schema: dict[str, Any]) -> ToolPlan:
    declaration = types.FunctionDeclaration(
        name=SET_MODEL_RESPONSE,
        description="Give your final answer, in the form that is asked for, instead of writing it as text.",
        parameters_json_schema=arguments_for(schema),
    )
    return ToolPlan(name=SET_MODEL_RESPONSE, declaration=declaration)


class SequentialNode(_Node):
    """A `SequentialAgent`."""

    kind: Literal["sequential"] = "sequential"


class LoopNode(_Node):
    """A `LoopAgent`."""

    kind: Literal["loop"] = "loop"
    max_iterations: int | None = None


class ParallelNode(_Node):
    """A `ParallelAgent`."""

    kind: Literal["parallel"] = "parallel"


class CustomNode(_Node):
    """A custom agent: a subclass of `BaseAgent` with its own `_run_async_impl`."""

    kind: Literal["custom"] = "custom"
    code: str
    """`MODULE:QUALNAME` of the class, by which an agent is found that was renamed."""
    graph: GraphShape | None = Field(default=None, exclude_if=is_unset)
    """Of a graph of google.adk's: its picture. It runs as custom agents do, and each of its nodes is a step."""
    tool: str | None = Field(default=None, exclude_if=is_unset)
    """Of an agent's tool that runs nodes: its name; the node's is `AGENT.TOOL`. Such code runs as a graph's."""


class RefusedNode(_Node):
    """An app that cannot be served: its runs fail with the reason."""

    kind: Literal["refused"] = "refused"
    step: Literal["import", "compile"]
    """What was refused: to import its code, or to compile what it defines."""
    reason: str
    """What happened, where, and what to do."""


Node = Annotated[
    LlmNode | SequentialNode | LoopNode | ParallelNode | CustomNode | RefusedNode, Field(discriminator="kind")
]


class Plan(BaseModel):
    """A compiled app."""

    model_config = _FROZEN

    app: str
    """The app's name: the workflow type and the task queue of its sessions."""
    resumable: bool = False
    shows_errors: bool = False
    """End users are told what errors of the operator's code say, not only type and reference."""
    root: Node
    activities: tuple[str, ...] = ()
    """Names of the functions that custom agents may give to `run_activity`."""
    shared_state: bool = True
    """Whether the app's code can touch `user:` and `app:` keys; if not, they are never looked up."""
    adk: AdkRules | None = Field(default=None, exclude_if=is_unset)
    """The agents are google.adk's."""
    max_llm_calls: int = MAX_LLM_CALLS
    """Model calls of all agents in an invocation; 0 and less are without limit."""
    steps_per_activity: int = Field(default=1, exclude_if=is_one)
    """How many steps of an LLM agent one activity may take."""

    @property
    def is_graph(self) -> bool:
        """Whether its root is a graph of google.adk's."""
        return isinstance(self.root, CustomNode) and self.root.graph is not None

    @cached_property
    def has_tasks(self) -> bool:
        """Whether agents do tasks, whose events tell google.adk 2's nodes."""
        return any(isinstance(node, LlmNode) and node.mode is not None for node in self.nodes.values())

    @property
    def shows_checkpoints(self) -> bool:
        """Whether readers see checkpoints and ends."""
        return self.resumable and not (self.adk is not None and self.adk.hides_checkpoints)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the plan's JSON, in hexadecimal: equal for equal plans, in every process."""
        data = self.model_dump_json(by_alias=True, exclude_none=True)
        return hashlib.sha256(data.encode()).hexdigest()

    @cached_property
    def nodes(self) -> dict[str, Node]:
        """Every node by its name, depth-first, parents before children."""
        return {node.name: node for node in _walk(self.root)}

    @cached_property
    def every_node(self) -> tuple[Node, ...]:
        """The nodes of the tree, and behind each those of the agents that its tools run."""
        return tuple(_walk_all(self.root))

    def find(self, name: str) -> Node | None:
        """Return the node of an agent, or of one that a tool runs: the first of this name."""
        return self.nodes.get(name) or next((node for node in self.every_node if node.name == name), None)

    @cached_property
    def parents(self) -> dict[str, Node]:
        """Each node's parent by the node's name; the root has none."""
        return {child.name: node for node in self.nodes.values() for child in node.sub_agents}

    @property
    def every_tool(self) -> Iterator[ToolPlan]:
        """The tools of all agents, also of those that tools run."""
        return (tool for node in self.every_node if isinstance(node, LlmNode) for tool in node.tools)

    @cached_property
    def has_local_tools(self) -> bool:
        """Whether a tool runs as a local activity, which is in the middle of a workflow task."""
        return any(tool.local for tool in self.every_tool)

    @cached_property
    def _scopes(self) -> dict[tuple[str, str], Plan | None]:
        return {}

    def scope(self, agent: str, tool: str) -> Plan | None:
        """Return the plan of the agent that a tool runs; `None` if the tool runs none.

        In its scope the agent waits for answers whether or not the app is resumable: nobody could begin it again.
        """
        if (agent, tool) not in self._scopes:
            self._scopes[agent, tool] = self._scope(agent, tool)
        return self._scopes[agent, tool]

    def _scope(self, agent: str, tool: str) -> Plan | None:
        node = self.nodes.get(agent)
        planned = node.tool(tool) if isinstance(node, LlmNode) else None
        if planned is None or planned.agent is None:
            return None
        rules = self.adk and self.adk.model_copy(
            update={
                "logs_failures": self.adk.major >= 2 and isinstance(planned.agent, LlmNode),
                "begins": self.adk.begins and planned.plugins,
                "ends": self.adk.ends and planned.plugins,
                # The tool's own runner knows of no resuming: callbacks in there are to see no more than with it.
                "hides_checkpoints": True,
            }
        )
        # No copy, which would keep what this plan has cached.
        fields: dict[str, Any] = {name: getattr(self, name) for name in type(self).model_fields}
        fields.update(resumable=True, root=planned.agent, adk=rules)
        return Plan(**fields)

    def path(self, name: str) -> list[str]:
        """Return the names from the root down to `name`, both included."""
        names = [name]
        while (parent := self.parents.get(names[-1])) is not None:
            names.append(parent.name)
        return names[::-1]

    def transfer_targets(self, node: LlmNode) -> list[Node]:
        """Return the agents that an LLM agent may transfer to. ADK: `flows/llm_flows/agent_transfer.py`."""
        targets = [child for child in node.sub_agents if _takes_over(child)]
        parent = self.parents.get(node.name)
        if not isinstance(parent, LlmNode):
            return targets
        if not node.disallow_transfer_to_parent:
            targets.append(parent)
        if not node.disallow_transfer_to_peers:
            targets.extend(peer for peer in parent.sub_agents if peer.name != node.name and _takes_over(peer))
        return targets

    def delegator(self, name: str) -> str:
        """Return the agent that talks with the user for an agent: of one that does a task, who gave it that."""
        for below, above in zip(self.path(name)[1:], self.path(name), strict=False):
            if _does_tasks(self.nodes[below]):
                return above
        return name


def _does_tasks(node: Node) -> bool:
    return isinstance(node, LlmNode) and node.mode is not None


def _takes_over(node: Node) -> bool:
    return not _does_tasks(node) and not (isinstance(node, CustomNode) and node.tool is not None)


def _walk(node: Node) -> Iterator[Node]:
    yield node
    for child in node.sub_agents:
        yield from _walk(child)


def _walk_all(root: Node) -> Iterator[Node]:
    for node in _walk(root):
        yield node
        for tool in node.tools if isinstance(node, LlmNode) else ():
            if tool.agent is not None:
                yield from _walk_all(tool.agent)


for _cls in (
    ToolPlan,
    _Node,
    LlmNode,
    SequentialNode,
    LoopNode,
    ParallelNode,
    CustomNode,
    RefusedNode,
    Plan,
):
    _cls.model_rebuild()
