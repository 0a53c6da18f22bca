"""Converts values to Temporal's payloads and back: pydantic's JSON, readable in its UI, without null fields.

Model fields that are `None` or say nothing (`journal/compact_json.py`) are left out and events keep ADK's camelCase
names; a `None` inside a dictionary or a list is data (a tool's result, a state value) and stays. Bytes are base64. Safe
in workflow code.
"""

from __future__ import annotations

import dataclasses
import traceback
from types import MappingProxyType, TracebackType
from typing import Any

from pydantic_core import PydanticSerializationError, to_json
from temporalio.api.common.v1 import Payload
from temporalio.api.failure.v1 import Failure
from temporalio.client import Client
from temporalio.contrib.pydantic import PydanticJSONPlainPayloadConverter
from temporalio.converter import (
    CompositePayloadConverter,
    DataConverter,
    DefaultFailureConverter,
    DefaultFailureConverterWithEncodedAttributes,
    DefaultPayloadConverter,
    EncodingPayloadConverter,
    FailureConverter,
    JSONPlainPayloadConverter,
    PayloadConverter,
)
from temporalio.exceptions import ApplicationError, FailureError

from perdure.errors import EncryptionError, message_of, shortened
from perdure.journal.compact_json import briefly
from perdure.redaction import Redact, redacting

ENCODING, CIPHER, KEY_ID = "encoding", "encryption-cipher", "encryption-key-id"
"""Names of the metadata of an encrypted payload; they stand in histories."""

ENCRYPTED = b"binary/encrypted"
"""The encoding of an encrypted payload, as in Temporal's samples."""

FAULT = "encryption-fault"
"""Metadata by which a codec leaves word why it did not open a payload. Never stored."""

__all__ = [
    "BoundedFailureConverter",
    "BoundedFailureConverterWithEncodedAttributes",
    "CompactJSONPayloadConverter",
    "PerdurePayloadConverter",
    "adapt",
    "data_converter",
]


class CompactJSONPayloadConverter(PydanticJSONPlainPayloadConverter):
    """Temporal's pydantic converter, but for null fields, aliases and bytes."""

    def to_payload(self, value: Any) -> Payload | None:
        """Return the value's JSON as a `json/plain` payload.

        Raises:
            pydantic_core.PydanticSerializationError: The value is not made of JSON's types and models.
        """
        with briefly():
            data = to_json(value, by_alias=True, exclude_none=True, bytes_mode="base64")
        return Payload(metadata={"encoding": self.encoding.encode()}, data=data)


class UnopenedPayloadConverter(EncodingPayloadConverter):
    """Refuses a payload that no codec has opened, and says which key it needs."""

    @property
    def encoding(self) -> str:
        """The encoding of encrypted payloads."""
        return ENCRYPTED.decode()

    def to_payload(self, value: Any) -> Payload | None:
        """Encrypt nothing: that is the codec's."""
        return None

    def from_payload(self, payload: Payload, type_hint: type | None = None) -> Any:
        """Refuse.

        Raises:
            EncryptionError: Always; it names the key.
        """
        fault = payload.metadata.get(FAULT)
        if fault is not None:
            raise EncryptionError(fault.decode(errors="replace"))
        key = payload.metadata.get(KEY_ID, b"").decode(errors="replace")
        raise EncryptionError(
            f"a payload is encrypted with the key {key!r}, and no keys are given here; give them by --encryption-keys,"
            " PERDURE_ENCRYPTION_KEYS, or ConnectionConfig(payload_codec=EncryptionCodec(…))"
        )


_JSON = CompactJSONPayloadConverter()
"""Shared, for what it learns of the types: Temporal makes a converter anew for every workflow task."""


_CONVERTERS = MappingProxyType(
    {
        converter.encoding.encode(): _JSON if isinstance(converter, JSONPlainPayloadConverter) else converter
        for converter in (
            *DefaultPayloadConverter.default_encoding_payload_converters,
            UnopenedPayloadConverter(),
        )
    }
)


class PerdurePayloadConverter(CompositePayloadConverter):
    """Temporal's converters in their order (null, bytes, protobuf, JSON), with ours for JSON."""

    def __init__(self) -> None:
        # Every session in a worker's cache has one.
        self.converters = _CONVERTERS


_MAX_CAUSES = 5
_MAX_FRAMES = 20
_MAX_DETAIL_BYTES = 20_000
_MAX_STACK_TRACE = 20_000


class BoundedFailureConverter(DefaultFailureConverter):
    """Temporal's failure converter, with an end to what is written of an exception, whatever code raised it.

    The server puts "Failure exceeds size limit" in the place of a failure of 2 MB, and does not retry it; the SDKs do
    not shorten one: https://github.com/temporalio/features/issues/597
    """

    def to_failure(self, exception: BaseException, payload_converter: PayloadConverter, failure: Failure) -> None:
        """Write an exception with its causes: the beginnings of the texts, the innermost frames, the nearest causes."""
        super().to_failure(_bounded(exception, payload_converter, _MAX_CAUSES), payload_converter, failure)
        # A frame shows a line of source, and generated code may have long ones.
        failure.stack_trace = failure.stack_trace[-_MAX_STACK_TRACE:]


class BoundedFailureConverterWithEncodedAttributes(BoundedFailureConverter):
    """The same where a codec encrypts: it reaches text and stack trace."""

    def __init__(self) -> None:
        """Make the converter."""
        super().__init__(encode_common_attributes=True)


_BOUNDED: dict[type[FailureConverter], type[FailureConverter]] = {
    DefaultFailureConverter: BoundedFailureConverter,
    DefaultFailureConverterWithEncodedAttributes: BoundedFailureConverterWithEncodedAttributes,
}


def _bounded(error: BaseException, converter: PayloadConverter, causes: int) -> BaseException:
    """Return an exception as Temporal writes it anyway, in a bearable size; what came from the server is so already."""
    if isinstance(error, FailureError) and (error.failure or not isinstance(error, ApplicationError)):
        return error
    cause = error.__cause__
    if isinstance(error, ApplicationError):
        cause = cause or (None if error.__suppress_context__ else error.__context__)
        bounded = ApplicationError(
            shortened(str(error.message)),
            *(detail for detail in error.details if _fits(detail, converter)),
            type=error.type,
            non_retryable=error.non_retryable,
            next_retry_delay=error.next_retry_delay,
            category=error.category,
        )
    else:
        bounded = ApplicationError(message_of(error), type=type(error).__name__)
    bounded.__cause__ = _bounded(cause, converter, causes - 1) if cause is not None and causes else None
    return bounded.with_traceback(_innermost(error.__traceback__))


def _fits(detail: Any, converter: PayloadConverter) -> bool:
    try:
        return all(one.ByteSize() <= _MAX_DETAIL_BYTES for one in converter.to_payloads([detail]))
    except (PydanticSerializationError, TypeError, ValueError, RuntimeError):
        return False


def _innermost(trace: TracebackType | None) -> TracebackType | None:
    frames = sum(1 for _ in traceback.walk_tb(trace))
    for _ in range(frames - _MAX_FRAMES):
        trace = trace.tb_next if trace is not None else None
    return trace


data_converter = DataConverter(
    payload_converter_class=PerdurePayloadConverter, failure_converter_class=BoundedFailureConverter
)
"""The converter of every client and worker of Perdure."""


def adapt(client: Client, redact: Redact | None = None) -> Client:
    """Return a client of the same connection that speaks Perdure's payloads; not for workflow code.

    What else the client's converter does stays: a payload codec (encryption), a failure converter of its own, external
    storage.

    Args:
        client: Any client.
        redact: Sees every text before it is written, unless the client has such a function already.
    """
    converter = client.data_converter
    if not issubclass(converter.payload_converter_class, PerdurePayloadConverter):
        failures = converter.failure_converter_class
        converter = dataclasses.replace(
            converter,
            payload_converter_class=PerdurePayloadConverter,
            failure_converter_class=_BOUNDED.get(failures, failures),
        )
    if redact is not None:
        converter = redacting(converter, redact)
    if converter is client.data_converter:
        return client
    # The config as it was before the client's plugins changed it: they do so again, once, for the new client.
    config = client.config()
    config["data_converter"] = converter
    return Client(**config)
