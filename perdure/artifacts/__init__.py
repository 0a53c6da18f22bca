"""Where artifacts are kept: the interface, one service over any store of blobs, and one in a folder."""

from perdure.artifacts.blobs import BlobArtifactService
from perdure.artifacts.files import FileArtifactService
from perdure.artifacts.service import ArtifactService, ArtifactVersion

__all__ = ["ArtifactService", "ArtifactVersion", "BlobArtifactService", "FileArtifactService"]
