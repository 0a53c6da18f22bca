"""Bodies of requests, and of the session that most answers hold. Names and fields are ADK's."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, cast

from fastapi import HTTPException
from google.genai import types
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    RootModel,
    alias_generators,
    model_validator,
)

from perdure.api.base.enums import ClientContent, ClientEvent
from perdure.errors import InvalidMessage
from perdure.journal.events import USER, Event
from perdure.plan.nodes import MaxLlmCalls
from perdure.rules.intake import check_parts

_ADK = ConfigDict(alias_generator=alias_generators.to_camel, populate_by_name=True)


RESERVED_PREFIX = "perdure"
"""How the keys of metadata start that only Perdure writes, such as who answered."""
_RESERVED_KEYS = frozenset({"expired"})
"""Perdure's mark of an answer that the session gave itself, at a deadline."""


def reserved_key(metadata: Mapping[str, Any]) -> str | None:
    """Return a key of an event's metadata that only Perdure may write, if there is one."""
    return next(
        (key for key in metadata if key in _RESERVED_KEYS or key.casefold().startswith(RESERVED_PREFIX)),
        None,
    )


def _check_metadata(metadata: dict[str, Any]) -> dict[str, Any]:
    key = reserved_key(metadata)
    if key is not None:
        raise HTTPException(400, f"the metadata {key!r} is the server's own; leave it out")
    return metadata


def _check_message(message: types.Content) -> types.Content:
    parts = message.parts or []
    if not any(part.model_dump(exclude_none=True) for part in parts):
        raise HTTPException(400, "the message is empty; send a text, or function responses")
    answers = any(part.function_response for part in parts)
    if message.role not in (_ANSWERERS if answers else _AUTHORS):
        raise HTTPException(400, f"a client's message is its user's, so it has not the role {message.role!r}")
    if not any(part.function_call for part in parts):
        # A call is refused by the session, which is no malformed body.
        try:
            check_parts(message)
        except InvalidMessage as error:
            raise ValueError(str(error)) from None
    return message.model_copy(update={"role": USER})


def _check_number(events: Any) -> object:
    if isinstance(events, list) and len(cast("list[Any]", events)) > MAX_FIRST_EVENTS:
        raise ValueError(f"a session may begin with {MAX_FIRST_EVENTS} events; import a longer log, line by line")
    return cast("object", events)


MAX_FIRST_EVENTS = 2000
"""Events with which a session may be created; an import takes more, and checks them line by line."""

FirstEvents = Annotated[list[ClientEvent], BeforeValidator(_check_number)]
"""A log that a session starts with."""

Metadata = Annotated[dict[str, Any], AfterValidator(_check_metadata)]
"""What a client says of its message or answer: all but what the server says. Reserved keys are 400."""

Message = Annotated[ClientContent, AfterValidator(_check_message)]
"""A client's message, which is its user's. Another's, or an empty one, is 400."""


_AUTHORS = (None, "", USER)
_ANSWERERS = (*_AUTHORS, "function", "tool")
"""Roles that clients give to function responses."""

_MAX_DEPTH = 100
"""Lists and objects within each other. A worker reads not quite 200, and what it stores has some around it."""
_TOO_DEEP = f"the body has more than {_MAX_DEPTH} lists and objects within each other"


class Body(BaseModel):
    """Base of all bodies: both spellings of names, and text that can be stored."""

    model_config = _ADK

    @model_validator(mode="before")
    @classmethod
    def _check_text(cls, value: Any) -> Any:
        return value if isinstance(value, cls) else storable(value)


class StateBody(RootModel[dict[str, Any]]):
    """A session's first state, as the whole body."""

    @model_validator(mode="before")
    @classmethod
    def _check_text(cls, value: Any) -> Any:
        return value if isinstance(value, cls) else storable(value)


class UpdateMemoryRequest(Body):
    """Gives a session to its user's memory."""

    session_id: str


class CreateSessionRequest(Body):
    """Creates a session."""

    session_id: str | None = None
    """Default: a fresh one."""
    state: dict[str, Any] | None = None
    events: FirstEvents | None = None
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
    new_message: Message | None = None
    """A message, or function responses that answer open calls."""
    streaming: bool = False
    """On `/run_sse`: `partial` events come while a model writes, if the server hears of them."""
    state_delta: dict[str, Any] | None = None
    """Written with the message."""
    function_call_event_id: str | None = None
    """If given, an event with content and artifacts is one frame, not two."""
    invocation_id: str | None = None
    """Without a message: what to resume."""
    custom_metadata: Metadata | None = None
    """Becomes the user's event's."""
    max_llm_calls: MaxLlmCalls | None = None
    """Model calls of the invocation, or from a resume on; of who is no operator it may only lower the app's limit."""
    service_tier: str | None = None
    """Taken, and not used."""


class SaveArtifactRequest(Body):
    """Saves a version of an artifact."""

    filename: str
    artifact: types.Part
    """A part with `text`, `inlineData` or `fileData`."""
    custom_metadata: dict[str, Any] | None = None
    """Kept with the version."""


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


def storable(value: Any) -> Any:
    """Return a body's value, unless it holds what no payload can: half of a surrogate pair, NaN, or too many levels.

    Raises:
        ValueError: It does.
    """
    if isinstance(value, bytes):
        # No JSON, and refused for that.
        return value
    try:
        json.dumps(value, ensure_ascii=False, allow_nan=False, default=str).encode()
    except UnicodeEncodeError as error:
        raise ValueError("the body holds a text that is no Unicode: a lone surrogate") from error
    except ValueError as error:
        raise ValueError("the body holds a number that JSON has not: NaN, or one that is infinite") from error
    except RecursionError as error:
        raise ValueError(_TOO_DEEP) from error
    _check_depth(value)
    return value


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(_MAX_DEPTH + 1):
        level = [item for outer in level for item in _items(outer) if isinstance(item, dict | list)]
        if not level:
            return
    raise ValueError(_TOO_DEEP)


def _items(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return cast("dict[str, Any]", value).values()
    return cast("list[Any]", value) if isinstance(value, list) else ()
