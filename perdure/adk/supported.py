"""Says of google.adk's agents and apps what Perdure does not run, with the remedy."""

# google.adk 2 calls its composite agents deprecated; apps are made of them.
# pyright: reportDeprecated=false

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

from google.adk.agents.base_agent import BaseAgent
from google.adk.agents.llm_agent import LlmAgent
from google.adk.agents.loop_agent import LoopAgent
from google.adk.agents.parallel_agent import ParallelAgent
from google.adk.agents.sequential_agent import SequentialAgent
from google.adk.apps.app import App
from google.adk.models.base_llm import BaseLlm
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.base_toolset import BaseToolset

from perdure.adk.graphs import agents_of, fields_of, is_graph, values_in
from perdure.adk.node_tools import held_by_tools

__all__ = [
    "HONOURED",
    "Problem",
    "held_by",
    "is_custom",
    "is_remote",
    "mode_of",
    "model_name",
    "problem_of_agent",
    "problem_of_app",
    "runs_itself",
    "sub_agents_of",
    "tool_name",
]

_RUN = ("run_async", "_run_async_impl")
"""The methods by which an agent of google.adk's runs: whoever overrides one runs code of its own, a custom agent."""

_RUN_AS_NODE = ("_run_impl", "run")
"""Those by which 2.x runs one as a node of a graph."""

_NOT_YET = "is not supported yet"

_EVERY_AGENT = frozenset(
    {"name", "description", "parent_agent", "sub_agents", "before_agent_callback", "after_agent_callback"}
)
HONOURED: dict[type[Any], frozenset[str]] = {
    LlmAgent: _EVERY_AGENT
    | {
        *("model", "instruction", "global_instruction", "static_instruction", "tools", "generate_content_config"),
        *("disallow_transfer_to_parent", "disallow_transfer_to_peers", "include_contents"),
        *("input_schema", "output_schema", "output_key", "planner", "code_executor"),
        *("before_model_callback", "after_model_callback", "on_model_error_callback"),
        *("before_tool_callback", "after_tool_callback", "on_tool_error_callback"),
    },
    SequentialAgent: _EVERY_AGENT,
    LoopAgent: _EVERY_AGENT | {"max_iterations"},
    ParallelAgent: _EVERY_AGENT,
    App: frozenset(
        {
            *("name", "root_agent", "plugins", "events_compaction_config", "context_cache_config"),
            "resumability_config",
        }
    ),
}
"""By class, the fields that mean on Perdure what they mean on google.adk; another one must have its default."""

_OF_NODES = frozenset({"rerun_on_resume", "wait_for_output", "retry_config", "timeout", "state_schema"})
"""Fields that google.adk's own code goes by where it runs an agent as a node of a graph."""


@dataclass(frozen=True)
class Problem:
    """Why Perdure does not run something."""

    reason: str
    remedy: str


def problem_of_app(name: str, app: App) -> Problem | None:
    """Return why an app cannot be run, apart from its agents."""
    root: object = app.root_agent
    if not isinstance(root, BaseAgent) and not is_graph(root):
        kind = type(root).__name__
        return Problem(f"app {name!r}: its root is a {kind}, {_NOT_YET}", "make it an agent, or a Workflow")
    field = next(_unknown_fields(app, App), None)
    return None if field is None else Problem(f"app {name!r}: {_not_yet(field)}", "leave it out")


def problem_of_agent(
    agent: BaseAgent,
    *,
    as_node: bool = False,
    above: Sequence[BaseAgent] = (),
    in_tool: bool = False,
    in_node: bool = False,
) -> Problem | None:
    """Return why an agent cannot be run, apart from its sub-agents and tools.

    Args:
        agent: The agent.
        as_node: It runs as a node of a graph.
        above: The agents above it, the root first.
        in_tool: A tool runs its tree.
        in_node: The first of those above it runs as a node of a graph.
    """
    if is_remote(agent):
        return _problem_of_remote(agent)
    if any(_overrides(agent, name, _class_of(agent) or BaseAgent) for name in _RUN_AS_NODE):
        return Problem(f"{type(agent).__name__} runs as a node of a graph, {_NOT_YET}", "override _run_async_impl")
    if is_custom(agent):
        return _problem_of_children(agent)
    cls = _class_of(agent)
    if cls is None:
        return Problem(f"{type(agent).__name__} {_NOT_YET}", "use LlmAgent, or an agent with code of your own")
    if as_node:
        problem = _problem_as_node(agent)
    else:
        problem = _problem_of_mode(mode_of(agent), above, in_tool=in_tool, in_node=in_node)
    if problem is not None:
        return problem
    if getattr(agent, "parallel_worker", None):
        return Problem("parallel_worker is not supported yet", "use a ParallelAgent")
    field = next(_unknown_fields(agent, cls, as_node=as_node), None)
    if field is not None:
        return Problem(_not_yet(field), "leave it out")
    problem = _problem_of_children(agent)
    return _problem_of_model(agent) if problem is None and isinstance(agent, LlmAgent) else problem


def is_custom(agent: BaseAgent) -> bool:
    """Return whether an agent is a custom one: code of its class says how it runs, which is not google.adk's.

    A remote one counts as such: all that it does is one call.
    """
    if is_graph(agent) or is_remote(agent):
        return is_remote(agent)
    cls = _class_of(agent) or BaseAgent
    # By their code, not their class: what a subclass overrides is a custom agent's.
    owner = next((one for one in type(agent).__mro__ if any(name in vars(one) for name in _RUN)), BaseAgent)
    return any(_overrides(agent, name, cls) for name in _RUN) and not owner.__module__.startswith("google.adk.")


def is_remote(agent: BaseAgent) -> bool:
    """Return whether an agent is elsewhere, and is asked by A2A. By name: it comes with an extra of google.adk's."""
    kinds = (one for one in type(agent).__mro__ if one.__module__.startswith("google.adk."))
    return any(one.__name__ == "RemoteA2aAgent" for one in kinds)


def runs_itself(agent: BaseAgent) -> bool:
    """Return whether a custom agent overrides all of a run, the callbacks around it, too."""
    return _overrides(agent, "run_async", BaseAgent)


def _class_of(agent: BaseAgent) -> type[Any] | None:
    return next((one for one in HONOURED if isinstance(agent, one)), None)


def _overrides(agent: BaseAgent, name: str, cls: type[Any]) -> bool:
    return getattr(type(agent), name, None) is not getattr(cls, name, None)


def mode_of(agent: BaseAgent) -> Literal["task", "single_turn"] | None:
    """Return as what google.adk 2 runs an agent that others give tasks to; `None` for one that users talk with."""
    mode = str(getattr(agent, "mode", None) or "chat")
    return "task" if mode == "task" else "single_turn" if mode == "single_turn" else None


def _problem_of_remote(agent: BaseAgent) -> Problem | None:
    mode = mode_of(agent)
    if mode is not None:
        return Problem(f"mode={mode!r} of a remote agent {_NOT_YET}", "leave it out, and have it transferred to")
    return None


def _problem_of_mode(mode: str | None, above: Sequence[BaseAgent], *, in_tool: bool, in_node: bool) -> Problem | None:
    """Return why an agent of a mode cannot run where it stands: google.adk itself does not run it there."""
    if mode is None:
        return None
    if in_tool:
        return Problem(f"mode={mode!r} within an AgentTool {_NOT_YET}", "make the tool's agent a sub-agent")
    givers = above[-1:] if mode == "single_turn" else above
    if mode == "single_turn" and not above:
        return Problem("mode='single_turn' is none for an app's root", "leave it out, or make it 'task'")
    if any(not isinstance(one, LlmAgent) or is_custom(one) for one in givers):
        return Problem(
            f"mode={mode!r}: only an LlmAgent gives tasks to its sub-agents",
            "make it a sub-agent of one, or leave the mode out",
        )
    if mode == "task" and in_node and mode_of(above[0]) != "task":
        # google.adk drops the call that gives it its task.
        return Problem(
            f"mode='task': {above[0].name!r}, which is a node of a graph, gives no tasks",
            "give that agent mode='task', too, or make this one mode='single_turn'",
        )
    return None


def _problem_as_node(agent: BaseAgent) -> Problem | None:
    """Return why an agent cannot run as a node of a graph."""
    if isinstance(agent, LlmAgent) and agent.sub_agents and getattr(agent, "mode", None) == "chat":
        # google.adk's graph stops behind it, as it has no output.
        return Problem(f"mode='chat' of a node that has sub_agents {_NOT_YET}", "leave the mode out")
    return None


def sub_agents_of(agent: BaseAgent) -> list[BaseAgent]:
    """Return an agent's sub-agents that are agents, 2.x takes nodes of graphs, too; or the agents of a graph."""
    if is_graph(agent):
        return agents_of(agent)
    given: list[Any] = [*agent.sub_agents]
    return [child for child in given if isinstance(child, BaseAgent)]


def held_by(agent: BaseAgent) -> list[BaseAgent]:
    """Return the agents that an agent has beside its sub-agents: a custom one in fields of its own, others in tools."""
    if is_graph(agent):
        return []
    if not is_custom(agent):
        return held_by_tools(agent) if isinstance(agent, LlmAgent) else []
    fields = {name: value for name, value in fields_of(agent).items() if name not in ("sub_agents", "parent_agent")}
    found: dict[int, BaseAgent] = {id(one): one for one in values_in(fields, BaseAgent)}
    known = {id(one) for one in (agent, *sub_agents_of(agent))}
    return [one for one in found.values() if id(one) not in known]


def _problem_of_children(agent: BaseAgent) -> Problem | None:
    if sum(isinstance(child, BaseAgent) for child in cast("list[object]", agent.sub_agents)) == len(agent.sub_agents):
        return None
    return Problem("graph nodes among sub_agents are not supported yet", "make them agents")


def _not_yet(field: str) -> str:
    return f"{field} {_NOT_YET}"


def _unknown_fields(given: Any, cls: type[Any], *, as_node: bool = False) -> Iterator[str]:
    """Yield the fields of google.adk's that are set, and whose meaning Perdure does not know."""
    for name, field in cls.model_fields.items():
        if name in HONOURED[cls] or name in ("mode", "parallel_worker") or (as_node and name in _OF_NODES):
            continue
        value = getattr(given, name, None)
        if value is not None and value != field.get_default(call_default_factory=True):
            yield name


def _problem_of_model(agent: LlmAgent) -> Problem | None:
    try:
        model_name(agent)
    except Exception as error:
        return Problem(f"it has no model: {error}", "give it one, or a sub-agent of an agent that has one")
    return None


def tool_name(given: object) -> str:
    """Return the name by which a model knows what an agent has as a tool; of a toolset, its class's."""
    if isinstance(given, BaseTool):
        return given.name
    if isinstance(given, BaseToolset):
        return type(given).__name__
    return getattr(given, "__name__", None) or getattr(given, "name", None) or type(given).__name__


def model_name(agent: LlmAgent) -> str:
    """Return the name of an agent's model, its own or one that it inherits.

    Raises:
        Exception: It has none; as google.adk says it.
    """
    model = agent.model
    if isinstance(model, BaseLlm):
        return model.model
    return model or agent.canonical_model.model
