"""Takes google.adk's apps and agents, as a module or a folder of ADK's holds them."""

from __future__ import annotations

from pathlib import Path

from google.adk.agents.base_agent import BaseAgent
from google.adk.apps.app import App
from google.adk.cli.utils.agent_loader import AgentLoader

from perdure.adk.registry import AdkRegistry
from perdure.adk.services import Services
from perdure.adk.steps import AdkSteps
from perdure.agents.adk_app import AdkApp
from perdure.artifacts.service import ArtifactService
from perdure.steps.base import Steps
from perdure.steps.user_code import CodeRunner


class AdkCode(AdkRegistry):
    """The code of one google.adk app, for a worker."""

    def steps(self, code: CodeRunner, artifacts: ArtifactService | None) -> Steps:
        """Return the steps of its agents.

        Args:
            code: Runs the app's code.
            artifacts: Where its artifacts are.
        """
        return AdkSteps(self, code, Services(self.app, artifacts))


def as_adk_app(value: object, name: str) -> AdkApp | None:
    """Return a google.adk app, or a root agent of its own, under a name; `None` for anything else."""
    if isinstance(value, App):
        return AdkApp(name=name, app=value, open=AdkCode)
    if isinstance(value, BaseAgent):
        return AdkApp(name=name, app=App(name=name, root_agent=value), open=AdkCode)
    return None


def load_adk_folder(folder: Path) -> AdkApp | None:
    """Load an agent's folder by ADK's own loader, which reads `.env` and `root_agent.yaml`; the app gets its name.

    Raises:
        Exception: What the folder's code raised, or ADK says of it.
    """
    return as_adk_app(AgentLoader(str(folder.parent)).load_agent(folder.name), folder.name)
