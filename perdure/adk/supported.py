"""Says of google.adk's agents and apps what Perdure does not run, with the remedy."""

# google.adk 2 calls its composite agents deprecated; apps are made of them.
# pyright: reportDeprecated=false

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from google.adk.agents.base_agent import BaseAgent
from google.adk.agents.llm_agent import LlmAgent
from google.adk.agents.loop_agent import LoopAgent
from google.adk.agents.parallel_agent import ParallelAgent
from google.adk.agents.sequential_agent import SequentialAgent
from google.adk.apps.app import App
from google.adk.models.base_llm import BaseLlm
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.base_toolset import BaseToolset

__all__ = ["HONOURED", "Problem", "children_of", "model_name", "problem_of_agent", "problem_of_app", "tool_name"]

_RUN = ("run_async", "_run_async_impl", "_run_impl", "run")
"""The methods by which an agent of google.adk's runs: whoever overrides one runs code of its own."""

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


@dataclass(frozen=True)
class Problem:
    """Why Perdure does not run something."""

    reason: str
    remedy: str


def problem_of_app(name: str, app: App) -> Problem | None:
    """Return why an app cannot be run, apart from its agents."""
    root: object = app.root_agent
    if not isinstance(root, BaseAgent):
        kind = type(root).__name__
        return Problem(
            f"app {name!r}: its root is a {kind}; graphs are not supported yet",
            "make it a tree of LlmAgent, SequentialAgent, LoopAgent and ParallelAgent",
        )
    field = next(_unknown_fields(app, App), None)
    return None if field is None else Problem(f"app {name!r}: {_not_yet(field)}", "leave it out")


def problem_of_agent(agent: BaseAgent) -> Problem | None:
    """Return why an agent cannot be run, apart from its sub-agents and tools."""
    cls = next((one for one in HONOURED if isinstance(agent, one)), None)
    # By their code, not their class: what a subclass overrides is a custom agent's.
    if cls is None or any(getattr(type(agent), name, None) is not getattr(cls, name, None) for name in _RUN):
        return Problem(
            f"{type(agent).__name__} runs code of its own, which Perdure does not run for google.adk's agents yet",
            "use LlmAgent, SequentialAgent, LoopAgent or ParallelAgent",
        )
    mode = str(getattr(agent, "mode", None) or "chat")
    if mode != "chat":
        return Problem(f"mode={mode!r} is not supported yet", "leave it out, and have the agent transferred to")
    if getattr(agent, "parallel_worker", None):
        return Problem("parallel_worker is not supported yet", "use a ParallelAgent")
    field = next(_unknown_fields(agent, cls), None)
    if field is not None:
        return Problem(_not_yet(field), "leave it out")
    if len(children_of(agent)) < len(agent.sub_agents):
        return Problem("graph nodes among sub_agents are not supported yet", "make them agents")
    return _problem_of_model(agent) if isinstance(agent, LlmAgent) else None


def children_of(agent: BaseAgent) -> list[BaseAgent]:
    """Return an agent's sub-agents that are agents: 2.x takes nodes of graphs, too."""
    given: list[Any] = [*agent.sub_agents]
    return [child for child in given if isinstance(child, BaseAgent)]


def _not_yet(field: str) -> str:
    return f"{field} is not supported yet"


def _unknown_fields(given: Any, cls: type[Any]) -> Iterator[str]:
    """Yield the fields of google.adk's that are set, and whose meaning Perdure does not know."""
    for name, field in cls.model_fields.items():
        if name in HONOURED[cls] or name in ("mode", "parallel_worker"):
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
