"""Routes of a session's artifacts. Names may hold slashes, so the routes of versions come before that of the name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Depends, HTTPException, Query, Response
from google.genai import types
from pydantic import BaseModel

from perdure.api.adk.schemas import SaveArtifactRequest
from perdure.api.base.backend import Backend, BackendOf, KeyOf, Segment
from perdure.api.base.bodies import CheckedRoute
from perdure.api.v1.addressing import IdempotencyKey
from perdure.artifacts.sealing import SealedArtifacts
from perdure.artifacts.service import ArtifactService, ArtifactVersion

_BASE = "/apps/{app_name}/users/{user_id}/sessions/{session_id}/artifacts"
_NAME = _BASE + "/{artifact_name:path}"

NOT_FOUND = "Artifact not found"
VERSION_NOT_FOUND = "Artifact version not found"

router = APIRouter(route_class=CheckedRoute, tags=["artifacts"])


@dataclass(frozen=True)
class _Artifacts:
    """The artifacts of a session."""

    service: ArtifactService
    who: dict[str, Any]


def _artifacts(key: KeyOf, backend: BackendOf) -> _Artifacts:
    """Return the artifacts of a session, which need not exist, after the checks that all routes make."""
    backend.runner_of(key)
    return _Artifacts(service_of(backend), {"app_name": key.app, **key.arguments})


def service_of(backend: Backend) -> SealedArtifacts:
    """Return where artifacts are kept.

    Raises:
        HTTPException: The server was not told.
    """
    service = backend.config.artifacts
    if service is None:
        raise HTTPException(
            400, "this server was not told where artifacts are kept; start it with --artifacts, or PERDURE_ARTIFACTS"
        )
    # Large results are encrypted where histories are, with the keys that this process reads those with.
    return SealedArtifacts(service, backend.client.data_converter.payload_codec)


ArtifactsOf = Annotated[_Artifacts, Depends(_artifacts)]


@router.get(_BASE)
async def list_artifacts(artifacts: ArtifactsOf) -> list[str]:
    """Return the names of a session's artifacts, and of its user's, which start with `user:`."""
    return await artifacts.service.list_artifact_keys(**artifacts.who)


@router.post(_BASE, response_model=ArtifactVersion)
async def save_artifact(
    artifacts: ArtifactsOf, body: SaveArtifactRequest, idempotency_key: IdempotencyKey = None
) -> Response:
    """Save a new version. A repetition with the same key and content finds its version. No event tells of it."""
    version = await artifacts.service.save_artifact(
        **artifacts.who,
        filename=body.filename,
        artifact=body.artifact,
        custom_metadata=body.custom_metadata,
        key=f"http:{idempotency_key}" if idempotency_key is not None else None,
    )
    return await _described(artifacts, body.filename, version)


@router.get(_NAME + "/versions/metadata", response_model=list[ArtifactVersion])
async def list_artifact_version_metadata(artifacts: ArtifactsOf, artifact_name: Segment) -> Response:
    """Return type, time and metadata of each version, oldest first."""
    found = await artifacts.service.list_artifact_versions(**artifacts.who, filename=artifact_name)
    return Response(f"[{','.join(map(_json, found))}]", media_type="application/json")


@router.get(_NAME + "/versions/{version_id}/metadata", response_model=ArtifactVersion)
async def get_artifact_version_metadata(
    artifacts: ArtifactsOf, artifact_name: Segment, version_id: Segment
) -> Response:
    """Return type, time and metadata of a version, or of the `latest`."""
    return await _described(artifacts, artifact_name, _number(version_id))


@router.get(_NAME + "/versions/{version_id}", response_model=types.Part)
async def get_artifact_version(artifacts: ArtifactsOf, artifact_name: Segment, version_id: Segment) -> Response:
    """Return a version, or the `latest`."""
    return await _content(artifacts, artifact_name, _number(version_id))


@router.get(_NAME + "/versions")
async def list_artifact_versions(artifacts: ArtifactsOf, artifact_name: Segment) -> list[int]:
    """Return the numbers of an artifact's versions, oldest first."""
    return await artifacts.service.list_versions(**artifacts.who, filename=artifact_name)


@router.get(_NAME, response_model=types.Part)
async def get_artifact(
    artifacts: ArtifactsOf, artifact_name: Segment, version: Annotated[int | None, Query()] = None
) -> Response:
    """Return an artifact: the version that is asked for, else the latest."""
    return await _content(artifacts, artifact_name, version)


@router.delete(_NAME)
async def delete_artifact(artifacts: ArtifactsOf, artifact_name: Segment) -> None:
    """Delete all versions of an artifact; one that does not exist is no error."""
    await artifacts.service.delete_artifact(**artifacts.who, filename=artifact_name)


def _number(version_id: str) -> int | None:
    if version_id == "latest":
        return None
    try:
        return int(version_id)
    except ValueError as error:
        raise HTTPException(422, "Invalid version ID") from error


async def _content(artifacts: _Artifacts, filename: str, version: int | None) -> Response:
    part = await artifacts.service.load_artifact(**artifacts.who, filename=filename, version=version)
    if part is None:
        raise HTTPException(404, NOT_FOUND)
    return Response(_json(part), media_type="application/json")


async def _described(artifacts: _Artifacts, filename: str, version: int | None) -> Response:
    found = await artifacts.service.get_artifact_version(**artifacts.who, filename=filename, version=version)
    if found is None:
        raise HTTPException(404, VERSION_NOT_FOUND)
    return Response(_json(found), media_type="application/json")


def _json(value: BaseModel) -> str:
    return value.model_dump_json(by_alias=True, exclude_none=True)
