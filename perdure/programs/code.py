"""The code behind a program's runner: its agents, with the services that the program gave."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, ClassVar, TypeVar

from google.adk.artifacts.base_artifact_service import BaseArtifactService
from google.adk.runners import Runner

from perdure.adk.credentials import StepCredentials
from perdure.adk.loading import AdkCode
from perdure.adk.services import Services
from perdure.adk.steps import AdkSteps
from perdure.agents.adk_app import AdkApp
from perdure.artifacts.sealing import SealedArtifacts
from perdure.credentials import CredentialStore
from perdure.steps.base import Steps
from perdure.steps.user_code import CodeRunner

_T = TypeVar("_T")


class ProgramCode(AdkCode):
    """The code of a program's app, for the worker in it."""

    _code: ClassVar[CodeRunner | None] = None
    """Runs the steps of all apps of the process."""

    def __init__(self, app: AdkApp, program: Runner) -> None:
        """Compile the app.

        Args:
            app: The app.
            program: The program's runner, with its services.

        Raises:
            DefinitionError: Perdure cannot run it.
        """
        super().__init__(app)
        self._program = program
        self._services: ProgramServices | None = None

    def steps(
        self,
        code: CodeRunner,
        artifacts: SealedArtifacts | None,
        credentials: CredentialStore | None,
        *,
        encrypted: bool,
    ) -> Steps:
        """Return the steps of its agents, as `AdkCode.steps`."""
        ProgramCode._code = code
        secrets = StepCredentials(credentials, encrypted=encrypted)
        self._services = ProgramServices(self.app, artifacts, secrets)
        self._services.use(self.app, self._program)
        return AdkSteps(self, code, self._services)

    def adopt(self, other: ProgramCode) -> None:
        """Go on with the objects of another runner, whose plan is the same: the program has made its agents anew."""
        self.app, self._program = other.app, other._program
        self._agents, self._today = other._agents, other._today
        self._pinned.clear()
        if self._services is not None:
            self._services.use(self.app, self._program)

    @classmethod
    async def where_steps_run(cls, coroutine: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine on the loop to which connections of toolsets belong, if there is one yet."""
        return await (coroutine if cls._code is None else cls._code.run_async(coroutine))


class ProgramServices(Services):
    """The program's own services; Perdure's in place of those that it has not."""

    _given: BaseArtifactService | None = None

    def use(self, app: AdkApp, program: Runner) -> None:
        """Take the services, and the plugins, of a program's runner."""
        self.runner.agent = app.app.root_agent
        self.runner.plugin_manager = program.plugin_manager
        self._given = program.artifact_service
        if program.memory_service is not None:
            self.runner.memory_service = program.memory_service
        if program.credential_service is not None:
            self.runner.credential_service = program.credential_service

    def artifacts(self, key: str) -> Any:
        """Return the artifacts for one step."""
        return self._given if self._given is not None else super().artifacts(key)
