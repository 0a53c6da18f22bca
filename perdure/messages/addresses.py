"""Paths of the HTTP API's pages about a session. Pure."""

from __future__ import annotations

from urllib.parse import quote

from perdure.messages.keys import SessionKey


def session_path(key: SessionKey, *rest: str) -> str:
    """Return the path of a session's page, or of what lies below it."""
    return path_below("/inbox", key, *rest)


def path_below(base: str, key: SessionKey, *rest: str) -> str:
    """Return the path of a session below another one."""
    parts = ("apps", key.app, "users", key.user, "sessions", key.session, *rest)
    return "/".join((base, *(quote(part, safe="") for part in parts)))
