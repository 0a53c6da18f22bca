"""Packs journals as compressed text, part by part: what one payload carries, and what a workflow reads in one step."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Sequence

from pydantic import ValidationError

from perdure.errors import LogError
from perdure.journal.compact_json import briefly
from perdure.journal.entries import ENTRIES, MAX_PART_BYTES, MAX_PAYLOAD_BYTES, Entry, take

MAX_PART_ENTRIES = 1_000
"""What one part of a journal may hold: small entries take a workflow as long as large ones, and 2 s are a deadlock."""


_FAMILIAR = b"".join(
    (
        b'{"kind":"scope_began","tool_ran","started":,"ended":,"outcome":"done","attempts":1}'
        b'{"kind":"tool_started","invocation_id":"e-","call_id":"adk-","agent":"","tool":"","idempotency_key":"e-/adk-"}',
        b'{"kind":"run_began","callback_ran","which":"before","ids":["actions":{"escalate":true,"agentState":{',
        b'"current_sub_agent":"","times_looped":0}}},"hidden":true}',
        b'{"kind":"settled","invocation_id":"e-","status":"waiting","failures":[{"agent":"","step":"model","cause":"',
        b'{"kind":"answer","event":{"content":{"parts":[{"functionResponse":{"id":"adk-","name":"","response":{"',
        b'{"kind":"answer_logged","event_id":"","timestamp":179},{"kind":"state_changed","temp_state","delta":{"',
        b'{"kind":"message","event":{"content":{"parts":[{"text":""}],"role":"user"},"author":"user","invocationId":"e-"}}',
        b',{"kind":"started","invocation_id":"e-","agent":"","plan":"","timestamp":179},{"kind":"event","event":{"content":',
        b'{"parts":[{"text":""}],"role":"model"},"usageMetadata":{"promptTokenCount":,"candidatesTokenCount":,',
        b'"totalTokenCount":},"finishReason":"STOP","modelVersion":"","actions":{"stateDelta":{"","endOfAgent":true}}}',
        b',"branch":"","longRunningToolIds":["adk-"],"run":"","times":{"started":179,"ended":179}}},{"kind":"tool_kept",',
        b'"invocation_id":"e-","call_id":"adk-","output":{"result":{"kind":"model_called","agent":"","invocation_id":"e-"},',
        b'{"kind":"event","event":{"content":{"parts":[{"functionCall":{"id":"adk-","args":{"","name":""}}],"role":"model"},',
        b'"id":"","timestamp":179,"author":"","invocationId":"e-"}},{"kind":"event","event":{"content":{"parts":',
        b'[{"functionResponse":{"id":"adk-","name":"","response":{"result":"',
    )
)
"""What entries have in common, for zlib to refer to. It belongs to the format: to unpack takes what was packed with."""

_SMALL_BYTES = 64_000
"""Beyond this speed counts more than what is saved: packing is a step of a workflow, too."""


def dump_entries(entries: Sequence[Entry]) -> bytes:
    """Return the JSON of entries, fields that are `None` or say nothing left out."""
    with briefly():
        return ENTRIES.dump_json(tuple(entries), by_alias=True, exclude_none=True)


def pack(entries: Sequence[Entry]) -> str:
    """Return entries as compressed text, for a payload that carries a whole journal."""
    return pack_dumped(dump_entries(entries))


def pack_dumped(data: bytes) -> str:
    """Return the JSON of `dump_entries` as compressed text."""
    packer = zlib.compressobj(6 if len(data) <= _SMALL_BYTES else 1, zdict=_FAMILIAR)
    # Of the ways to write bytes as text the fastest.
    return base64.b64encode(packer.compress(data) + packer.flush()).decode()


def pack_whole(entries: Sequence[Entry]) -> str | None:
    """Return a whole journal, packed, or `None` if it is too large for one payload."""
    packed, count = pack_part(entries, 0)
    return packed if count == len(entries) and len(packed) <= MAX_PAYLOAD_BYTES else None


def pack_part(entries: Sequence[Entry], start: int, max_bytes: int | None = None) -> tuple[str, int]:
    """Return entries from `start` on, packed, and their number: one at least, and at most what one payload takes.

    Args:
        entries: A journal.
        start: Offset of the first entry.
        max_bytes: What they may have unpacked. Default: `MAX_PART_BYTES`.
    """
    start = max(start, 0)
    part = tuple(take(entries[: start + MAX_PART_ENTRIES], start, max_bytes or MAX_PART_BYTES))
    while True:
        packed = pack(part)
        if len(packed) <= MAX_PAYLOAD_BYTES or len(part) <= 1:
            return packed, len(part)
        part = part[: len(part) // 2]


def unpack(packed: str) -> tuple[Entry, ...]:
    """Return the entries that `pack` packed.

    Raises:
        LogError: The text is no packed journal.
    """
    try:
        unpacker = zlib.decompressobj(zdict=_FAMILIAR)
        data = unpacker.decompress(base64.b64decode(packed, validate=True))
        if not unpacker.eof:
            raise ValueError("its end is missing")
        return ENTRIES.validate_json(data)
    except (ValueError, zlib.error, ValidationError) as error:
        raise LogError(f"this is no packed journal: {error}") from error
