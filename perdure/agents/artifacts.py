"""A session's artifacts for its tools and instruction functions; and `load_artifacts`, the tool."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any

from google.genai import types

from perdure.artifacts.service import ArtifactService, ArtifactVersion
from perdure.errors import ArtifactError


def _cannot_wait(awaitable: Awaitable[Any]) -> Any:
    raise ArtifactError("there is no worker here whose loop could be waited for; await it")


@dataclass
class SessionArtifacts:
    """The artifacts of one session: the service that keeps them, and whose they are."""

    service: ArtifactService | None
    """`None` where nobody said where artifacts are kept."""
    app_name: str
    user_id: str
    session_id: str
    wait: Callable[[Awaitable[Any]], Any] = _cannot_wait
    """Runs an awaitable on the worker's loop for user code, and blocks the thread until it is done."""
    key: str | None = None
    """Equal in every attempt of what saves, so that a repeated save finds its version."""
    _saves: Counter[str] = field(default_factory=Counter[str])
    _begun: list[tuple[str, Coroutine[Any, Any, Any]]] = field(
        default_factory=list[tuple[str, Coroutine[Any, Any, Any]]]
    )

    def found(self) -> ArtifactService:
        """Return the service.

        Raises:
            ArtifactError: There is none.
        """
        if self.service is None:
            raise ArtifactError(
                "this worker was not told where artifacts are kept; start it with --artifacts FOLDER (or"
                " PERDURE_ARTIFACTS), or give WorkerConfig(artifacts=…)"
            )
        return self.service

    async def load(self, filename: str, version: int | None) -> types.Part | None:
        """Return a version's content, by default the latest's; `None` if there is none."""
        return await self.found().load_artifact(
            app_name=self.app_name,
            user_id=self.user_id,
            session_id=self.session_id,
            filename=filename,
            version=version,
        )

    async def describe(self, filename: str, version: int | None) -> ArtifactVersion | None:
        """Return the description of a version, by default of the latest."""
        return await self.found().get_artifact_version(
            app_name=self.app_name,
            user_id=self.user_id,
            session_id=self.session_id,
            filename=filename,
            version=version,
        )

    async def names(self) -> list[str]:
        """Return the names of the session's artifacts and of its user's."""
        return await self.found().list_artifact_keys(
            app_name=self.app_name, user_id=self.user_id, session_id=self.session_id
        )

    def save(
        self, filename: str, artifact: types.Part, metadata: Mapping[str, Any] | None, saved: Callable[[str, int], None]
    ) -> Coroutine[Any, Any, int]:
        """Return an awaitable that saves a new version, and tells `saved` its name and number."""
        # Counted now, not when it runs: what is gathered may run in any order.
        number = self._saves[filename]
        self._saves[filename] += 1

        async def save() -> int:
            version = await self.found().save_artifact(
                app_name=self.app_name,
                user_id=self.user_id,
                session_id=self.session_id,
                filename=filename,
                artifact=artifact,
                custom_metadata=metadata,
                key=f"{self.key}#{number}" if self.key is not None else None,
            )
            saved(filename, version)
            return version

        coroutine = save()
        self._begun.append((filename, coroutine))
        return coroutine

    def check_awaited(self) -> None:
        """Check that nothing was asked to be saved and then not awaited, as a plain function might.

        Raises:
            ArtifactError: Something was; it is not saved.
        """
        forgotten = [
            (filename, coroutine)
            for filename, coroutine in self._begun
            if inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED
        ]
        for _, coroutine in forgotten:
            coroutine.close()
        if forgotten:
            raise ArtifactError(
                f"artifact {forgotten[0][0]!r} was not saved: nobody awaited save_artifact(…); await it, or in a plain"
                " function call tool_context.wait_for(tool_context.save_artifact(…))"
            )


LOADED_NOTE = "artifact contents temporarily inserted and removed. to access these artifacts, call this tool again."
"""What the model is told beside the names, in ADK's words."""


def load_artifacts(artifact_names: list[str]) -> dict[str, Any]:
    """Loads artifacts into the session for this request.

    NOTE: Call when you need access to artifacts (for example, uploads saved by the web UI).

    Args:
        artifact_names: Names of the artifacts.
    """
    return {"artifact_names": artifact_names, "status": LOADED_NOTE}
