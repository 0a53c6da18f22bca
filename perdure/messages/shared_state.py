"""Messages about changes of state, and of what sessions share, with their names; rules as in `session.py`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from pydantic import BaseModel, ConfigDict, Field

from perdure.journal.events import Event

SHARE_STATE = "perdure:share_state"
STATE_WORKFLOW = "perdure:state"
SET_STATE = "set_state"
STATE = "state"
CHANGE_STATE = "change_state"


def state_workflow_id(app: str, user_id: str | None) -> str:
    """Return the id of the workflow that holds a user's, or without a user the app's, shared state."""
    scope = f"/{quote(user_id, safe='')}" if user_id is not None else ""
    return f"{STATE_WORKFLOW}/{quote(app, safe='')}{scope}"


class _Message(BaseModel):
    model_config = ConfigDict(frozen=True)


class ShareStateInput(_Message):
    """Activity `perdure:share_state`: writes `user:` and `app:` keys."""

    user_id: str
    write_id: str
    """Id of the event that wrote them; a second write of one id does nothing."""
    delta: dict[str, Any]


class StateInput(_Message):
    """Starts a shared-state workflow, and carries it on."""

    state: dict[str, Any] = Field(default_factory=dict[str, Any])
    written: tuple[str, ...] = ()


class StateWrite(_Message):
    """Signal `set_state` of a shared-state workflow."""

    write_id: str
    delta: dict[str, Any]


class StateView(_Message):
    """Query `state` of a shared-state workflow."""

    state: dict[str, Any] = Field(default_factory=dict[str, Any])


class StateChangeInput(_Message):
    """Update `change_state` of a session."""

    state_delta: dict[str, Any]
    request_id: str
    """Becomes the event's id, and its invocation id behind `p-`; a second change of one request id does nothing."""


class StateChangeResult(_Message):
    """The result of `change_state`."""

    event: Event
    """Without its state delta if the request was sent ahead, since results of updates travel together, too."""


def with_delta(event: Event, delta: Mapping[str, Any]) -> Event:
    """Return an event with another state delta."""
    return event.model_copy(update={"actions": event.actions.model_copy(update={"state_delta": dict(delta)})})
