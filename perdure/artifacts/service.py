"""`ArtifactService`, the interface of artifact stores. ADK: `artifacts/base_artifact_service.py`."""

from __future__ import annotations

import abc
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from google.genai import types
from pydantic import BaseModel, ConfigDict, Field, alias_generators

from perdure.errors import ArtifactError

USER_PREFIX = "user:"
"""Artifacts whose names start so are shared by all sessions of a user."""

MAX_NAME_BYTES = 1000
"""What a name may have, in UTF-8."""

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_DRIVE = re.compile(r"[A-Za-z]:")


class ArtifactVersion(BaseModel):
    """One version of an artifact, without its content. ADK: `artifacts/base_artifact_service.py`."""

    model_config = ConfigDict(frozen=True, alias_generator=alias_generators.to_camel, populate_by_name=True)

    version: int
    """From 0, one more with each save."""
    canonical_uri: str
    """A name for the version, `artifact://apps/…`; it does not tell where the content is kept."""
    custom_metadata: dict[str, Any] = Field(default_factory=dict[str, Any])
    """What was given along with the save."""
    create_time: float
    """Seconds since the epoch."""
    mime_type: str | None = None
    """Type of the content; `text/plain` for text."""


class ArtifactService(abc.ABC):
    """Keeps named, versioned contents of an app's sessions and users. The methods and their arguments are ADK's.

    A name that starts with `user:` belongs to the user, any other to the session. Without a session id the name is the
    user's, with or without the prefix. Methods are called on several event loops, of several threads.

    Every method raises `ArtifactError` if a name cannot be one.
    """

    @abc.abstractmethod
    async def save_artifact(
        self,
        *,
        app_name: str,
        user_id: str,
        filename: str,
        artifact: types.Part | Mapping[str, Any],
        session_id: str | None = None,
        custom_metadata: Mapping[str, Any] | None = None,
        key: str | None = None,
    ) -> int:
        """Save a new version and return its number; 0 is the first. No version is ever overwritten.

        Args:
            app_name: The app.
            user_id: The user.
            filename: The artifact's name.
            artifact: A part with `text`, `inline_data` or `file_data`, or its JSON.
            session_id: The session.
            custom_metadata: Kept with the version.
            key: The same artifact, saved again with the same key, finds its version instead of making another.

        Raises:
            ArtifactError: The part is of another kind, or the metadata is no JSON.
        """

    @abc.abstractmethod
    async def load_artifact(
        self, *, app_name: str, user_id: str, filename: str, session_id: str | None = None, version: int | None = None
    ) -> types.Part | None:
        """Return a version's content, by default the latest's; `None` if there is none."""

    @abc.abstractmethod
    async def list_artifact_keys(self, *, app_name: str, user_id: str, session_id: str | None = None) -> list[str]:
        """Return the names of a session's artifacts and of its user's, or of the user's only, sorted."""

    @abc.abstractmethod
    async def delete_artifact(
        self, *, app_name: str, user_id: str, filename: str, session_id: str | None = None
    ) -> None:
        """Delete all versions of an artifact; one that does not exist is no error."""

    @abc.abstractmethod
    async def list_versions(
        self, *, app_name: str, user_id: str, filename: str, session_id: str | None = None
    ) -> list[int]:
        """Return the numbers of an artifact's versions, oldest first."""

    @abc.abstractmethod
    async def list_artifact_versions(
        self, *, app_name: str, user_id: str, filename: str, session_id: str | None = None
    ) -> list[ArtifactVersion]:
        """List all versions, oldest first."""

    @abc.abstractmethod
    async def get_artifact_version(
        self, *, app_name: str, user_id: str, filename: str, session_id: str | None = None, version: int | None = None
    ) -> ArtifactVersion | None:
        """Return a version, by default the latest; `None` if there is none."""


def check_filename(filename: str) -> None:
    """Check that a name can be an artifact's: a relative path as it stands, of any characters but control characters.

    No service needs that; whoever downloads artifacts under their names does.

    Raises:
        ArtifactError: It is empty, absolute, too long, not Unicode, or has an empty part, `.` or `..` in it.
    """
    path = filename.removeprefix(USER_PREFIX)
    try:
        size = len(filename.encode())
    except UnicodeEncodeError as error:
        raise ArtifactError(f"artifact name {filename!r} is no Unicode: it has a lone surrogate") from error
    if size > MAX_NAME_BYTES:
        raise ArtifactError(f"artifact name {filename[:50]!r}… has {size} bytes; it may have {MAX_NAME_BYTES}")
    if _CONTROL.search(path):
        raise ArtifactError(f"artifact name {filename!r} has a control character")
    if _DRIVE.match(path) or any(part.strip() in ("", ".", "..") for part in re.split(r"[/\\]", path)):
        raise ArtifactError(
            f"artifact name {filename!r} is no relative path; give it a name such as 'report.txt', 'images/map.png' or"
            " 'user:settings.json', without empty parts, '.' and '..'"
        )


def canonical_uri(app_name: str, user_id: str, session_id: str | None, filename: str, version: int) -> str:
    """Return the URI of a version, of ADK's form; it says what is meant, and not where it is."""
    parts = ["apps", app_name, "users", user_id]
    if session_id is not None and not filename.startswith(USER_PREFIX):
        parts += ["sessions", session_id]
    parts += ["artifacts", filename, "versions", str(version)]
    return "artifact://" + "/".join(quote(part, safe="") for part in parts)
