"""Bodies of requests, and the session that most answers hold. Names and fields are ADK's."""

from __future__ import annotations

import json
from typing import Any

from google.genai import types
from pydantic import BaseModel, ConfigDict, Field, RootModel, alias_generators, model_validator

from perdure.events import Event

_ADK = ConfigDict(alias_generator=alias_generators.to_camel, populate_by_name=True)


class Body(BaseModel):
    """What every body has: both spellings of names, and text that can be stored."""

    model_config = _ADK

    @model_validator(mode="before")
    @classmethod
    def _check_text(cls, value: Any) -> Any:
        return _storable(value)


class StateBody(RootModel[dict[str, Any]]):
    """A session's first state, as the whole body."""

    @model_validator(mode="before")
    @classmethod
    def _check_text(cls, value: Any) -> Any:
        return _storable(value)


class CreateSessionRequest(Body):
    """Creates a session."""

    session_id: str | None = None
    """Default: a fresh one."""
    state: dict[str, Any] | None = None
    events: list[Event] | None = None
    """A log that the session starts with: messages and texts of agents, nothing that would run or wait."""
    options: dict[str, Any] | None = None
    """ADK's; Perdure knows none."""


class UpdateSessionRequest(Body):
    """Writes into a session's state."""

    state_delta: dict[str, Any]


class RunAgentRequest(Body):
    """Starts, answers or resumes an invocation."""

    app_name: str | None = None
    user_id: str
    session_id: str
    new_message: types.Content | None = None
    """A message, or function responses that answer open calls."""
    streaming: bool = False
    """On `/run_sse`: `partial` events come while a model writes, if the server hears of them."""
    state_delta: dict[str, Any] | None = None
    """Written with the message."""
    function_call_event_id: str | None = None
    """If given, an event with content and artifacts is one frame, not two."""
    invocation_id: str | None = None
    """Without a message: what to resume."""
    custom_metadata: dict[str, Any] | None = None
    """Becomes the user's event's."""
    service_tier: str | None = None
    """Taken, and not used."""


class Session(BaseModel):
    """A session with its log."""

    model_config = _ADK

    id: str
    app_name: str
    user_id: str
    state: dict[str, Any] = Field(default_factory=dict[str, Any])
    events: tuple[Event, ...] = ()
    last_update_time: float
    """Seconds since the epoch of the last event; without any, of the session's start."""

    def to_json(self) -> str:
        """Return ADK's JSON: camelCase, fields that are `None` left out."""
        return self.model_dump_json(by_alias=True, exclude_none=True)


def _storable(value: Any) -> Any:
    """Return a body's value, unless it holds text that no payload can: half of a surrogate pair.

    Raises:
        ValueError: It does.
    """
    try:
        json.dumps(value, ensure_ascii=False, default=str).encode()
    except UnicodeEncodeError as error:
        raise ValueError("the body holds a text that is no Unicode: a lone surrogate") from error
    return value
