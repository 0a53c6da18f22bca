"""What google.adk's code finds beside its session: artifacts and memory, and the runner that makes contexts."""

from __future__ import annotations

from google.adk.apps.app import App
from google.adk.memory.in_memory_memory_service import InMemoryMemoryService
from google.adk.runners import Runner
from google.adk.sessions.in_memory_session_service import InMemorySessionService
from google.adk.tools.agent_tool import AgentTool

from perdure.adk.artifacts import StepArtifacts
from perdure.adk.credentials import StepCredentials
from perdure.adk.memory import KeptMemory
from perdure.agents.adk_app import AdkApp
from perdure.artifacts.memories import Memories
from perdure.artifacts.sealing import SealedArtifacts


class Services:
    """The services of one app in this process."""

    def __init__(
        self,
        app: AdkApp,
        artifacts: SealedArtifacts | None = None,
        credentials: StepCredentials | None = None,
    ) -> None:
        """Make them.

        Args:
            app: The app.
            artifacts: Where its artifacts and memories are. Default: nowhere; then memory is ADK's, and gone with the
                process.
            credentials: Where the secrets of its credentials are. Default: nowhere: nobody can be asked for any.
        """
        self.credentials = credentials or StepCredentials(None, encrypted=False)
        self._artifacts = artifacts
        self.runner = Runner(
            app=app.app,
            app_name=app.name,
            # Each step has a session service of its own.
            session_service=InMemorySessionService(),
            memory_service=KeptMemory(Memories(artifacts)) if artifacts is not None else InMemoryMemoryService(),
            credential_service=self.credentials.service,
        )

    def runner_of(self, tool: AgentTool) -> Runner:
        """Return a runner for the agent that a tool runs. As `AgentTool.run_async` makes it: with an empty memory."""
        plugins = self.runner.plugin_manager.plugins if tool.include_plugins else []
        return Runner(
            app=App(name=self.runner.app_name, root_agent=tool.agent, plugins=plugins),
            session_service=InMemorySessionService(),
            memory_service=InMemoryMemoryService(),
            credential_service=self.runner.credential_service,
        )

    def artifacts(self, key: str) -> StepArtifacts | None:
        """Return the artifacts for one step, whose attempts have one key."""
        return StepArtifacts(self._artifacts, key) if self._artifacts is not None else None
