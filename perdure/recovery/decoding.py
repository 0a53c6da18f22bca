"""Decodes the payloads inside of a history, as the client does."""

from __future__ import annotations

import json

from google.protobuf.message import Message
from temporalio.api.common.v1 import Memo, Payload, Payloads
from temporalio.api.failure.v1 import Failure
from temporalio.api.history.v1 import MarkerRecordedEventAttributes
from temporalio.common import RawValue
from temporalio.converter import DataConverter

from perdure.temporal.payloads import ENCODING, ENCRYPTED, FAULT


async def decode(message: Message, converter: DataConverter) -> None:
    """Decode every payload inside of a message, in place."""
    for field, value in message.ListFields():
        if isinstance(value, Payloads):
            decoded = await _decoded(list(value.payloads), converter)
            value.CopyFrom(Payloads(payloads=decoded))
        elif isinstance(value, Payload):
            [payload] = await _decoded([value], converter)
            value.CopyFrom(payload)
        elif isinstance(value, Memo):
            await _decode_memo(value, converter)
        elif isinstance(value, Message):
            await decode(value, converter)
        elif isinstance(message, MarkerRecordedEventAttributes) and field.name == "details":
            await _decode_marker(message, converter)
        elif field.is_repeated and field.message_type is not None and not field.message_type.GetOptions().map_entry:
            for item in value:
                await decode(item, converter)
    if isinstance(message, Failure) and message.HasField("encoded_attributes"):
        _take_told(message)


async def _decode_marker(marker: MarkerRecordedEventAttributes, converter: DataConverter) -> None:
    # The SDK writes the others itself, without a codec.
    if "result" in marker.details:
        result = marker.details["result"]
        result.CopyFrom(Payloads(payloads=await _decoded(list(result.payloads), converter)))


def _take_told(failure: Failure) -> None:
    """Take over what a failure converter that hides what errors say has left elsewhere."""
    told = _told(failure.encoded_attributes)
    failure.message = told.get("message") or failure.message
    failure.stack_trace = told.get("stack_trace") or failure.stack_trace


async def _decode_memo(memo: Memo, converter: DataConverter) -> None:
    for name, payload in zip(memo.fields, await _decoded(list(memo.fields.values()), converter), strict=True):
        memo.fields[name].CopyFrom(payload)


def _told(attributes: Payload) -> dict[str, str]:
    """Return what a failure converter has put into a payload: text and stack trace; or why it cannot be read."""
    if attributes.metadata.get(ENCODING) == ENCRYPTED:
        fault = attributes.metadata.get(FAULT)
        return {} if fault is None else {"message": fault.decode(errors="replace")}
    return json.loads(attributes.data)


async def _decoded(payloads: list[Payload], converter: DataConverter) -> list[Payload]:
    values: list[RawValue] = await converter.decode(payloads, [RawValue] * len(payloads))
    return [value.payload for value in values]
