"""Who answered a call, when and why: what an answer's event tells of that in its metadata."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from fastapi import HTTPException

from perdure.api.identity import OPERATOR, Identity
from perdure.attribution import ATTRIBUTION, attribution
from perdure.events import Event


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
    return attribution(identity.subject, why or None, datetime.now(UTC))


def attribution_of(event: Event) -> Attribution | None:
    """Return who answered by an event, when and why; `None` where it does not tell."""
    found: Any = (event.custom_metadata or {}).get(ATTRIBUTION)
    # A signal, or an import, may hold anything there.
    if not isinstance(found, Mapping):
        return None
    who, when, why = (_text(found.get(key)) for key in ("who", "when", "why"))  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType] -- JSON
    return Attribution(who, when or "", why)


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def check_log(identity: Identity, lines: Iterable[str | bytes]) -> None:
    """Refuse a log that says who answered, unless an operator brings it: whoever brings it could have written it.

    Raises:
        HTTPException: 403.
    """
    if OPERATOR in identity.roles:
        return
    for line in lines:
        try:
            json.loads(line, object_pairs_hook=_check_pairs)
        except (ValueError, RecursionError):
            # It is malformed, and refused as such by whoever reads the log.
            continue


def _check_pairs(pairs: list[tuple[str, Any]]) -> None:
    if any(key == ATTRIBUTION for key, _ in pairs):
        raise HTTPException(403, f"the log says who answered ({ATTRIBUTION!r}), so only an operator may bring it")
