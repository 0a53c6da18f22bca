"""AG-UI's messages: a client's as a content, and a session's log as the messages that a client shows. Pure."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterable, Iterator
from typing import Any

from ag_ui import core
from google.genai import types

from perdure.errors import InvalidMessage
from perdure.journal.events import QUESTIONS, REQUEST_INPUT, USER, Event

MESSAGE_ID = "ag-ui:message"
"""Key in the metadata of a user's event: the id that the client gave to its message."""

_HIDDEN = QUESTIONS | {REQUEST_INPUT}
"""Calls that are told as interrupts, and not as tool calls."""

_MEDIA: dict[str, type[core.ImagePart | core.AudioPart | core.VideoPart]] = {
    "image": core.ImagePart,
    "audio": core.AudioPart,
    "video": core.VideoPart,
}


def content_of(message: core.UserMessage) -> types.Content:
    """Return a client's message as the user's content.

    Raises:
        InvalidMessage: A part cannot be read.
    """
    if isinstance(message.content, str):
        return types.Content(role=USER, parts=[types.Part(text=message.content)])
    return types.Content(role=USER, parts=[_part(part) for part in message.content])


def _part(part: core.ContentPart) -> types.Part:
    if isinstance(part, core.TextPart):
        return types.Part(text=part.text)
    source = part.source
    if isinstance(source, core.DataSource):
        try:
            data = base64.b64decode(source.value, validate=True)
        except (binascii.Error, ValueError):
            raise InvalidMessage(f"the data of the {part.type} is not in base64") from None
        return types.Part(inline_data=types.Blob(data=data, mime_type=source.mime_type))
    if isinstance(source, core.UrlSource):
        return types.Part(file_data=types.FileData(file_uri=source.value, mime_type=source.mime_type))
    raise InvalidMessage(f"the {part.type} is a file of another system; send its data, or its URL")


def shown_calls(event: Event) -> list[types.FunctionCall]:
    """Return the calls of an event that are told as tool calls."""
    return [call for call in event.get_function_calls() if call.name not in _HIDDEN]


class Results:
    """Tells which responses in a log are results: each tool call has one."""

    def __init__(self) -> None:
        """Begin with a log of which nothing was read."""
        self._long_running: set[str | None] = set()

    def of(self, event: Event) -> Iterator[tuple[str, str, str]]:
        """Yield the results in the log's next event: an id of the message, the call's id, and its contents as JSON."""
        self._long_running |= event.long_running_tool_ids or set()
        # Of what asks first, this says no more than that; the result comes after the answer.
        asked = event.actions.requested_tool_confirmations.keys() | event.actions.requested_auth_configs.keys()
        for number, response in enumerate(event.get_function_responses()):
            # An agent's own event tells what a long-running tool returned at once; the result is the user's answer.
            interim = not event.is_users and response.id in self._long_running
            if response.id and response.name not in _HIDDEN and not interim and response.id not in asked:
                yield f"{event.id}:{number}", response.id, as_json(response.response)


def as_json(value: Any) -> str:
    """Return a value as JSON."""
    return json.dumps(value, ensure_ascii=False, default=str)


def messages_of(events: Iterable[Event]) -> list[core.Message]:
    """Return the messages of a log."""
    results = Results()
    return [message for event in events for message in _messages(event, results)]


def _messages(event: Event, results: Results) -> Iterator[core.Message]:
    if event.is_users:
        parts = [part for part in map(_shown, event.parts) if part is not None]
        texts = [part.text for part in parts if isinstance(part, core.TextPart)]
        if parts:
            given = (event.custom_metadata or {}).get(MESSAGE_ID)
            content = "".join(texts) if len(texts) == len(parts) else parts
            yield core.UserMessage(id=given if isinstance(given, str) else event.id, content=content)
    else:
        if thought := thoughts_of(event):
            yield core.ReasoningMessage(id=reasoning_id(event.id), content=thought)
        calls = [
            core.ToolCall(
                id=call.id or "", function=core.FunctionCall(name=call.name or "", arguments=as_json(call.args or {}))
            )
            for call in shown_calls(event)
        ]
        if event.text or calls:
            yield core.AssistantMessage(
                id=event.id, name=event.author or None, content=event.text or None, tool_calls=calls or None
            )
    for message_id, call_id, content in results.of(event):
        yield core.ToolMessage(id=message_id, tool_call_id=call_id, content=content)


def _shown(part: types.Part) -> core.ContentPart | None:
    """Return a part of a user's message as AG-UI has it."""
    source: core.PartSource
    if part.text:
        return core.TextPart(text=part.text)
    if part.inline_data is not None:
        kind = part.inline_data.mime_type or "application/octet-stream"
        data = base64.b64encode(part.inline_data.data or b"").decode()
        source = core.DataSource(value=data, mime_type=kind)
    elif part.file_data is not None and part.file_data.file_uri:
        kind = part.file_data.mime_type or ""
        source = core.UrlSource(value=part.file_data.file_uri, mime_type=kind or None)
    else:
        return None
    return _MEDIA.get(kind.partition("/")[0], core.DocumentPart)(source=source)


def thoughts_of(event: Event) -> str:
    """Return what a model thought."""
    return "".join(part.text or "" for part in event.parts if part.thought)


def reasoning_id(event_id: str) -> str:
    """Return the id of the message that tells what a model thought."""
    return f"{event_id}:reasoning"
