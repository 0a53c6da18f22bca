"""Pictures of google.adk's graphs, as plans have them. Pure."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

_FROZEN = ConfigDict(frozen=True)


def is_unset(value: object) -> bool:
    """Return whether a field is left out of a plan's JSON, so that plans without it keep their digests."""
    return not value


def is_one(value: object) -> bool:
    """Return the same for a number whose default is 1."""
    return value == 1


class GraphEdge(BaseModel):
    """An edge of a graph."""

    model_config = _FROZEN

    start: str
    end: str
    route: tuple[str, ...] = Field(default=(), exclude_if=is_unset)
    """Routes that lead along it; none: each output does."""


class GraphShape(BaseModel):
    """What a graph looks like: the nodes by name, and the edges between them. google.adk's `Workflow` decides by it."""

    model_config = _FROZEN

    nodes: tuple[GraphPoint, ...] = ()
    edges: tuple[GraphEdge, ...] = ()


class GraphPoint(BaseModel):
    """A node of a graph."""

    model_config = _FROZEN

    name: str
    kind: str
    """Its class."""
    graph: GraphShape | None = Field(default=None, exclude_if=is_unset)
    """Of a graph within the graph."""


GraphShape.model_rebuild()
