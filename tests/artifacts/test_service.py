"""What holds of artifacts wherever they are kept: versions, users and sessions, repeated saves, names."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from google.genai import types
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perdure.artifacts import ArtifactService, FileArtifactService
from perdure.artifacts.names import decode_name, encode_name
from perdure.errors import ArtifactError
from tests.artifacts.stores import MemoryArtifactService

ANN: dict[str, Any] = {"app_name": "travel", "user_id": "ann", "session_id": "trip/1"}
PICTURE = types.Part.from_bytes(data=bytes(range(256)), mime_type="image/png")


def words(text: str) -> types.Part:
    return types.Part(text=text)


def nested(depth: int) -> dict[str, Any]:
    value: Any = 1
    for _ in range(depth):
        value = {"a": value}
    return value


@pytest.fixture(params=["files", "memory"])
def service(request: pytest.FixtureRequest, tmp_path: Path) -> ArtifactService:
    kinds: dict[str, Callable[[], ArtifactService]] = {
        "files": lambda: FileArtifactService(tmp_path / "kept"),
        "memory": MemoryArtifactService,
    }
    return kinds[request.param]()


async def test_each_save_is_a_version_from_0_on(service: ArtifactService) -> None:
    assert [await service.save_artifact(**ANN, filename="a.txt", artifact=words(w)) for w in "xyx"] == [0, 1, 2]
    assert await service.list_versions(**ANN, filename="a.txt") == [0, 1, 2]
    assert await service.load_artifact(**ANN, filename="a.txt") == words("x")
    assert await service.load_artifact(**ANN, filename="a.txt", version=1) == words("y")
    for missing in (3, -1, 10**30, 10**4000):
        assert await service.load_artifact(**ANN, filename="a.txt", version=missing) is None
        assert await service.get_artifact_version(**ANN, filename="a.txt", version=missing) is None


@pytest.mark.parametrize(
    ("part", "kind"),
    [
        (words("Grüße 🛫\r\n\x00"), "text/plain"),
        (words(""), "text/plain"),
        (PICTURE, "image/png"),
        (types.Part(inline_data=types.Blob(data=b"", display_name="none")), "application/octet-stream"),
        (types.Part(file_data=types.FileData(file_uri="gs://b/o", mime_type="video/mp4")), "video/mp4"),
        (types.Part(text="t", thought_signature=b"\xff\x00", part_metadata={"k": [None]}), "text/plain"),
    ],
)
async def test_a_part_comes_back_as_it_was(service: ArtifactService, part: types.Part, kind: str) -> None:
    metadata = {"by": "Ann", "none": None, "deep": {"list": [1.5, True]}}
    version = await service.save_artifact(**ANN, filename="p", artifact=part, custom_metadata=metadata)
    assert await service.load_artifact(**ANN, filename="p", version=version) == part
    found = await service.get_artifact_version(**ANN, filename="p")
    assert found is not None
    assert (found.version, found.mime_type, found.custom_metadata) == (0, kind, metadata)
    assert found.create_time > 1.7e9
    assert await service.list_artifact_versions(**ANN, filename="p") == [found]


async def test_a_part_may_come_as_json(service: ArtifactService) -> None:
    await service.save_artifact(**ANN, filename="p", artifact={"inlineData": {"data": "AAE=", "mimeType": "x/y"}})
    assert await service.load_artifact(**ANN, filename="p") == types.Part.from_bytes(data=b"\0\1", mime_type="x/y")


async def test_a_users_artifacts_are_shared_by_his_sessions_and_nobody_else(service: ArtifactService) -> None:
    other_session: dict[str, Any] = {**ANN, "session_id": "trip/2"}
    other_user: dict[str, Any] = {**ANN, "user_id": "bob"}
    await service.save_artifact(**ANN, filename="user:home", artifact=words("Oslo"))
    await service.save_artifact(**ANN, filename="plan", artifact=words("fly"))
    assert await service.list_artifact_keys(**ANN) == ["plan", "user:home"]
    assert await service.list_artifact_keys(**other_session) == ["user:home"]
    assert await service.list_artifact_keys(**other_user) == []
    assert await service.load_artifact(**other_session, filename="user:home") == words("Oslo")
    assert await service.load_artifact(**other_session, filename="plan") is None
    assert await service.load_artifact(**other_user, filename="user:home") is None
    nobody: dict[str, Any] = {"app_name": "travel", "user_id": "ann"}
    assert await service.list_artifact_keys(**nobody) == ["user:home"]
    assert await service.save_artifact(**nobody, filename="home", artifact=words("Bergen")) == 1
    uri = "artifact://apps/travel/users/ann/{}/versions/{}"
    home = await service.get_artifact_version(**ANN, filename="user:home")
    plan = await service.get_artifact_version(**ANN, filename="plan")
    assert home is not None
    assert plan is not None
    assert home.canonical_uri == uri.format("artifacts/user%3Ahome", 1)
    assert plan.canonical_uri == uri.format("sessions/trip%2F1/artifacts/plan", 0)


async def test_what_is_deleted_is_gone_and_starts_anew(service: ArtifactService) -> None:
    for name in ("a", "a/b"):
        await service.save_artifact(**ANN, filename=name, artifact=words(name), key="k")
    await service.delete_artifact(**ANN, filename="a")
    await service.delete_artifact(**ANN, filename="never")
    assert await service.list_artifact_keys(**ANN) == ["a/b"]
    assert await service.load_artifact(**ANN, filename="a") is None
    assert await service.list_versions(**ANN, filename="a") == []
    assert await service.save_artifact(**ANN, filename="a", artifact=words("a"), key="k") == 0


async def test_a_repeated_save_finds_its_version(service: ArtifactService) -> None:
    async def save(text: str, key: str | None, **metadata: Any) -> int:
        return await service.save_artifact(**ANN, filename="f", artifact=words(text), key=key, custom_metadata=metadata)

    assert await save("one", "k") == 0
    assert await save("two", None) == 1
    assert await save("one", "k") == 0
    assert await save("one", None) == 2
    assert await save("one", "other") == 3
    # What an attempt saw anew is not lost behind what an earlier one saw.
    assert await save("else", "k") == 4
    assert await save("one", "k", by="Ann") == 5
    assert await save("else", "k") == 4
    assert await save("one", "k") == 0


async def test_a_save_that_was_cut_off_before_it_had_its_number_gets_one(tmp_path: Path) -> None:
    class Cut(FileArtifactService):
        cut = True

        def create_blob(self, name: str, data: bytes) -> bool:
            if self.cut and name.endswith(".json"):
                raise OSError("the process dies here")
            return super().create_blob(name, data)

    service = Cut(tmp_path)
    with pytest.raises(OSError, match="dies"):
        await service.save_artifact(**ANN, filename="f", artifact=words("one"), key="k")
    assert await service.list_artifact_keys(**ANN) == []
    service.cut = False
    assert await service.save_artifact(**ANN, filename="f", artifact=words("two")) == 0
    assert await service.save_artifact(**ANN, filename="f", artifact=words("one"), key="k") == 1
    assert await service.save_artifact(**ANN, filename="f", artifact=words("one"), key="k") == 1


async def test_two_attempts_of_a_save_at_a_time_make_one_version(service: ArtifactService) -> None:
    """A worker that was taken for dead may still be saving."""

    async def save(number: int) -> int:
        return await service.save_artifact(**ANN, filename="f", artifact=words(str(number)), key="k")

    versions = await asyncio.gather(*(save(number % 4) for number in range(24)))
    assert sorted(versions[:4]) == [0, 1, 2, 3]
    assert versions == versions[:4] * 6
    assert await service.list_versions(**ANN, filename="f") == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "name",
    [
        *("", " ", "/etc/passwd", "\\x", "a//b", "a/ /b", "../x", "a/../../x", "a/.", "..\\x", ".. /x", "C:x", "c:\\x"),
        *("user:", "user:../x", "user:/x", "a\0b", "a\nb", "x" * 1001, "é" * 501, "half \ud800"),
    ],
)
async def test_a_name_that_is_no_relative_path_is_refused(service: ArtifactService, name: str) -> None:
    with pytest.raises(ArtifactError, match="artifact name"):
        await service.save_artifact(**ANN, filename=name, artifact=words("x"))
    with pytest.raises(ArtifactError, match="artifact name"):
        await service.load_artifact(**ANN, filename=name)


@pytest.mark.parametrize(
    ("part", "metadata", "reason"),
    [
        (types.Part(), {}, "has no content"),
        (types.Part(inline_data=types.Blob(mime_type="image/png")), {}, "has no content"),
        (types.Part(function_call=types.FunctionCall(name="f")), {}, "has no content"),
        ({"inlineData": {"data": "no base 64"}}, {}, "is no part"),
        (types.Part(text="\ud800"), {}, "no Unicode"),
        (words("x"), {"k": object()}, "metadata of artifact 'f' is no JSON"),
        (words("x"), {"k": "\ud800"}, "metadata of artifact 'f' is no JSON"),
        *((words("x"), nested(depth), "metadata of artifact 'f' is no JSON") for depth in (205, 250, 300)),
    ],
)
async def test_what_cannot_be_kept_is_refused(
    service: ArtifactService, part: types.Part, metadata: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ArtifactError, match=reason):
        await service.save_artifact(**ANN, filename="f", artifact=part, custom_metadata=metadata)
    assert await service.list_artifact_keys(**ANN) == []


@pytest.mark.parametrize("who", [{"user_id": ""}, {"session_id": ""}, {"user_id": "\ud800"}, {"session_id": "\ud800"}])
async def test_an_id_that_cannot_be_one_is_refused(service: ArtifactService, who: dict[str, Any]) -> None:
    with pytest.raises(ArtifactError, match="id"):
        await service.save_artifact(**{**ANN, **who}, filename="f", artifact=words("x"))


# Names.

ANY_NAME = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=80) | st.sampled_from(
    [".", "..", "con", "CON.txt", "nul", "com1", "a.", ".a", "~", "%2e", "é", "e\u0301", "E", "Å", "\u212b", "x" * 500]
)
SAFE = re.compile(r"[a-z0-9_%~-][a-z0-9_.%~-]*")


@given(ANY_NAME)
def test_an_encoded_name_is_safe_and_comes_back(name: str) -> None:
    part = encode_name(name)
    assert SAFE.fullmatch(part)
    assert not part.endswith(".")
    assert len(part) <= 150
    assert part.partition(".")[0] not in {"con", "prn", "aux", "nul", "com1", "lpt1"}
    assert decode_name(part) == (None if "~" in part else name)


@given(ANY_NAME, ANY_NAME)
def test_two_names_never_become_one(one: str, two: str) -> None:
    assert (encode_name(one) == encode_name(two)) is (one == two)


def test_long_names_that_begin_alike_stay_apart() -> None:
    parts = {encode_name("ß" * 400 + tail) for tail in ("", "a", "A")}
    assert len(parts) == 3
    assert all(SAFE.fullmatch(part) for part in parts)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(user=ANY_NAME, session=ANY_NAME, names=st.lists(ANY_NAME, max_size=3, unique=True))
async def test_names_round_trip_and_nothing_leaves_the_folder(
    tmp_path_factory: pytest.TempPathFactory, user: str, session: str, names: list[str]
) -> None:
    outside = tmp_path_factory.mktemp("outside")
    service = FileArtifactService(outside / "a" / "kept")
    who: dict[str, Any] = {"app_name": "travel", "user_id": user, "session_id": session}
    kept: list[str] = []
    for name in names:
        try:
            await service.save_artifact(**who, filename=name, artifact=words(name))
            kept.append(name)
        except ArtifactError:
            continue
    assert await service.list_artifact_keys(**who) == sorted(kept)
    for name in kept:
        assert await service.load_artifact(**who, filename=name) == words(name)
    files = [path for path in outside.rglob("*") if path.is_file()]
    assert all(path.resolve().is_relative_to(outside / "a" / "kept" / "apps" / "travel") for path in files)
    for name in kept:
        await service.delete_artifact(**who, filename=name)
    assert [path for path in outside.rglob("*") if path.is_file()] == []
