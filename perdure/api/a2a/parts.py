"""A2A's parts and messages: a client's as a user's content, and a session's events as what a client reads. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, cast

from a2a.types import Message, Part, Role
from google.genai import types
from google.protobuf.json_format import MessageToDict, ParseDict
from google.protobuf.struct_pb2 import Struct, Value

from perdure.errors import InvalidMessage
from perdure.journal.events import USER, Event
from perdure.views.forms.asked import Question
from perdure.views.forms.declared import given_answer

MESSAGE_ID = "a2a:message"
"""Key in the metadata of a user's event: the id that the client gave to its message."""

_TYPE = "adk_type"
"""Key of a data part's metadata by which ADK says what it is. ADK: `a2a/converters/part_converter.py`."""

Json = dict[str, Any]


def content_of(message: Message) -> types.Content:
    """Return a message as the user's content. Data is told as text: no part of it calls anything, or is a result."""
    return types.Content(role=USER, parts=[_told(part) for part in message.parts])


def _told(part: Part) -> types.Part:
    kind = part.WhichOneof("content")
    if kind == "text":
        return types.Part(text=part.text)
    if kind == "raw":
        return types.Part(inline_data=types.Blob(data=part.raw, mime_type=part.media_type or None))
    if kind == "url":
        return types.Part(file_data=types.FileData(file_uri=part.url, mime_type=part.media_type or None))
    if kind == "data":
        return types.Part(text=json.dumps(_value(part.data), ensure_ascii=False))
    raise InvalidMessage("a part of the message is empty")


def answers_of(message: Message, asked: Sequence[Question]) -> Json:
    """Return what a message answers, by the ids of the calls that wait.

    A function response of ADK's says which call it is for; any other data, or a text, is for the one call that waits.

    Raises:
        InvalidMessage: It answers what does not wait, does not fit, or does not say which call it is for.
    """
    waiting = {question.call.id: question for question in asked}
    responses = [response for part in message.parts if (response := _response(part)) is not None]
    try:
        if responses:
            return {_known(response, waiting).call.id: _read(response, waiting) for response in responses}
        if len(asked) > 1:
            raise InvalidMessage(
                f"{len(asked)} calls wait: {', '.join(waiting)}; send each answer as a function response"
            )
        return {asked[0].call.id: _only_answer(message, asked[0])}
    except ValueError as error:
        raise InvalidMessage(str(error)) from None


def _response(part: Part) -> Json | None:
    if part.WhichOneof("content") != "data" or _object(part.metadata).get(_TYPE) != "function_response":
        return None
    found = _value(part.data)
    return cast("Json", found) if isinstance(found, dict) else {}


def _known(response: Json, waiting: dict[str, Question]) -> Question:
    question = waiting.get(str(response.get("id")))
    if question is None:
        raise InvalidMessage(f"no call {str(response.get('id'))[:100]!r} of the task waits for an answer")
    return question


def _read(response: Json, waiting: dict[str, Question]) -> Any:
    question, given = _known(response, waiting), response.get("response")
    wrapped = cast("Json", given) if isinstance(given, dict) else {}
    if wrapped.keys() == {"result"} and question.schema is not None:
        # ADK gives what is no object so.
        return question.read(wrapped["result"])
    return question.read(given)


def _only_answer(message: Message, question: Question) -> Any:
    data = [_value(part.data) for part in message.parts if part.WhichOneof("content") == "data"]
    if data:
        return question.read(data[0])
    text = "".join(part.text for part in message.parts)
    if not text:
        raise InvalidMessage("the message holds no answer; send data, or a text")
    return question.read(given_answer(text, question.schema))


def awaited(questions: Iterable[Question]) -> list[Part]:
    """Return what a task waits for: for each call a sentence, and the call as ADK has it, with the answer's schema."""
    parts: list[Part] = []
    for question in questions:
        call = question.call
        metadata: Json = {_TYPE: "function_call", "adk_is_long_running": True}
        if question.schema is not None:
            metadata["responseSchema"] = dict(question.schema)
        data = {"id": call.id, "name": call.name, "args": call.args}
        parts += [Part(text=question.message), Part(data=_data(data), metadata=ParseDict(metadata, Struct()))]
    return parts


def said_in(event: Event) -> list[Part]:
    """Return what an event says: texts that are no thoughts, and data."""
    parts: list[Part] = []
    for part in event.parts:
        if part.text and not part.thought:
            parts.append(Part(text=part.text))
        elif part.inline_data is not None and part.inline_data.data:
            parts.append(Part(raw=part.inline_data.data, media_type=part.inline_data.mime_type or ""))
        elif part.file_data is not None and part.file_data.file_uri:
            parts.append(Part(url=part.file_data.file_uri, media_type=part.file_data.mime_type or ""))
    return parts


def history_of(events: Iterable[Event], context_id: str, task_id: str) -> list[Message]:
    """Return the messages of a task's user."""
    return [
        Message(
            message_id=str((event.custom_metadata or {}).get(MESSAGE_ID) or event.id),
            role=Role.ROLE_USER,
            parts=parts,
            context_id=context_id,
            task_id=task_id,
        )
        for event in events
        if event.is_users and (parts := said_in(event))
    ]


def _data(value: Any) -> Value:
    # Through JSON, since a structure takes no other numbers, dates and the like.
    return ParseDict(json.loads(json.dumps(value, default=str)), Value())


def _value(data: Value) -> Any:
    return _whole(MessageToDict(data))


def _whole(value: Any) -> Any:
    """Return a value with its numbers as they were sent: in a structure of protobuf's, 12 and 12.0 are the same."""
    match value:
        case float() if value.is_integer():
            return int(value)
        case dict():
            return {key: _whole(one) for key, one in cast("Json", value).items()}
        case list():
            return [_whole(one) for one in cast("list[Any]", value)]
        case _:
            return value


def _object(metadata: Struct) -> Json:
    return MessageToDict(metadata)
