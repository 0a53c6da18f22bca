"""How values travel to and from Temporal: pydantic's JSON, readable in the Temporal UI, without null fields.

Model fields that are `None` or say nothing (`brevity.py`) are left out and events keep ADK's camelCase names; a `None`
inside a dictionary or a list is data (a tool's result, a state value) and stays. Bytes are base64. Safe in workflow
code.
"""

from __future__ import annotations

import dataclasses
from types import MappingProxyType
from typing import Any

from pydantic_core import to_json
from temporalio.api.common.v1 import Payload
from temporalio.client import Client
from temporalio.contrib.pydantic import PydanticJSONPlainPayloadConverter
from temporalio.converter import (
    CompositePayloadConverter,
    DataConverter,
    DefaultPayloadConverter,
    EncodingPayloadConverter,
    JSONPlainPayloadConverter,
)

from perdure.brevity import briefly
from perdure.errors import EncryptionError

ENCODING, CIPHER, KEY_ID = "encoding", "encryption-cipher", "encryption-key-id"
"""Names of the metadata of an encrypted payload; they stand in histories."""

ENCRYPTED = b"binary/encrypted"
"""The encoding of an encrypted payload, as in Temporal's samples."""

FAULT = "encryption-fault"
"""Metadata by which a codec leaves word why it did not open a payload. Never stored."""

__all__ = ["CompactJSONPayloadConverter", "PerdurePayloadConverter", "adapt", "data_converter"]


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
    """Says what a payload is that no codec has opened."""

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


data_converter = DataConverter(payload_converter_class=PerdurePayloadConverter)
"""The converter of every client and worker of Perdure."""


def adapt(client: Client) -> Client:
    """Return a client of the same connection that speaks Perdure's payloads; not for workflow code.

    What else the client's converter does stays: a payload codec (encryption), a failure converter, external storage.
    """
    converter = client.data_converter
    if issubclass(converter.payload_converter_class, PerdurePayloadConverter):
        return client
    # The config as it was before the client's plugins changed it: they do so again, once, for the new client.
    config = client.config()
    config["data_converter"] = dataclasses.replace(converter, payload_converter_class=PerdurePayloadConverter)
    return Client(**config)
