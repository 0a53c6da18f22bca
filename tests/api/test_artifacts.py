"""The artifact routes: paths, statuses and bodies as ADK's server has them."""

from __future__ import annotations

import base64
import dataclasses
import uuid
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx2
import pytest
from temporalio.client import Client

from perdure.agents import LlmAgent, ToolContext
from perdure.artifacts import FileArtifactService
from perdure.artifacts.sealing import SealedArtifacts
from perdure.encryption.codec import EncryptionCodec
from perdure.encryption.keys import Key, KeyRing
from tests.api.support import Api, Obedient, served
from tests.workflows.support import agent, calls, make_app, serving, text

pytestmark = pytest.mark.server

BYTES = bytes(range(256))
PICTURE = {"inlineData": {"mimeType": "image/png", "data": base64.urlsafe_b64encode(BYTES).decode()}}


class Artifacts:
    """A session of a user that no other test has."""

    def __init__(self, api: Api, folder: Path) -> None:
        self.api = api
        self.folder = folder
        self.user = uuid.uuid4().hex
        self.base = f"{api.path('trip-1', user=self.user)}/artifacts"

    async def get(self, path: str = "", **options: Any) -> httpx2.Response:
        return await self.api.http.get(f"{self.base}{path}", **options)

    async def save(self, filename: str, artifact: Any, **fields: Any) -> dict[str, Any]:
        answer = await self.post({"filename": filename, "artifact": artifact, **fields})
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    async def post(self, body: Any, **headers: str) -> httpx2.Response:
        return await self.api.http.post(self.base, json=body, headers=headers)


@pytest.fixture(scope="module")
async def server(client: Client, tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[tuple[Api, Path]]:
    """An API without a worker: artifacts need none."""
    model, folder = Obedient(), tmp_path_factory.mktemp("artifacts")
    app = make_app(f"app_{uuid.uuid4().hex[:12]}", LlmAgent(name="clerk", model=model))
    async with served(client, app, model, artifacts=FileArtifactService(folder), max_body_bytes=100_000) as api:
        yield api, folder


async def copy(tool_context: ToolContext) -> str:
    """Copy the upload."""
    part = await tool_context.load_artifact("upload.png")
    assert part is not None
    await tool_context.save_artifact("copy.png", part)
    return "copied"


async def test_a_tool_reads_an_upload_and_its_artifact_is_downloaded(
    client: Client, app_name: str, tmp_path: Path
) -> None:
    script = [calls("copy"), text("Copied.")] * 2
    app = make_app(app_name, agent("clerk", script, [copy]), resumable=False)
    kept = FileArtifactService(tmp_path)
    async with serving(client, app, artifacts=kept), served(client, app, Obedient(), artifacts=kept) as api:
        session = await api.create()
        base = f"{api.path(session)}/artifacts"
        await api.http.post(base, json={"filename": "upload.png", "artifact": PICTURE})
        _, response, delta, _ = await api.frames(session, "copy it")
        assert response["id"] == delta["id"]
        assert (response["actions"]["artifactDelta"], "content" in response) == ({}, True)
        assert (delta["actions"]["artifactDelta"], "content" in delta) == ({"copy.png": 0}, False)
        assert (await api.http.get(f"{base}/copy.png")).json() == PICTURE
        frames = await api.frames(session, "copy it", functionCallEventId="e")
        assert [frame["actions"]["artifactDelta"] for frame in frames] == [{}, {"copy.png": 1}, {}]
        # Uploads are in no log, and a session that is deleted leaves its artifacts.
        assert len((await api.session(session))["events"]) == 8
        await api.http.delete(api.path(session))
        assert (await api.http.get(base)).json() == ["copy.png", "upload.png"]


@pytest.fixture
def artifacts(server: tuple[Api, Path]) -> Artifacts:
    return Artifacts(*server)


def with_slashes(name: str) -> str:
    return quote(name)


def encoded(name: str) -> str:
    return quote(name, safe="")


async def test_saving_and_reading(artifacts: Artifacts) -> None:
    saved = await artifacts.save("map.png", PICTURE, customMetadata={"by": "Ann", "none": None})
    uri = f"artifact://apps/{artifacts.api.app}/users/{artifacts.user}/sessions/trip-1/artifacts/map.png/versions/0"
    assert saved.pop("createTime") > 1.7e9
    metadata = {"by": "Ann", "none": None}
    assert saved == {"version": 0, "canonicalUri": uri, "customMetadata": metadata, "mimeType": "image/png"}
    assert (await artifacts.save("map.png", {"text": "gone"}))["version"] == 1
    assert (await artifacts.get()).json() == ["map.png"]
    assert (await artifacts.get("/map.png")).json() == {"text": "gone"}
    for path in ("/map.png?version=0", "/map.png/versions/0"):
        assert (await artifacts.get(path)).json() == PICTURE
    assert (await artifacts.get("/map.png/versions/latest")).json() == {"text": "gone"}
    assert (await artifacts.get("/map.png/versions")).json() == [0, 1]
    first, second = (await artifacts.get("/map.png/versions/metadata")).json()
    assert first == saved | {"createTime": first["createTime"]}
    assert (second["version"], second["mimeType"], second["customMetadata"]) == (1, "text/plain", {})
    assert (await artifacts.get("/map.png/versions/0/metadata")).json() == first
    assert (await artifacts.get("/map.png/versions/latest/metadata")).json() == second


async def test_both_spellings_of_bodies_and_both_alphabets_of_base64(artifacts: Artifacts) -> None:
    data = base64.b64encode(BYTES).decode()
    artifact = {"inline_data": {"mime_type": "image/png", "data": data}}
    answer = await artifacts.post({"filename": "a", "artifact": artifact, "custom_metadata": {"k": 1}})
    assert answer.json()["customMetadata"] == {"k": 1}
    assert (await artifacts.get("/a")).json() == PICTURE


@pytest.mark.parametrize("spelled", [with_slashes, encoded])
async def test_names_may_hold_slashes(artifacts: Artifacts, spelled: Callable[[str], str]) -> None:
    name = "images/Österreich 100%.png"
    await artifacts.save(name, PICTURE)
    path = f"/{spelled(name)}"
    assert (await artifacts.get()).json() == [name]
    assert (await artifacts.get(path)).json() == PICTURE
    assert (await artifacts.get(f"{path}/versions")).json() == [0]
    assert (await artifacts.get(f"{path}/versions/latest/metadata")).json()["version"] == 0
    assert (await artifacts.api.http.delete(f"{artifacts.base}{path}")).json() is None
    assert (await artifacts.get()).json() == []


async def test_a_name_like_a_route_is_reached_encoded(artifacts: Artifacts) -> None:
    await artifacts.save("a/versions/0", {"text": "named so"})
    assert (await artifacts.get("/a/versions/0")).status_code == 404
    assert (await artifacts.get("/a%2Fversions%2F0")).json() == {"text": "named so"}


async def test_a_users_artifacts_are_in_all_of_his_sessions(artifacts: Artifacts) -> None:
    await artifacts.save("user:home", {"text": "Oslo"})
    other = f"{artifacts.api.path('trip-2', user=artifacts.user)}/artifacts"
    assert (await artifacts.api.http.get(other)).json() == ["user:home"]
    assert (await artifacts.api.http.get(f"{other}/user:home")).json() == {"text": "Oslo"}
    assert (await artifacts.api.http.get(f"{artifacts.api.path('trip-1', user='bob')}/artifacts")).json() == []


@pytest.mark.parametrize(
    ("path", "status", "detail"),
    [
        ("/none", 404, "Artifact not found"),
        ("/none?version=0", 404, "Artifact not found"),
        ("/some?version=7", 404, "Artifact not found"),
        ("/some/versions/7", 404, "Artifact not found"),
        ("/some/versions/-1", 404, "Artifact not found"),
        ("/none/versions/latest", 404, "Artifact not found"),
        ("/none/versions/latest/metadata", 404, "Artifact version not found"),
        ("/some/versions/7/metadata", 404, "Artifact version not found"),
        ("/some/versions/first", 422, "Invalid version ID"),
        ("/some/versions/1.0/metadata", 422, "Invalid version ID"),
        (f"/some/versions/{'9' * 5000}", 422, "Invalid version ID"),
        (f"/some/versions/{'9' * 4000}", 404, "Artifact not found"),
        (f"/some?version={'9' * 4000}", 404, "Artifact not found"),
    ],
)
async def test_what_is_not_there(artifacts: Artifacts, path: str, status: int, detail: str) -> None:
    await artifacts.save("some", {"text": "x"})
    answer = await artifacts.get(path)
    assert (answer.status_code, answer.json()["detail"]) == (status, detail)


async def test_what_is_none_is_empty_or_no_error(artifacts: Artifacts) -> None:
    """Also of a session that does not exist, as in ADK."""
    assert (await artifacts.get("/none/versions")).json() == []
    assert (await artifacts.get("/none/versions/metadata")).json() == []
    answer = await artifacts.api.http.delete(f"{artifacts.base}/none")
    assert (answer.status_code, answer.json()) == (200, None)


@pytest.mark.parametrize("name", ["../../secret", "/etc/passwd", "a/../../b", "", "x" * 2000, "..\\x"])
async def test_names_that_try_to_leave_are_refused(artifacts: Artifacts, name: str) -> None:
    answer = await artifacts.post({"filename": name, "artifact": {"text": "x"}})
    assert answer.status_code == 400
    assert "artifact name" in answer.json()["detail"]
    if name:
        assert (await artifacts.get(f"/{encoded(name)}")).status_code == 400
    assert str(artifacts.folder) not in answer.text


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"filename": "a"}, 422),
        ({"artifact": {"text": "x"}}, 422),
        ({"filename": "a", "artifact": {"inlineData": {"data": "no base 64"}}}, 422),
        ({"filename": "a", "artifact": {"text": "x", "unknownField": 1}}, 422),
        ({"filename": "a", "artifact": {"text": "x"}, "customMetadata": [1]}, 422),
        ({"filename": "a", "artifact": {}}, 400),
        ({"filename": "a", "artifact": {"functionCall": {"name": "f"}}}, 400),
        ({"filename": "a", "artifact": {"text": "x" * 100_000}}, 413),
    ],
)
async def test_what_cannot_be_saved(artifacts: Artifacts, body: dict[str, Any], status: int) -> None:
    answer = await artifacts.post(body)
    assert answer.status_code == status, answer.text
    assert (await artifacts.get()).json() == []


async def test_a_version_that_is_no_number_is_a_malformed_query(artifacts: Artifacts) -> None:
    answer = await artifacts.get("/some?version=first")
    assert (answer.status_code, answer.json()["detail"][0]["loc"]) == (422, ["query", "version"])


async def test_a_save_that_is_repeated_with_its_key_counts_once(artifacts: Artifacts) -> None:
    async def save(key: str, text: str = "x") -> int:
        answer = await artifacts.post({"filename": "a", "artifact": {"text": text}}, **{"Idempotency-Key": key})
        version: int = answer.json()["version"]
        return version

    assert [await save("k"), await save("k"), await save("other"), await save("k", "y")] == [0, 0, 1, 2]


@pytest.mark.parametrize("path", ["", "/a", "/a/versions", "/a/versions/0/metadata"])
async def test_without_a_place_the_reason_is_told(api: Api, path: str) -> None:
    base = f"{api.path('trip-1')}/artifacts"
    answer = await api.http.get(f"{base}{path}")
    assert answer.status_code == 400
    assert "--artifacts" in answer.json()["detail"]
    assert (await api.http.post(base, json={"filename": "a", "artifact": {"text": "x"}})).status_code == 400


async def test_a_name_that_no_user_can_have_is_refused_before_anything_is_read(artifacts: Artifacts) -> None:
    answer = await artifacts.api.http.get(f"{artifacts.api.path('trip-1', user='u' * 400)}/artifacts")
    assert answer.status_code == 400
    assert "user id" in answer.json()["detail"]


async def test_the_openapi_document_has_the_routes(artifacts: Artifacts) -> None:
    paths = (await artifacts.api.http.get("/openapi.json")).json()["paths"]
    base = "/apps/{app_name}/users/{user_id}/sessions/{session_id}/artifacts"
    assert set(paths[base]) == {"get", "post"}
    assert set(paths[f"{base}/{{artifact_name}}"]) == {"get", "delete"}


async def test_a_large_result_is_opened_with_the_keys_that_histories_are_read_with(
    client: Client, tmp_path: Path
) -> None:
    """Without them it is refused, and not given as it stands."""
    codec, service, model = EncryptionCodec(KeyRing((Key.new("k"),))), FileArtifactService(tmp_path), Obedient()
    app = make_app(f"app_{uuid.uuid4().hex[:12]}", LlmAgent(name="clerk", model=model))
    where = {"app_name": app.name, "user_id": "ann", "session_id": "trip-1"}
    await SealedArtifacts(service, codec).save_sealed(
        content="the secret", mime_type="text/plain", filename="result.txt", **where
    )
    config = client.config()
    config["data_converter"] = dataclasses.replace(client.data_converter, payload_codec=codec)
    for reader, status in ((Client(**config), 200), (client, 400)):
        async with served(reader, app, model, artifacts=service) as api:
            answer = await api.http.get(f"{api.path('trip-1', user='ann')}/artifacts/result.txt")
            assert answer.status_code == status, answer.text
            if status == 200:
                assert base64.urlsafe_b64decode(answer.json()["inlineData"]["data"]) == b"the secret"
