"""What google.adk's code finds beside its session: artifacts and memory, and the runner that makes contexts."""

from __future__ import annotations

from typing import Any

from google.adk.memory.in_memory_memory_service import InMemoryMemoryService
from google.adk.runners import Runner
from google.adk.sessions.in_memory_session_service import InMemorySessionService

from perdure.adk.artifacts import StepArtifacts
from perdure.agents.adk_app import AdkApp
from perdure.artifacts.service import ArtifactService


class Services:
    """The services of one app in this process."""

    def __init__(self, app: AdkApp, artifacts: ArtifactService | None = None, memory: Any = None) -> None:
        """Make them.

        Args:
            app: The app.
            artifacts: Where its artifacts are. Default: nowhere; ADK tells code that wants some.
            memory: Its memory. Default: ADK's own, which is gone with the process.
        """
        self._artifacts = artifacts
        self.runner = Runner(
            app=app.app,
            app_name=app.name,
            # Each step has a session service of its own.
            session_service=InMemorySessionService(),
            memory_service=memory or InMemoryMemoryService(),
        )

    def artifacts(self, key: str) -> StepArtifacts | None:
        """Return the artifacts for one step, whose attempts have one key."""
        return StepArtifacts(self._artifacts, key) if self._artifacts is not None else None
