"""Encrypts artifacts as histories are: large results of tools, which stood in a history otherwise."""

from __future__ import annotations

import json
from typing import Any

from google.genai import types
from pydantic_core import to_json
from temporalio.api.common.v1 import Payload
from temporalio.converter import PayloadCodec

from perdure.artifacts.service import ArtifactService, ArtifactVersion
from perdure.errors import ArtifactError
from perdure.redaction import RedactingCodec

SEALED = "application/vnd.perdure.sealed"
"""Type of an artifact's content that a payload codec has encoded."""

_ENCODING, _PLAIN, _TYPE = "encoding", b"binary/plain", "mime-type"


class SealedArtifacts(ArtifactService):
    """An artifact service that seals by the payload codec of a connection, and opens what it loads."""

    def __init__(self, service: ArtifactService, codec: PayloadCodec | None) -> None:
        """Wrap a service; without a codec nothing is sealed."""
        self._service = service
        self._codec = codec

    async def save_sealed(self, *, content: str, mime_type: str, **where: Any) -> int:
        """Save a text as a history would hold it: redacted, and encrypted, if the connection does so.

        Arguments and result are those of `save_artifact`.
        """
        codec = self._codec
        if isinstance(codec, RedactingCodec):
            content, codec = _redacted(codec, content, mime_type), codec.behind
        data = content.encode()
        if codec is not None:
            payload = Payload(metadata={_ENCODING: _PLAIN, _TYPE: mime_type.encode()}, data=data)
            [encoded] = await codec.encode([payload])
            data, mime_type = encoded.SerializeToString(), SEALED
        part = types.Part.from_bytes(data=data, mime_type=mime_type)
        return await self._service.save_artifact(artifact=part, **where)

    async def load_artifact(self, **which: Any) -> types.Part | None:
        """Return a version's content, opened.

        Raises:
            ArtifactError: It is sealed, and the codec here does not open it.
        """
        part = await self._service.load_artifact(**which)
        blob = part.inline_data if part is not None else None
        if blob is None or blob.mime_type != SEALED:
            return part
        payload = Payload.FromString(blob.data or b"")
        if self._codec is not None:
            [payload] = await self._codec.decode([payload])
        if payload.metadata.get(_ENCODING) != _PLAIN:
            raise ArtifactError(
                f"artifact {which.get('filename')!r} is encrypted as histories are, and the keys here do not open it;"
                " give those of the workers, by --encryption-keys, PERDURE_ENCRYPTION_KEYS, or the connection's"
                " payload_codec"
            )
        return types.Part.from_bytes(data=payload.data, mime_type=payload.metadata[_TYPE].decode())

    async def save_artifact(self, **given: Any) -> int:  # noqa: D102 -- as in the base class
        return await self._service.save_artifact(**given)

    async def list_artifact_keys(self, **which: Any) -> list[str]:  # noqa: D102
        return await self._service.list_artifact_keys(**which)

    async def delete_artifact(self, **which: Any) -> None:  # noqa: D102
        await self._service.delete_artifact(**which)

    async def list_versions(self, **which: Any) -> list[int]:  # noqa: D102
        return await self._service.list_versions(**which)

    async def list_artifact_versions(self, **which: Any) -> list[ArtifactVersion]:  # noqa: D102
        return await self._service.list_artifact_versions(**which)

    async def get_artifact_version(self, **which: Any) -> ArtifactVersion | None:  # noqa: D102
        return await self._service.get_artifact_version(**which)


def _redacted(codec: RedactingCodec, content: str, mime_type: str) -> str:
    if mime_type != "application/json":
        return codec.redacted(content)
    return to_json(codec.redacted(json.loads(content))).decode()
