"""Writes who answered a call, when and why, into the metadata of the answer's event, and reads it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, cast

from fastapi import HTTPException
from pydantic import BaseModel

from perdure.api.auth.access import APP
from perdure.api.auth.identity import OPERATOR, Identity
from perdure.journal.attribution import ATTRIBUTION, attribution
from perdure.journal.entries import ActivityKept, Entry, EventLogged, FailureCaught, ScopeBegan, Within
from perdure.journal.events import QUESTIONS, Event
from perdure.plan.nodes import CallLimit
from perdure.rules.model_calls import LIMIT
from perdure.trajectories.given_logs import GivenLog

_Json = dict[str, Any]

_QUESTIONS = tuple(QUESTIONS)
"""As a tuple, since what a log holds as a name may be no text."""
_ASKING = (
    "requestedToolConfirmations",
    "requested_tool_confirmations",
    "needsConfirmation",
    "needs_confirmation",
    "requestedAuthConfigs",
    "requested_auth_configs",
)
"""Fields by which a tool's kept result has a person asked."""
_DELTAS = ("stateDelta", "state_delta")


@dataclass(frozen=True)
class Attribution:
    """The sender of an answer, the time, and the reason."""

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
    """Return the attribution of an answer's event; `None` where it does not tell."""
    found: Any = (event.custom_metadata or {}).get(ATTRIBUTION)
    # A signal, or an import, may hold anything there.
    if not isinstance(found, Mapping):
        return None
    who, when, why = (_text(found.get(key)) for key in ("who", "when", "why"))  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType] -- JSON
    return Attribution(who, when or "", why)


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def check_log(identity: Identity, log: GivenLog) -> None:
    """Refuse a log with contents that only an operator may bring: whoever brings it could have written them.

    That is who answered; a question whether a call may run, or what became of it, since its answer lets calls run; what
    a custom agent's activities returned; writes of `app:` keys that a resume would carry out; and a number of model
    calls that may be above the app's.

    Args:
        identity: Who brings it.
        log: The very values that the session will begin with.

    Raises:
        HTTPException: 403.
    """
    if OPERATOR in identity.roles:
        return
    for event in log.events:
        _check_value(_plain(event))
    for entry in log.entries or ():
        _check_value(_plain(entry))
        # What other agents wrote is told by their events, and is not written again.
        if not isinstance(entry, EventLogged) or entry.hidden:
            _check_entry(entry)


def _plain(value: BaseModel) -> Any:
    return value.model_dump(mode="json", by_alias=True)


def _objects(value: Any) -> Iterator[_Json]:
    """Yield a value's objects, however they are nested."""
    left = [value]
    while left:
        found: Any = left.pop()
        if isinstance(found, dict):
            yield cast(_Json, found)
            left += cast(_Json, found).values()
        elif isinstance(found, list):
            left += found


def _check_value(value: Any) -> None:
    for found in _objects(value):
        if ATTRIBUTION in found:
            raise _operators_only(f"says who answered ({ATTRIBUTION!r})")
        # Calls, responses and what is asked about, however they are nested, have a name.
        if (name := found.get("name")) in _QUESTIONS:
            raise _operators_only(f"holds {name!r}, whose answer lets a call run")
        for key in _ASKING:
            if found.get(key):
                raise _operators_only(f"asks whether a call may run ({key!r})")


def _check_entry(entry: Entry) -> None:
    """Check what stands in an entry of Perdure's, which does more than tell what was."""
    if isinstance(entry, ActivityKept | FailureCaught):
        raise _operators_only("holds what an agent's activity returned, or that a step failed")
    if isinstance(entry, ScopeBegan | Within):
        raise _operators_only("holds what an agent did that a tool runs")
    if any(isinstance(value, CallLimit) and not value.lowers for _, value in entry):
        raise _operators_only(f"sets {LIMIT} as only an operator may")
    for found in _objects(_plain(entry)):
        for key in _DELTAS:
            delta: Any = found.get(key)
            if isinstance(delta, dict) and any(name.startswith(APP) for name in cast(_Json, delta)):
                raise _operators_only("writes app: keys")


def _operators_only(what: str) -> HTTPException:
    return HTTPException(403, f"the log {what}, so only an operator may bring it")
