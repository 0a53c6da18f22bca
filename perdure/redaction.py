"""Has a function of the operator's see every text before it enters a history, and every log line.

It stands where payloads are encoded, so nothing has to think of it, and workflow code reads from history what was
redacted once: a replay sees the same. Names and ids stay as they are, or nothing would fit together any more.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Sequence
from typing import Any, cast

from temporalio.api.common.v1 import Payload
from temporalio.api.failure.v1 import Failure
from temporalio.converter import DataConverter, FailureConverter, PayloadCodec, PayloadConverter

from perdure.logs import get_logger

__all__ = ["WITHHELD", "Redact", "RedactingCodec", "redacting", "safely"]

Redact = Callable[[str], str]
"""Returns a text without what nobody should read. It is called in workers and clients, in any thread, on texts of any
size, also on those that it has seen before."""

WITHHELD = "(withheld: the redact function failed)"
"""What stands for a text that could not be redacted."""

_FREE = frozenset(
    {
        *("args", "kwargs", "response", "result", "payload", "state", "delta", "stateDelta", "state_delta"),
        *("customMetadata", "custom_metadata", "metadata", "agentState", "agent_state", "temp"),
    }
)
"""Fields that hold what users, models and tools say, in any form: no field below is one of Perdure's own."""

_KEPT = frozenset(
    {
        *("id", "ids", "kind", "name", "agent", "author", "branch", "tool", "step", "role", "status", "plan", "digest"),
        *(
            "packed",
            "data",
            "mimeType",
            "mime_type",
            "thoughtSignature",
            "thought_signature",
            "next_run",
            "interrupted",
        ),
        *("key", "token", "start", "known", "runs", "lost", "again", "written", "verdict", "outcome", "arguments"),
    }
)
"""Fields outside of those that are names, ids, or no text."""

_OWN_ID = re.compile(r"(?:(?:adk|e|p)-[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}/?){1,2}")

_log = get_logger("perdure.redaction")


def safely(redact: Redact) -> Redact:
    """Return a function that redacts, and withholds what the given one fails on."""

    def redacted(text: str) -> str:
        try:
            told = cast("object", redact(text))
        except Exception as error:
            # What it says may quote the text.
            _log.error("the redact function failed; a text is withheld", error=type(error).__name__)
            return WITHHELD
        if isinstance(told, str):
            return told
        _log.error("the redact function returned no text; a text is withheld", type=type(told).__name__)
        return WITHHELD

    return redacted


class RedactingCodec(PayloadCodec):
    """Redacts what is written as JSON, and hands it on to another codec, if there is one, which encrypts it."""

    def __init__(self, redact: Redact, behind: PayloadCodec | None = None) -> None:
        """Make a codec of a function that fails on nothing: see `safely`."""
        self._redact = redact
        self.behind = behind

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Redact, then encode."""
        told = [self._payload(payload) for payload in payloads]
        return told if self.behind is None else await self.behind.encode(told)

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Decode; what stands in a history is redacted."""
        return list(payloads) if self.behind is None else await self.behind.decode(payloads)

    def _payload(self, payload: Payload) -> Payload:
        if payload.metadata.get("encoding") != b"json/plain":
            return payload
        value = json.loads(payload.data)
        told = self._walk(value, "", "", free=False)
        if told == value:
            return payload
        data = json.dumps(told, ensure_ascii=False, separators=(",", ":")).encode(errors="surrogatepass")
        return Payload(metadata=payload.metadata, data=data)

    def _walk(self, value: Any, key: str, above: str, *, free: bool) -> Any:
        if isinstance(value, str):
            return value if _stays(value, key, above, free=free) else self._redact(value)
        if isinstance(value, list):
            return [self._walk(item, key, above, free=free) for item in cast("list[Any]", value)]
        if not isinstance(value, dict):
            return value
        fields = cast("dict[str, Any]", value)
        if not free and key == "plan":
            return fields
        return {name: self._walk(item, name, key, free=free or name in _FREE) for name, item in fields.items()}


def _stays(text: str, key: str, above: str, *, free: bool) -> bool:
    if free:
        # Calls that ask about another call name it, by the id that its model gave it.
        return bool(_OWN_ID.fullmatch(text)) or (above == "originalFunctionCall" and key in ("id", "name"))
    return key in _KEPT or key.endswith(("_id", "_ids", "_key", "Id", "Ids", "Key")) or bool(_OWN_ID.fullmatch(text))


def redacting(converter: DataConverter, redact: Redact) -> DataConverter:
    """Return a converter whose payloads and failures are redacted; one that does so already, as it is."""
    if isinstance(converter.payload_codec, RedactingCodec):
        return converter
    redact = safely(redact)
    return dataclasses.replace(
        converter,
        payload_codec=RedactingCodec(redact, converter.payload_codec),
        failure_converter_class=_failure_converter(converter.failure_converter_class, redact),
    )


def _failure_converter(base: type[FailureConverter], redact: Redact) -> type[FailureConverter]:
    class RedactingFailureConverter(FailureConverter):
        """Writes what an error says, and where it came from, redacted."""

        def __init__(self) -> None:
            self._behind = base()

        def to_failure(self, exception: BaseException, payload_converter: PayloadConverter, failure: Failure) -> None:
            self._behind.to_failure(exception, payload_converter, failure)
            _redact_failure(failure, redact)

        def from_failure(self, failure: Failure, payload_converter: PayloadConverter) -> BaseException:
            return self._behind.from_failure(failure, payload_converter)

    return RedactingFailureConverter


def _redact_failure(failure: Failure, redact: Redact) -> None:
    while True:
        failure.message = redact(failure.message) if failure.message else ""
        failure.stack_trace = redact(failure.stack_trace) if failure.stack_trace else ""
        if not failure.HasField("cause"):
            return
        failure = failure.cause
