"""`NodeRun`: what an agent's run has of the graph whose node the agent is; and what events tell of nodes."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from perdure.journal.compact_json import unsaid
from perdure.journal.events import Event
from perdure.plan.contents import types

__all__ = ["NodeRun", "ends_node", "path_of"]


class NodeRun(BaseModel):
    """Where in a graph of google.adk's an agent runs as a node, and with what."""

    model_config = ConfigDict(frozen=True)

    path: str
    """Names of the nodes around it and its own, each with the number of its run: `survey@1/optimist@1`."""
    input: types.Content | None = Field(default=None, exclude_if=unsaid)
    """What its model is given as the user's turn, instead of the user's message."""
    output_for: tuple[str, ...] = Field(default=(), exclude_if=unsaid)
    """Nodes around it whose output its own is, too, by path."""
    output_branch: str | None = Field(default=None, exclude_if=unsaid)
    """The branch of such a node, on which its output is logged; empty for the root's."""
    scope: str | None = Field(default=None, exclude_if=unsaid)
    """Its isolation scope."""
    answers: bool = Field(default=False, exclude_if=unsaid)
    """What its model says is the node's output."""


def path_of(event: Event) -> str:
    """Return the node's path that an event tells; empty if it tells none."""
    return str((event.node_info or {}).get("path") or "")


def ends_node(event: Event) -> bool:
    """Return whether an event has what a node gives."""
    message = (event.node_info or {}).get("messageAsOutput")
    return bool(message or event.output is not None or event.actions.route is not None)
