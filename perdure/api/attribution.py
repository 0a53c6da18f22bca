"""Who answered a call, when and why: what an answer's event tells of that in its metadata."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from perdure.api.identity import Identity
from perdure.events import Event

ANSWER = "perdure:answer"
"""The key in an event's `customMetadata`; what a client sends under it is replaced."""


@dataclass(frozen=True)
class Attribution:
    """What an event tells of its answer."""

    who: str | None
    """The subject of the credential; none where the server asks for no credentials."""
    when: str
    """Time in ISO 8601, in UTC, at which the server took the answer."""
    why: str | None


def answer_metadata(identity: Identity, why: str | None = None) -> dict[str, Any]:
    """Return the metadata of an answer's event; merge it last over what a client sent.

    Args:
        identity: Who answers.
        why: What they say about it.
    """
    when = datetime.now(UTC).isoformat(timespec="milliseconds")
    return {ANSWER: {"who": identity.subject, "when": when, "why": why or None}}


def attribution_of(event: Event) -> Attribution | None:
    """Return who answered by an event, when and why; `None` where it does not tell."""
    found: Any = (event.custom_metadata or {}).get(ANSWER)
    # A signal, or an import, may hold anything there.
    if not isinstance(found, Mapping):
        return None
    who, when, why = (_text(found.get(key)) for key in ("who", "when", "why"))  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType] -- JSON
    return Attribution(who, when or "", why)


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None
