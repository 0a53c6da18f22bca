"""Shows where an invocation stands in a graph: its nodes, where each leads, and which have run. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from pydantic import BaseModel, ConfigDict

from perdure.journal.entries import EventLogged
from perdure.journal.events import Event
from perdure.journal.invocations import Invocation
from perdure.journal.projection import Projection
from perdure.journal.runs import is_state
from perdure.plan.graph_shapes import GraphShape
from perdure.plan.nodes import CustomNode

__all__ = ["NodeStanding", "stand_in_graph"]

_BEGIN = "__START__"
"""What google.adk calls the place at which a graph begins."""


class NodeStanding(BaseModel):
    """A node of a graph, and where it stands."""

    model_config = ConfigDict(frozen=True)

    path: str
    """Names of the graphs around it within the outermost one, and its own, with slashes."""
    kind: str
    """Its class."""
    standing: Literal["done", "has begun", "waits", "not reached"]
    """`has begun`: it has logged something, and no output, route or end yet. `waits`: for a person."""
    runs: int
    """How often it was run: in a loop, more than once."""
    leads_to: tuple[str, ...]
    """Nodes behind it, by name, each with the routes that lead there: `approve (SMALL)`."""
    first: bool
    """The graph begins with it."""


def stand_in_graph(node: CustomNode, projection: Projection, invocation: Invocation) -> tuple[NodeStanding, ...]:
    """Return the nodes of a graph, those of graphs in it behind these; nothing for a custom agent that is none."""
    if node.graph is None:
        return ()
    events = [entry.event for entry in invocation.entries if isinstance(entry, EventLogged)]
    hidden = {entry.event.id for entry in invocation.entries if isinstance(entry, EventLogged) and entry.hidden}
    waiting = {id for id, call in projection.calls.items() if call.answer == "open"}
    seen: dict[str, dict[str, list[Event]]] = {}
    for event in events:
        runs = _runs_of(event)
        for depth in range(2, len(runs) + 1):
            path = "/".join(run.partition("@")[0] for run in runs[1:depth])
            seen.setdefault(path, {}).setdefault("/".join(runs[:depth]), []).append(event)
    return tuple(_nodes(node.graph, "", _Seen(seen, hidden, waiting)))


def _runs_of(event: Event) -> list[str]:
    """Return the runs that an event's path names, the graph's own first."""
    path = str((event.node_info or {}).get("path") or "")
    return path.split("/") if path else []


class _Seen:
    """What the log has of nodes, by their paths, and of each run of them."""

    def __init__(self, events: dict[str, dict[str, list[Event]]], hidden: set[str], waiting: set[str]) -> None:
        self._events = events
        self._hidden = hidden
        self._waiting = waiting

    def standing(self, path: str) -> tuple[Literal["done", "has begun", "waits", "not reached"], int]:
        runs = self._events.get(path, {})
        if not runs:
            return "not reached", 0
        run, events = list(runs.items())[-1]
        asked = {id for event in events for id in event.long_running_tool_ids or ()}
        if asked & self._waiting:
            return "waits", len(runs)
        return ("done" if any(self._ends(event, run) for event in events) else "has begun"), len(runs)

    def _ends(self, event: Event, run: str) -> bool:
        info = event.node_info or {}
        if run in (info.get("outputFor") or ()):
            return True
        if info.get("path") != run:
            return False
        if is_state(event):
            # Of an agent; those underneath it have its path, too.
            return bool(event.actions.end_of_agent) and run.rpartition("/")[2].partition("@")[0] == event.author
        return event.output is not None or event.actions.route is not None or event.id in self._hidden


def _nodes(shape: GraphShape, above: str, seen: _Seen) -> Iterable[NodeStanding]:
    first = {edge.end for edge in shape.edges if edge.start == _BEGIN}
    for point in shape.nodes:
        path = f"{above}{point.name}"
        standing, runs = seen.standing(path)
        leads = tuple(
            f"{edge.end} ({', '.join(edge.route)})" if edge.route else edge.end
            for edge in shape.edges
            if edge.start == point.name
        )
        yield NodeStanding(
            path=path, kind=point.kind, standing=standing, runs=runs, leads_to=leads, first=point.name in first
        )
    for point in shape.nodes:
        if point.graph is not None:
            yield from _nodes(point.graph, f"{above}{point.name}/", seen)
