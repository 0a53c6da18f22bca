"""Registers the apps that this process serves: names in a plan → code. Workflow code reads code here, never data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol, overload

from perdure.agents.adk_app import AnyApp
from perdure.agents.agent_tool import walk_all
from perdure.agents.artifacts import load_artifacts
from perdure.agents.broken import BrokenApp
from perdure.agents.custom import BaseAgent
from perdure.agents.definitions import App, InstructionProvider, LlmAgent
from perdure.agents.structured import Structured
from perdure.agents.tools import FunctionTool, as_tool
from perdure.compiler.compile import compile_app
from perdure.errors import DefinitionError
from perdure.models.base import BaseLlm
from perdure.models.registry import LLMRegistry
from perdure.plan.nodes import CustomNode, LlmNode, Plan, RefusedNode


class NotRegistered(LookupError):
    """This process has no such code; another worker, or this one after a deployment, may have it."""


class AnyRegistry(Protocol):
    """The code behind a served app's plan, whoever's its agents are."""

    @property
    def app(self) -> AnyApp:
        """The app."""
        ...

    @property
    def plan(self) -> Plan:
        """Its plan."""
        ...


class Registry:
    """The code behind one app's plan."""

    def __init__(self, app: App) -> None:
        """Compile an app.

        Raises:
            DefinitionError: The app is not valid.
        """
        self.app: App | BrokenApp = app
        self.plan: Plan = compile_app(app)
        self._agents: dict[str, BaseAgent] = {agent.name: agent for agent in walk_all(app.root_agent)}
        self._outputs: dict[str, Structured | None] = {
            name: agent.structured_output() for name, agent in self._agents.items() if isinstance(agent, LlmAgent)
        }
        self._tools: dict[tuple[str, str], FunctionTool] = {
            (agent.name, tool.name): tool
            for agent in self._agents.values()
            if isinstance(agent, LlmAgent)
            for tool in map(as_tool, agent.tools)
        }
        self._activities: dict[str, Callable[..., Any]] = {fn.__name__: fn for fn in app.activities}

    def tool(self, agent: str, tool: str) -> FunctionTool:
        """Return an agent's tool.

        Raises:
            NotRegistered: The agent has no such tool here.
        """
        found = self._tools.get((agent, tool))
        if found is None and agent not in self._agents:
            # The agent was renamed or removed under a pinned plan; its tool may be another agent's now.
            others = {id(other.fn): other for (_, name), other in self._tools.items() if name == tool}
            found = next(iter(others.values())) if len(others) == 1 else None
        if found is None:
            raise self.missing(f"agent {agent!r} has no tool {tool!r}")
        return found

    def instruction(self, agent: str) -> InstructionProvider:
        """Return the function that makes an agent's instruction.

        Raises:
            NotRegistered: The agent has no such function here.
        """
        found = self._agents.get(agent)
        if not isinstance(found, LlmAgent) or isinstance(found.instruction, str):
            raise self.missing(f"agent {agent!r} has no function for its instruction")
        return found.instruction

    def output(self, node: LlmNode) -> Structured:
        """Return the type of an agent's answers: of today's code, or else the schema of the plan, which checks nothing.

        Raises:
            NotRegistered: The agent is not here.
        """
        if node.name not in self._outputs:
            raise self.missing(f"there is no agent {node.name!r}, which has an output_schema")
        return self._outputs[node.name] or Structured(node.output_schema, f"agent {node.name!r}: output_schema")

    def loads_artifacts(self, agent: str) -> bool:
        """Return whether an agent has the built-in tool `load_artifacts`."""
        return any(tool.fn is load_artifacts for (owner, _), tool in self._tools.items() if owner == agent)

    def model(self, node: LlmNode) -> BaseLlm:
        """Return the model object given to an agent, or else the one that the node's model name stands for.

        Raises:
            DefinitionError: No provider knows the name.
            NotRegistered: The agent is not here, and no provider knows the name of its model.
        """
        agent = self._agents.get(node.name)
        if isinstance(agent, LlmAgent):
            model = agent.resolved_model()
            # The invocation may be pinned to a plan with another model than the agent has now.
            if isinstance(model, BaseLlm) and model.model == node.model:
                return model
        try:
            return LLMRegistry.new_llm(node.model)
        except DefinitionError as error:
            if agent is not None:
                raise
            # The agent was renamed or removed under a pinned plan; the model of its name may be another agent's now.
            others = {id(model): model for model in self._models() if model.model == node.model}
            if len(others) == 1:
                return next(iter(others.values()))
            raise self.missing(f"there is no agent {node.name!r}, whose model is {node.model!r}") from error

    def _models(self) -> Iterator[BaseLlm]:
        for agent in self._agents.values():
            model = agent.resolved_model() if isinstance(agent, LlmAgent) else None
            if isinstance(model, BaseLlm):
                yield model

    def custom_agent(self, agent: str, code: str | None = None) -> BaseAgent:
        """Return a custom agent.

        Args:
            agent: Its name.
            code: `MODULE:QUALNAME` of its class, by which one that was renamed under a pinned plan is found.

        Raises:
            NotRegistered: There is no custom agent of this name here.
        """
        found = self._agents.get(agent)
        if found is None:
            nodes = (node for node in self.plan.every_node if isinstance(node, CustomNode) and node.code == code)
            names = {node.name for node in nodes}
            found = self._agents[names.pop()] if len(names) == 1 else None
        if found is None or not found.has_own_run:
            raise self.missing(f"there is no custom agent {agent!r}")
        return found

    def activity(self, name: str) -> Callable[..., Any]:
        """Return a function of `App(activities=[…])`.

        Raises:
            NotRegistered: There is none of this name here.
        """
        found = self._activities.get(name)
        if found is None:
            raise self.missing(f"App(activities=[…]) has no function {name!r}")
        return found

    def missing(self, what: str) -> NotRegistered:
        """Return the error that says what code this worker has not."""
        return NotRegistered(f"app {self.app.name!r} in this worker: {what}; deploy the code that has it")


class BrokenRegistry(Registry):
    """What stands for the code of an app that cannot be served: a plan that says why, and no code."""

    def __init__(self, app: BrokenApp) -> None:
        """Make the plan."""
        self.app = self._broken = app
        self.plan = Plan(
            app=app.name,
            root=RefusedNode(name=app.name, step=app.step, reason=app.reason),
            shows_errors=True,
            shared_state=False,
        )
        self._agents = {}
        self._outputs = {}
        self._tools = {}
        self._activities = {}

    def model(self, node: LlmNode) -> BaseLlm:
        """Return no model, not even one that is known by its name: what a session began waits for its code.

        Raises:
            NotRegistered: Always.
        """
        raise self.missing(f"there is no agent {node.name!r}")

    def missing(self, what: str) -> NotRegistered:
        """Return the error that says what code this worker has not, and why."""
        how = "imported" if self._broken.step == "import" else "compiled"
        return NotRegistered(f"app {self.app.name!r} cannot be {how} in this worker, so {what}: {self._broken.reason}")


_registries: dict[str, AnyRegistry] = {}


@overload
def register(app: App) -> Registry: ...
@overload
def register(app: AnyApp) -> AnyRegistry: ...


def register(app: AnyApp) -> AnyRegistry:
    """Compile an app and remember it under its name, for the whole process.

    The same object gets the same registry again; another app of the same name replaces it.

    Raises:
        DefinitionError: The app is not valid.
    """
    known = _registries.get(app.name)
    if known is not None and known.app is app:
        return known
    _registries[app.name] = registry = _compiled(app)
    return registry


def _compiled(app: AnyApp) -> AnyRegistry:
    if isinstance(app, BrokenApp):
        return BrokenRegistry(app)
    return Registry(app) if isinstance(app, App) else app.open(app)
