"""Settings of the HTTP API."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from perdure.api.auth.config import AuthConfig
from perdure.artifacts.service import ArtifactService
from perdure.credentials.store import CredentialStore
from perdure.errors import DefinitionError

__all__ = ["ApiConfig"]


@dataclass(frozen=True, kw_only=True)
class ApiConfig:
    """Settings of the HTTP API: what it takes, and from whom."""

    auth: AuthConfig | None = None
    """Who is let in, from `perdure.api.auth.config.read_auth`. Default: whoever reaches it, with every right."""
    auth_file: Path | None = None
    """The file that `auth` was read from: its changes hold from a second later on, without a restart. Default: none, so
    `auth` holds for as long as the server."""
    loopback: bool = True
    """A request must name this machine, an IP address, or the host of an allowed origin as its host: a web page that a
    browser was tricked into taking for local (DNS rebinding) does not. Switched off only with `auth`. Default: on.
    """
    allow_origins: tuple[str, ...] = ()
    """Origins of web pages that may call it beside its own: `https://shop.example`, `regex:…`, or `*`. Default: none.
    """
    max_body_bytes: int = 10_000_000
    """What a request's body may have. Default: 10 MB; a message itself may have 1.75 MB."""
    patience: timedelta = timedelta(seconds=30)
    """How long a request waits for a worker that serves the app, or for Temporal, before it is answered with 503. A run
    that is followed is followed for as long as it takes. Default: 30 s."""
    auto_create_session: bool = False
    """A run in a session that does not exist creates it. Default: off, as in ADK."""
    temporal_ui: str | None = None
    """Where the Temporal UI is, as `http://localhost:8233`; the pages link to it. Default: no links."""
    artifacts: ArtifactService | None = field(default=None, repr=False)
    """Where artifacts are kept, the same as the workers'. Default: nowhere, so that their routes answer 400."""
    credentials: CredentialStore | None = field(default=None, repr=False)
    """Where the secrets of credentials go that answers hold, the same as the workers'. Default: into histories."""
    shows_credentials: bool = False
    """Whether ADK's routes show secrets of credentials, as ADK 1 does; for development. Default: nothing shows any."""
    default_app: str | None = None
    """App of requests that name none. Default: the app, if there is but one."""

    def __post_init__(self) -> None:
        """Refuse a file that would be taken for who is let in, and is not.

        Raises:
            DefinitionError: There is an `auth_file` and no `auth`.
        """
        if self.auth_file is not None and self.auth is None:
            raise DefinitionError(
                "auth_file goes with auth=read_auth(auth_file), which says who is let in from the start"
            )
