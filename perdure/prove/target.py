"""Loads a user's own app, to be proved."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from perdure.agents.adk_app import AdkApp, AnyApp
from perdure.agents.agent_tool import walk_all
from perdure.agents.definitions import App, LlmAgent
from perdure.compiler.loading import load_app
from perdure.errors import DefinitionError
from perdure.models.base import BaseLlm
from perdure.models.scripted import ScriptedModel
from perdure.prove.ledger import Ledger


@dataclass(frozen=True)
class TargetSource:
    """Loads an app in a worker process, and gives its agents scripted models."""

    target: str
    """As `perdure worker` takes it: `MODULE:APP`, a file or a folder."""
    script: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict[str, Sequence[Mapping[str, Any]]])
    """Answers by agent; an agent without any keeps its model."""
    modules: Sequence[str] = ()

    @classmethod
    def of(cls, target: str, app: AnyApp, script: Mapping[str, Sequence[Mapping[str, Any]]]) -> TargetSource:
        """Return the source of an app that this process has loaded.

        Args:
            target: Its name.
            app: The app.
            script: Answers by agent.
        """
        # google.adk takes a second to import, which each of many processes would pay for.
        return cls(target, script, (app.open.__module__,) if isinstance(app, AdkApp) else ())

    def build(self, app_name: str, ledger: Ledger) -> AnyApp:
        """Return the app under another name.

        Raises:
            DefinitionError: There is no such app, or no such agent as the script names.
        """
        app = load_app(self.target)
        use_script(app, self.script)
        return renamed(app, app_name)


def use_script(app: AnyApp, script: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """Put scripted models in the place of agents' own.

    Raises:
        DefinitionError: The script names an agent that is no LLM agent of the app, or holds what is no step.
    """
    use_models(app, {name: ScriptedModel(steps, model=f"script of {name}") for name, steps in script.items()})


def use_models(app: AnyApp, models: Mapping[str, BaseLlm]) -> Callable[[], None]:
    """Put models in the place of agents' own; returns what takes that back.

    Raises:
        DefinitionError: An agent is no LLM agent of the app.
    """
    if isinstance(app, AdkApp):
        return app.models(app).replace(models)
    agents = _llm_agents(app)
    names = dict.fromkeys(agent.name for agent in agents)
    unknown = sorted(set(models) - set(names))
    if unknown:
        raise DefinitionError(
            f"the script is for {unknown[0]!r}, but app {app.name!r} has no such LLM agent; it has"
            f" {', '.join(names) or 'none'}"
        )
    given = [agent.model for agent in agents]
    # Before any is replaced: an agent without a model of its own has its parent's, but not its parent's script.
    now = [models[agent.name] if agent.name in models else agent.resolved_model() for agent in agents]

    def put(taken: Sequence[str | BaseLlm]) -> None:
        for agent, model in zip(agents, taken, strict=True):
            agent.model = model

    put(now)
    return lambda: put(given)


def unscripted(app: AnyApp, script: Collection[str]) -> dict[str, str]:
    """Return the agents that would call a provider's model, whose answers differ from run to run, and its name."""
    if isinstance(app, AdkApp):
        return {name: model for name, model in app.models(app).by_name().items() if name not in script}
    models = {agent.name: agent.resolved_model() for agent in _llm_agents(app) if agent.name not in script}
    return {name: model for name, model in models.items() if isinstance(model, str)}


def renamed(app: AnyApp, name: str) -> AnyApp:
    """Return an app under another name."""
    if not isinstance(app, App):
        return replace(app, name=name)
    return app.model_copy(update={"name": name})


def _llm_agents(app: AnyApp) -> list[LlmAgent]:
    return [agent for agent in walk_all(app.root_agent) if isinstance(agent, LlmAgent)] if isinstance(app, App) else []


def target_of(app: object) -> str:
    """Return the name by which a worker process can load an app.

    Raises:
        DefinitionError: No module holds the app under a name.
    """
    for name, module in list(sys.modules.items()):
        for attribute, value in list(vars(module).items()):
            if value is app and name != "__main__":
                return f"{name}:{attribute}"
    raise DefinitionError(
        f"no module holds the app {getattr(app, 'name', app)!r} under a name, so that no worker process can load it;"
        " assign it at the top of a module, or name it as MODULE:APP"
    )
