"""The service of one's own that the documentation shows, on a bucket that behaves as S3 does."""

from __future__ import annotations

import asyncio
import io
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from google.genai import types

from perdure.artifacts import ArtifactService

PAGE = Path(__file__).parent.parent.parent / "docs" / "artifacts.md"
[BLOCK] = [
    block
    for block in re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    if "S3" in block
]
WHO: dict[str, Any] = {"app_name": "travel", "user_id": "ann", "session_id": "trip/1"}


class ClientError(Exception):
    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.response = {"Error": {"Code": code}}


class NoSuchKey(Exception):
    pass


class Bucket:
    """What the example calls of a boto3 client."""

    exceptions = SimpleNamespace(NoSuchKey=NoSuchKey)

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.conflicts = 1

    def put_object(self, *, Bucket: str, Key: str, Body: bytes, IfNoneMatch: str) -> None:
        assert (Bucket, IfNoneMatch) == ("files", "*")
        if self.conflicts:
            self.conflicts -= 1
            raise ClientError("ConditionalRequestConflict")
        if Key in self.objects:
            raise ClientError("PreconditionFailed")
        if len(Body) > 100_000:
            raise ClientError("EntityTooLarge")
        self.objects[Key] = Body

    def get_object(self, *, Bucket: str, Key: str) -> dict[str, Any]:
        if Key not in self.objects:
            raise NoSuchKey
        return {"Body": io.BytesIO(self.objects[Key])}

    def get_paginator(self, operation: str) -> Any:
        assert operation == "list_objects_v2"
        return SimpleNamespace(paginate=self._pages)

    def _pages(self, *, Bucket: str, Prefix: str) -> Iterator[dict[str, Any]]:
        for key in sorted(self.objects):
            yield {"Contents": [{"Key": key}]} if key.startswith(Prefix) else {}

    def delete_object(self, *, Bucket: str, Key: str) -> None:
        self.objects.pop(Key, None)


@pytest.fixture
def bucket() -> Bucket:
    return Bucket()


@pytest.fixture
def service(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> ArtifactService:
    exceptions = ModuleType("botocore.exceptions")
    exceptions.__dict__["ClientError"] = ClientError
    monkeypatch.setitem(sys.modules, "botocore", ModuleType("botocore"))
    monkeypatch.setitem(sys.modules, "botocore.exceptions", exceptions)
    found: dict[str, Any] = {}
    exec(BLOCK, found)
    own: ArtifactService = found["S3ArtifactService"](bucket, "files")
    return own


async def test_the_service_in_the_documentation_works(service: ArtifactService, bucket: Bucket) -> None:
    parts = [types.Part(text=words) for words in "abcde"]
    versions = await asyncio.gather(*(service.save_artifact(**WHO, filename="user:f", artifact=part) for part in parts))
    assert sorted(versions) == [0, 1, 2, 3, 4]
    for part, version in zip(parts, versions, strict=True):
        assert await service.load_artifact(**WHO, filename="user:f", version=version) == part
    assert await service.save_artifact(**WHO, filename="f", artifact=parts[0], key="k") == 0
    assert await service.save_artifact(**WHO, filename="f", artifact=parts[0], key="k") == 0
    assert await service.list_artifact_keys(**WHO) == ["f", "user:f"]
    assert await service.load_artifact(**WHO, filename="none") is None
    assert all(re.fullmatch(r"[a-z0-9_.%~/-]+", key) for key in bucket.objects)
    for name in ("f", "user:f"):
        await service.delete_artifact(**WHO, filename=name)
    assert bucket.objects == {}


async def test_what_the_store_refuses_is_raised(service: ArtifactService) -> None:
    with pytest.raises(ClientError, match="EntityTooLarge"):
        await service.save_artifact(**WHO, filename="f", artifact=types.Part(text="x" * 100_001))
    assert await service.list_artifact_keys(**WHO) == []
