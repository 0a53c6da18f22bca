"""Gives google.adk's code Perdure's artifact store, under ADK's interface."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from google.adk.artifacts.base_artifact_service import ArtifactVersion, BaseArtifactService
from google.genai import types

from perdure.artifacts.service import ArtifactService


class StepArtifacts(BaseArtifactService):
    """The artifacts that one step sees. Saved again by another attempt of the step, a version is the same."""

    def __init__(self, store: ArtifactService, key: str) -> None:
        """Wrap a store; `key` is the step's, equal in all of its attempts."""
        self._store = store
        self._key = key
        self.place: Callable[[], str] = str
        """Where in its code the step saves; another attempt may begin its code elsewhere than at its top."""
        self._saved = Counter[str]()

    async def save_artifact(
        self,
        *,
        app_name: str,
        user_id: str,
        filename: str,
        artifact: types.Part | dict[str, Any],
        session_id: str | None = None,
        custom_metadata: dict[str, Any] | None = None,
    ) -> int:
        """Save a new version and return its number."""
        key = f"{self._key}:{self.place()}"
        self._saved[key] += 1
        return await self._store.save_artifact(
            app_name=app_name,
            user_id=user_id,
            filename=filename,
            artifact=artifact,
            session_id=session_id,
            custom_metadata=custom_metadata,
            key=f"{key}:{self._saved[key]}",
        )

    async def load_artifact(
        self, *, app_name: str, user_id: str, filename: str, session_id: str | None = None, version: int | None = None
    ) -> types.Part | None:
        """Return a version's content."""
        return await self._store.load_artifact(
            app_name=app_name, user_id=user_id, filename=filename, session_id=session_id, version=version
        )

    async def list_artifact_keys(self, *, app_name: str, user_id: str, session_id: str | None = None) -> list[str]:
        """Return the names of the artifacts."""
        return await self._store.list_artifact_keys(app_name=app_name, user_id=user_id, session_id=session_id)

    async def delete_artifact(
        self, *, app_name: str, user_id: str, filename: str, session_id: str | None = None
    ) -> None:
        """Delete all versions of an artifact."""
        await self._store.delete_artifact(app_name=app_name, user_id=user_id, filename=filename, session_id=session_id)

    async def list_versions(
        self, *, app_name: str, user_id: str, filename: str, session_id: str | None = None
    ) -> list[int]:
        """Return the numbers of an artifact's versions."""
        return await self._store.list_versions(
            app_name=app_name, user_id=user_id, filename=filename, session_id=session_id
        )

    async def list_artifact_versions(
        self, *, app_name: str, user_id: str, filename: str, session_id: str | None = None
    ) -> list[ArtifactVersion]:
        """List all versions."""
        found = await self._store.list_artifact_versions(
            app_name=app_name, user_id=user_id, filename=filename, session_id=session_id
        )
        return [ArtifactVersion.model_validate(version.model_dump()) for version in found]

    async def get_artifact_version(
        self, *, app_name: str, user_id: str, filename: str, session_id: str | None = None, version: int | None = None
    ) -> ArtifactVersion | None:
        """Return a version, by default the latest."""
        found = await self._store.get_artifact_version(
            app_name=app_name, user_id=user_id, filename=filename, session_id=session_id, version=version
        )
        return ArtifactVersion.model_validate(found.model_dump()) if found is not None else None
