"""How values travel to and from Temporal: pydantic's JSON, readable in the Temporal UI, without null fields.

Model fields that are `None` or say nothing (`brevity.py`) are left out and events keep ADK's camelCase names; a `None`
inside a dictionary or a list is data (a tool's result, a state value) and stays. Bytes are base64. Safe in workflow
code.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from pydantic_core import to_json
from temporalio.api.common.v1 import Payload
from temporalio.client import Client
from temporalio.contrib.pydantic import PydanticJSONPlainPayloadConverter
from temporalio.converter import (
    CompositePayloadConverter,
    DataConverter,
    DefaultPayloadConverter,
    JSONPlainPayloadConverter,
)

from perdure.brevity import briefly

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


_JSON = CompactJSONPayloadConverter()
"""Shared, for what it learns of the types: Temporal makes a converter anew for every workflow task."""


_CONVERTERS = tuple(
    _JSON if isinstance(converter, JSONPlainPayloadConverter) else converter
    for converter in DefaultPayloadConverter.default_encoding_payload_converters
)


class PerdurePayloadConverter(CompositePayloadConverter):
    """Temporal's converters in their order (null, bytes, protobuf, JSON), with ours for JSON."""

    def __init__(self) -> None:
        super().__init__(*_CONVERTERS)


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
