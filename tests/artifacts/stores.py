"""Stores of artifacts for tests: one in memory, which shows what a service of one's own has to bring."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from perdure.artifacts import BlobArtifactService


class MemoryArtifactService(BlobArtifactService):
    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}
        self._lock = threading.Lock()

    def create_blob(self, name: str, data: bytes) -> bool:
        with self._lock:
            return name not in self.blobs and self.blobs.setdefault(name, data) is data

    def read_blob(self, name: str) -> bytes | None:
        return self.blobs.get(name)

    def list_blobs(self, prefix: str) -> Iterable[str]:
        with self._lock:
            return [name for name in self.blobs if name.startswith(prefix)]

    def delete_blob(self, name: str) -> None:
        with self._lock:
            self.blobs.pop(name, None)
