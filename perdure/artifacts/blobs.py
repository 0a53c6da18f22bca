"""Artifacts over any store of blobs that can create a blob only if there is none of its name: a folder, S3.

```
apps/APP/users/USER/sessions/SESSION/NAME/versions/N.json   a version: its number is taken by creating this
                                          data/DIGEST       contents, which versions may share
                                          saves/TOKEN       from which number on a repeated save looks for its version
apps/APP/users/USER/user/NAME/…                             the same for names that start with `user:`
```
"""

from __future__ import annotations

import abc
import asyncio
import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from google.genai import types
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import PydanticSerializationError, to_json

from perdure.artifacts.names import decode_name, encode_name
from perdure.artifacts.service import USER_PREFIX, ArtifactService, ArtifactVersion, canonical_uri, check_filename
from perdure.errors import ArtifactError

_BINARY = "application/octet-stream"
_TEXT = "text/plain"
_NUMBER = re.compile(r"\d{1,15}", re.ASCII)


class _Header(BaseModel):
    """The content of `versions/N.json`."""

    model_config = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")

    filename: str
    part: types.Part
    """The part without its content."""
    data: str | None = None
    """Digest of the content; `None` for a part that only refers to one."""
    mime_type: str | None = None
    custom_metadata: dict[str, Any] = Field(default_factory=dict[str, Any])
    create_time: float
    token: str | None = None
    """Tells a save that was made with a key."""


@dataclass(frozen=True)
class _Place:
    """The place of an artifact."""

    app_name: str
    user_id: str
    session_id: str | None
    filename: str

    @property
    def folder(self) -> str:
        if self.session_id is None:
            return f"{_user_folder(self.app_name, self.user_id)}/{encode_name(self.filename.removeprefix(USER_PREFIX))}"
        return f"{_session_folder(self.app_name, self.user_id, self.session_id)}/{encode_name(self.filename)}"

    def version(self, number: int, header: _Header) -> ArtifactVersion:
        return ArtifactVersion(
            version=number,
            canonical_uri=canonical_uri(self.app_name, self.user_id, self.session_id, self.filename, number),
            custom_metadata=header.custom_metadata,
            create_time=header.create_time,
            mime_type=header.mime_type,
        )


class BlobArtifactService(ArtifactService):
    """An `ArtifactService` over four methods that create, read, list and delete blobs.

    The four may block: they are called in threads, several at a time. Blob names are parts joined by slashes, each of
    lower-case letters, digits and `-_.%~`, none of them `.` or `..`.
    """

    @abc.abstractmethod
    def create_blob(self, name: str, data: bytes) -> bool:
        """Create a blob, whole or not at all, unless there is one of this name; returns whether it did.

        Of several that create the same at a time, also in other processes, exactly one is told that it did.
        """

    @abc.abstractmethod
    def read_blob(self, name: str) -> bytes | None:
        """Return a blob's content; `None` if there is none."""

    @abc.abstractmethod
    def list_blobs(self, prefix: str) -> Iterable[str]:
        """Return the names of all blobs below a prefix, which ends with a slash, in any order."""

    @abc.abstractmethod
    def delete_blob(self, name: str) -> None:
        """Delete a blob; one that does not exist is no error."""

    async def save_artifact(  # noqa: D102 -- as in the base class
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
        place = _place(app_name, user_id, session_id, filename)
        part = _as_part(filename, artifact)
        return await asyncio.to_thread(self._save, place, part, dict(custom_metadata or {}), key)

    def _save(self, place: _Place, part: types.Part, metadata: dict[str, Any], key: str | None) -> int:
        rest, content, mime_type = _split(place.filename, part)
        digest = sha256(content).hexdigest() if content is not None else None
        if content is not None:
            self.create_blob(f"{place.folder}/data/{digest}", content)
        header = _Header(
            filename=place.filename,
            part=rest,
            data=digest,
            mime_type=mime_type,
            custom_metadata=metadata,
            create_time=time.time(),
        )
        number = max(self._numbers(place), default=-1) + 1
        if key is not None:
            token = _token(header, key)
            header = header.model_copy(update={"token": token})
            number = self._first_number(f"{place.folder}/saves/{token}", number)
        data = _header_json(header)
        # Two attempts of one save begin at the same number, so the slower one meets the quicker one's version.
        while not self.create_blob(_version_blob(place, number), data):
            if header.token is not None:
                taken = self._header(place, number)
                if taken is not None and taken.token == header.token:
                    break
            number += 1
        return number

    def _first_number(self, mark: str, number: int) -> int:
        """Return the number at which a save looks for its version: the one that its first attempt noted."""
        if self.create_blob(mark, str(number).encode()):
            return number
        noted = self.read_blob(mark)
        return int(noted) if noted is not None else number

    async def load_artifact(  # noqa: D102
        self, *, app_name: str, user_id: str, filename: str, session_id: str | None = None, version: int | None = None
    ) -> types.Part | None:
        place = _place(app_name, user_id, session_id, filename)

        def load() -> types.Part | None:
            found = self._find(place, version)
            if found is None:
                return None
            header = found[1]
            if header.data is None:
                return header.part
            content = self.read_blob(f"{place.folder}/data/{header.data}")
            return None if content is None else _join(header.part, content)

        return await asyncio.to_thread(load)

    async def list_artifact_keys(  # noqa: D102
        self, *, app_name: str, user_id: str, session_id: str | None = None
    ) -> list[str]:
        def keys() -> list[str]:
            own = _user_folder(app_name, user_id)
            found = {f"{USER_PREFIX}{name}" for name in self._names(own)}
            if session_id is not None:
                found.update(self._names(_session_folder(app_name, user_id, session_id)))
            return sorted(found)

        return await asyncio.to_thread(keys)

    async def delete_artifact(  # noqa: D102
        self, *, app_name: str, user_id: str, filename: str, session_id: str | None = None
    ) -> None:
        place = _place(app_name, user_id, session_id, filename)

        def delete() -> None:
            # Versions first, the newest before the others: whoever reads meanwhile sees an older one, or none.
            numbers = sorted(self._numbers(place), reverse=True)
            for name in [_version_blob(place, number) for number in numbers]:
                self.delete_blob(name)
            for name in list(self.list_blobs(f"{place.folder}/")):
                self.delete_blob(name)

        await asyncio.to_thread(delete)

    async def list_versions(  # noqa: D102
        self, *, app_name: str, user_id: str, filename: str, session_id: str | None = None
    ) -> list[int]:
        place = _place(app_name, user_id, session_id, filename)
        return sorted(await asyncio.to_thread(self._numbers, place))

    async def list_artifact_versions(  # noqa: D102
        self, *, app_name: str, user_id: str, filename: str, session_id: str | None = None
    ) -> list[ArtifactVersion]:
        place = _place(app_name, user_id, session_id, filename)

        def versions() -> list[ArtifactVersion]:
            headers = ((number, self._header(place, number)) for number in sorted(self._numbers(place)))
            return [place.version(number, header) for number, header in headers if header is not None]

        return await asyncio.to_thread(versions)

    async def get_artifact_version(  # noqa: D102
        self, *, app_name: str, user_id: str, filename: str, session_id: str | None = None, version: int | None = None
    ) -> ArtifactVersion | None:
        place = _place(app_name, user_id, session_id, filename)
        found = await asyncio.to_thread(self._find, place, version)
        return None if found is None else place.version(*found)

    def _find(self, place: _Place, number: int | None) -> tuple[int, _Header] | None:
        if number is None:
            number = max(self._numbers(place), default=-1)
        header = self._header(place, number) if _NUMBER.fullmatch(str(number)) else None
        return None if header is None else (number, header)

    def _header(self, place: _Place, number: int) -> _Header | None:
        data = self.read_blob(_version_blob(place, number))
        return None if data is None else _Header.model_validate_json(data)

    def _numbers(self, place: _Place) -> list[int]:
        names = (name.rpartition("/")[2].removesuffix(".json") for name in self.list_blobs(f"{place.folder}/versions/"))
        # Others may leave files of their own in a folder.
        return [int(name) for name in names if _NUMBER.fullmatch(name)]

    def _names(self, folder: str) -> Iterable[str]:
        """Yield the names of the artifacts in a folder, without their prefix."""
        seen: set[str] = set()
        for blob in self.list_blobs(f"{folder}/"):
            part, *rest = blob.removeprefix(f"{folder}/").split("/")
            # Others may leave files of their own in a folder.
            if len(rest) < 2 or rest[0] != "versions" or part in seen:
                continue
            seen.add(part)
            name = decode_name(part)
            if name is None:
                header = self.read_blob(blob)
                name = _Header.model_validate_json(header).filename.removeprefix(USER_PREFIX) if header else None
            if name is not None:
                yield name


def _user_folder(app_name: str, user_id: str) -> str:
    return f"{_owner(app_name, user_id)}/user"


def _session_folder(app_name: str, user_id: str, session_id: str) -> str:
    return f"{_owner(app_name, user_id)}/sessions/{_id('session id', session_id)}"


def _owner(app_name: str, user_id: str) -> str:
    return f"apps/{_id('app name', app_name)}/users/{_id('user id', user_id)}"


def _id(what: str, value: str) -> str:
    if not value:
        raise ArtifactError(f"an artifact's {what} may not be empty")
    try:
        return encode_name(value)
    except UnicodeEncodeError as error:
        raise ArtifactError(f"{what} {value!r} is no Unicode: it has a lone surrogate") from error


def _place(app_name: str, user_id: str, session_id: str | None, filename: str) -> _Place:
    check_filename(filename)
    if filename.startswith(USER_PREFIX):
        return _Place(app_name, user_id, None, filename)
    return _Place(app_name, user_id, session_id, filename if session_id is not None else f"{USER_PREFIX}{filename}")


def _version_blob(place: _Place, number: int) -> str:
    return f"{place.folder}/versions/{number}.json"


def _as_part(filename: str, artifact: types.Part | Mapping[str, Any]) -> types.Part:
    if isinstance(artifact, types.Part):
        return artifact
    try:
        return types.Part.model_validate(artifact)
    except ValidationError as error:
        raise ArtifactError(f"artifact {filename!r} is no part: {error.errors()[0]['msg']}") from error


def _split(filename: str, part: types.Part) -> tuple[types.Part, bytes | None, str | None]:
    """Return a part without its content, the content, and its type."""
    blob = part.inline_data
    if blob is not None and blob.data is not None:
        rest = part.model_copy(update={"inline_data": blob.model_copy(update={"data": None})})
        return rest, blob.data, blob.mime_type or _BINARY
    if part.text is not None:
        try:
            return part.model_copy(update={"text": None}), part.text.encode(), _TEXT
        except UnicodeEncodeError as error:
            raise ArtifactError(f"artifact {filename!r} has text that is no Unicode: a lone surrogate") from error
    if part.file_data is not None:
        return part, None, part.file_data.mime_type
    raise ArtifactError(
        f"artifact {filename!r} has no content; give a part with text, inline_data or file_data, such as"
        " types.Part(text=…) or types.Part.from_bytes(data=…, mime_type=…)"
    )


def _join(part: types.Part, content: bytes) -> types.Part:
    if part.inline_data is not None:
        return part.model_copy(update={"inline_data": part.inline_data.model_copy(update={"data": content})})
    return part.model_copy(update={"text": content.decode()})


def _token(header: _Header, key: str) -> str:
    """Return what tells a save: its key and all that it saves, but the time."""
    return sha256(_header_json(header.model_copy(update={"create_time": 0.0, "token": key}))).hexdigest()


def _header_json(header: _Header) -> bytes:
    try:
        data = to_json(header, by_alias=True, exclude_none=True, bytes_mode="base64")
        # What is nested too deep is written, but cannot be read any more.
        _Header.model_validate_json(data)
    except (PydanticSerializationError, ValueError) as error:
        reason = "it is nested too deep" if isinstance(error, ValidationError) else str(error)
        raise ArtifactError(f"the metadata of artifact {header.filename!r} is no JSON: {reason}") from error
    return data
