"""Redacts every text before it enters a history, and every log line, by a function of the operator's.

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
        *("args", "kwargs", "response", "result", "payload", "state", "delta", "state_delta", "temp", "shared"),
        *("custom_metadata", "metadata", "part_metadata", "cache_metadata", "agent_state", "set_model_response"),
        *("logprobs_result", "requested_auth_configs", "render_ui_widgets"),
    }
)
"""Fields that hold what users, models and tools say, in any form: no field below is one of Perdure's own."""

_KEPT = frozenset(
    {
        *("id", "ids", "kind", "name", "agent", "author", "branch", "tool", "step", "role", "status", "plan", "digest"),
        *("app_name", "transfer_to_agent", "route", "isolation_scope", "model_version", "language_code"),
        *("key", "key_salt", "token", "start", "known", "runs", "lost", "again", "written", "verdict", "outcome"),
        *("arguments", "next_run", "interrupted", "pause", "run", "sub_run", "after", "begun_after"),
        *("sent_ahead", "which", "begun_with", "scope", "about", "requests", "authorized"),
        *("journal", "packed", "data", "mime_type", "thought_signature", "sdk_blob", "encoded_polyline"),
        *("finish_reason", "error_code", "modality", "traffic_type", "language", "level", "media_processing"),
        *("path", "output_for", "output_branch", "done", "end", "written_over", "error_type", "took"),
        *("content_layers", "scheduling", "tool_type", "null_value", "json_path", "google_maps_widget_context_token"),
    }
)
"""Fields outside of those that are names, ids, encoded, or no text, by their names in Python."""

_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")

_UUID = re.compile(r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}")

_DIGEST = re.compile(r"[0-9a-f]{16}")

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

    def redacted(self, value: Any) -> Any:
        """Return what a user, a model or a tool said, as a text or as plain data, redacted."""
        return self._walk(value, "", "", free=True)

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
        return {name: self._walk(item, name, key, free=free or _is_free(name, item)) for name, item in fields.items()}


def _plain(key: str) -> str:
    return _HUMP.sub("_", key).lower()


def _is_free(key: str, value: Any) -> bool:
    # A claim has a digest in the place of arguments.
    return _plain(key) in _FREE and not (key == "args" and isinstance(value, str) and _DIGEST.fullmatch(value))


def _stays(text: str, key: str, above: str, *, free: bool) -> bool:
    if _OWN_ID.fullmatch(text):
        return True
    if free:
        # Calls that ask about another call name it, by the id that its model gave it; a checkpoint names an agent.
        return (above == "originalFunctionCall" and key in ("id", "name")) or (
            _plain(above) == "agent_state" and key == "current_sub_agent"
        )
    if not key:
        # By itself: the name of a request that is sent ahead, and the run in a memo.
        return bool(_UUID.fullmatch(text))
    name = _plain(key)
    return name in _KEPT or name.endswith(("_id", "_ids", "_key", "_digest")) or name == "args"


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
