"""Who answered a call, when and why: what an answer's event tells of that in its metadata."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, cast

from fastapi import HTTPException

from perdure.api.access import APP
from perdure.api.identity import OPERATOR, Identity
from perdure.attribution import ATTRIBUTION, attribution
from perdure.events import QUESTIONS, Event
from perdure.journal import ActivityKept, FailureCaught

_Json = dict[str, Any]

_MARK = "perdure"
"""The key of an export's lines that are no events."""
_ASKING = (
    "requestedToolConfirmations",
    "requested_tool_confirmations",
    "needsConfirmation",
    "needs_confirmation",
)
"""Fields by which a tool's kept result has a person asked."""
_DELTAS = ("stateDelta", "state_delta")
_OUTCOMES = frozenset(entry.model_fields["kind"].default for entry in (ActivityKept, FailureCaught))


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
    """Refuse a log that holds what only an operator may bring: whoever brings a log could have written it.

    That is who answered; a question whether a call may run, or what became of it, since its answer lets calls run; what
    a custom agent's activities returned; and writes of `app:` keys that a resume would carry out.

    Raises:
        HTTPException: 403.
    """
    if OPERATOR in identity.roles:
        return
    for line in lines:
        try:
            value: Any = json.loads(line, object_pairs_hook=_check_pairs)
        except (ValueError, RecursionError):
            # It is malformed, and refused as such by whoever reads the log.
            continue
        if isinstance(value, dict) and _MARK in value:
            json.loads(line, object_pairs_hook=_check_entry_pairs)


def _check_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    for key, value in pairs:
        if key == ATTRIBUTION:
            raise _operators_only(f"says who answered ({ATTRIBUTION!r})")
        # Calls, responses and what is asked about, however they are nested and spelled, have a name.
        if key == "name" and isinstance(value, str) and value in QUESTIONS:
            raise _operators_only(f"holds {value!r}, whose answer lets a call run")
        if key in _ASKING and value:
            raise _operators_only(f"asks whether a call may run ({key!r})")
    return dict(pairs)


def _check_entry_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Check what stands in an entry of Perdure's, which does more than tell what was."""
    for key, value in pairs:
        if key == "kind" and isinstance(value, str) and value in _OUTCOMES:
            raise _operators_only("holds what an agent's activity returned, or that a step failed")
        if key in _DELTAS and isinstance(value, dict) and any(name.startswith(APP) for name in cast(_Json, value)):
            raise _operators_only("writes app: keys")
    return dict(pairs)


def _operators_only(what: str) -> HTTPException:
    return HTTPException(403, f"the log {what}, so only an operator may bring it")
