"""What the front of `perdure dev` and the processes that serve its apps say to each other."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import socket

    from perdure.cli.options import Connection


@dataclass(frozen=True, kw_only=True)
class Order:
    """What is to be served, and where."""

    targets: tuple[str, ...]
    connection: Connection
    options: dict[str, Any]
    """Of the command."""
    api: socket.socket | None = None
    """Where the API listens, if it is served."""
    streams: socket.socket | None = None
    """Where others hear what models write, if anybody may."""
    changed: tuple[Path, ...] = ()
    """Files that have changed; what Python has compiled of them is not to be trusted."""


@dataclass(frozen=True)
class ServedApp:
    """An app, as the front tells of it."""

    name: str
    refused: str | None = None
    """Why it cannot run; `None` if it can."""
    trace: str = ""
    """Where in its code that is."""
    resumable: bool = True
    lacks: str | None = None
    """What its model lacks on this machine."""


@dataclass(frozen=True)
class Loaded:
    """The apps are loaded, and can be served."""

    apps: tuple[ServedApp, ...]
    files: tuple[Path, ...]
    """The files of their code, as far as it is loaded."""
    read: tuple[Path, ...] = ()
    """Other files of theirs that their code has opened to read as it was loaded, there or not: prompts, settings."""


@dataclass(frozen=True)
class Refused:
    """The apps cannot be loaded or served."""

    reason: str
    trace: str = ""
    """Where in the user's code that is, if it is there."""
    is_usage: bool = False
    """The command was given wrongly."""
    read: tuple[Path, ...] = ()
    """As of `Loaded`: one may be what is missing."""


@dataclass(frozen=True)
class Serving:
    """The workers ask for work."""


@dataclass(frozen=True)
class Serve:
    """Serve what is loaded."""

    temporal_ui: str | None
    """Where the Temporal UI is."""
    but: frozenset[str] = frozenset()
    """Apps that another process goes on serving."""


@dataclass(frozen=True)
class Retire:
    """Take no more requests, and no more work for some apps; what is under way may end."""

    apps: frozenset[str]


@dataclass(frozen=True)
class End:
    """End: what runs gets its grace period."""
