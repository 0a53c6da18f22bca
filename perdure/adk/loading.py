"""Takes google.adk's apps and agents, as a module or a folder of ADK's holds them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from google.adk.agents.base_agent import BaseAgent
from google.adk.apps.app import App
from google.adk.cli.utils.agent_loader import AgentLoader

from perdure.adk.compile import look_at
from perdure.adk.credentials import StepCredentials
from perdure.adk.models import AppModels
from perdure.adk.registry import AdkRegistry
from perdure.adk.services import Services
from perdure.adk.steps import AdkSteps
from perdure.agents.adk_app import AdkApp
from perdure.artifacts.sealing import SealedArtifacts
from perdure.credentials.store import CredentialStore
from perdure.steps.base import Steps
from perdure.steps.user_code import CodeRunner

try:
    from google.adk.workflow import BaseNode
except ImportError:  # 1.x has no graphs.
    BaseNode = BaseAgent

__all__ = ["AdkCode", "as_adk_app", "load_adk_folder", "own_name"]


class AdkCode(AdkRegistry):
    """The code of one google.adk app, for a worker."""

    def steps(
        self,
        code: CodeRunner,
        artifacts: SealedArtifacts | None,
        credentials: CredentialStore | None,
        *,
        encrypted: bool,
    ) -> Steps:
        """Return the steps of its agents.

        Args:
            code: Runs the app's code.
            artifacts: Where its artifacts are.
            credentials: Where the secrets of its credentials are, if not in histories.
            encrypted: Whether histories are.
        """
        secrets = StepCredentials(credentials, encrypted=encrypted)
        return AdkSteps(self, code, Services(self.app, artifacts, credentials=secrets))


def as_adk_app(value: object, name: str) -> AdkApp | None:
    """Return a google.adk app, or a root agent of its own, under a name; `None` for anything else."""
    if isinstance(value, App):
        return AdkApp(name=name, app=value, open=AdkCode, models=AppModels, look=look_at)
    if isinstance(value, BaseAgent | BaseNode):
        return AdkApp(name=name, app=App(name=name, root_agent=value), open=AdkCode, models=AppModels, look=look_at)
    return None


def own_name(value: object) -> str | None:
    """Return the name of a google.adk app; `None` for an agent, whose name is not an app's."""
    return value.name if isinstance(value, App) else None


def load_adk_folder(folder: Path) -> AdkApp:
    """Load an agent's folder as `adk web` does: `.env`, `sys.path`, `agent.py`, `__init__.py` or `root_agent.yaml`.

    Raises:
        ValueError: There is no agent in it.
        Exception: Whatever the imported code raises.
    """
    loader = AgentLoader(str(folder))
    if not getattr(loader, "is_single_agent", False):  # 1.x does not know it.
        loader = AgentLoader(str(folder.parent))
    try:
        found: Any = loader.load_agent(folder.name)
    except RuntimeError as error:
        # 2.x wraps a ValueError of the user's code in an error of its own.
        if isinstance(error.__cause__, ValueError):
            raise error.__cause__ from None
        raise
    app = as_adk_app(found, folder.name)
    assert app is not None, "google.adk's loader returns an app, an agent or a graph"
    return app
