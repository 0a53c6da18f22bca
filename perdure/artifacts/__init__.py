"""Artifact stores: the interface, one service over any store of blobs, and one in a folder.

Here belongs a store of another kind; what tools see of artifacts stands in `agents`. Each name is loaded at its first
use: who only wants to check a file's name needs no google-genai.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perdure.artifacts.blobs import BlobArtifactService
    from perdure.artifacts.files import FileArtifactService
    from perdure.artifacts.service import ArtifactService, ArtifactVersion

__all__ = ["ArtifactService", "ArtifactVersion", "BlobArtifactService", "FileArtifactService"]

_MODULES = {
    "ArtifactService": "perdure.artifacts.service",
    "ArtifactVersion": "perdure.artifacts.service",
    "BlobArtifactService": "perdure.artifacts.blobs",
    "FileArtifactService": "perdure.artifacts.files",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_MODULES[name]), name)
    return value
