"""Shows a session's log as ADK's stores give it back: not quite as it was yielded. Pure.

ADK: `sessions/sqlite_session_service.py`, which sorts by time, and validates what it has written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from perdure.journal.credential_questions import is_credential_request
from perdure.journal.events import Event
from perdure.journal.questions import is_confirmation_request


def as_stored(events: Sequence[Event]) -> tuple[Event, ...]:
    """Return events in the order, and with the names of fields, in which ADK's stores give them back.

    Questions about calls are shown before the event that holds the responses of these, but are made after it.
    """
    told: list[Event] = []
    questions: list[Event] = []
    for event in events:
        if is_confirmation_request(event) or is_credential_request(event):
            questions.append(event)
            continue
        if _asks(event):
            told += [event, *questions]
        else:
            told += [*questions, event]
        questions = []
    return tuple(map(_renamed, [*told, *questions]))


def _asks(event: Event) -> bool:
    return bool(event.actions.requested_tool_confirmations or event.actions.requested_auth_configs)


def _renamed(event: Event) -> Event:
    configs = event.actions.requested_auth_configs
    if not configs:
        return event
    renamed = {call_id: _scheme_renamed(config) for call_id, config in configs.items()}
    return event.model_copy(update={"actions": event.actions.model_copy(update={"requested_auth_configs": renamed})})


def _scheme_renamed(config: Any) -> Any:
    # Written by the names of fields, and read by those of JSON: what is not known by its name is kept beside.
    scheme = cast("Mapping[str, Any]", config).get("authScheme") if isinstance(config, dict) else None
    if not isinstance(scheme, dict):
        return cast("Any", config)
    fields = cast("dict[str, Any]", scheme)
    if "in" in fields:
        read = {"in_" if key == "in" else key: value for key, value in fields.items()}
    else:
        read = {**fields, "type_": fields.get("type")}
    return {**cast("dict[str, Any]", config), "authScheme": read}
