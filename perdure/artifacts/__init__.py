"""Artifact stores: the interface, one service over any store of blobs, and one in a folder.

Here belongs a store of another kind; what tools see of artifacts stands in `agents`.
"""

from perdure.artifacts.blobs import BlobArtifactService
from perdure.artifacts.files import FileArtifactService
from perdure.artifacts.service import ArtifactService, ArtifactVersion

__all__ = ["ArtifactService", "ArtifactVersion", "BlobArtifactService", "FileArtifactService"]
