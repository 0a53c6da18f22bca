"""Loads a user's own app, to be proved."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from perdure.agents.adk_app import AdkApp, AnyApp
from perdure.agents.agent_tool import walk_all
from perdure.agents.definitions import App, LlmAgent
from perdure.compiler.loading import load_app
from perdure.errors import DefinitionError
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
        if not isinstance(app, App):
            return replace(app, name=app_name)
        return App(
            name=app_name,
            root_agent=app.root_agent,
            resumability_config=app.resumability_config,
            activities=app.activities,
        )


def use_script(app: AnyApp, script: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """Put scripted models in the place of agents' own.

    Raises:
        DefinitionError: The script names an agent that is no LLM agent of the app, or holds what is no step.
    """
    if isinstance(app, AdkApp):
        app.models(app).script(script)
    if not isinstance(app, App):
        return
    agents = {agent.name: agent for agent in walk_all(app.root_agent) if isinstance(agent, LlmAgent)}
    unknown = sorted(set(script) - set(agents))
    if unknown:
        raise DefinitionError(
            f"the script is for {unknown[0]!r}, but app {app.name!r} has no such LLM agent; it has"
            f" {', '.join(agents) or 'none'}"
        )
    # Before any is replaced: an agent without a model of its own has its parent's, but not its parent's script.
    own = {name: agent.resolved_model() for name, agent in agents.items() if name not in script}
    for name, agent in agents.items():
        agent.model = ScriptedModel(script[name], model=f"script of {name}") if name in script else own[name]


def unscripted(app: AnyApp, script: Mapping[str, object]) -> list[str]:
    """Return the agents that would call a provider's model, whose answers differ from run to run."""
    if isinstance(app, AdkApp):
        return [name for name in app.models(app).by_name() if name not in script]
    if not isinstance(app, App):
        return []
    return [
        agent.name
        for agent in walk_all(app.root_agent)
        if isinstance(agent, LlmAgent) and agent.name not in script and isinstance(agent.resolved_model(), str)
    ]


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
