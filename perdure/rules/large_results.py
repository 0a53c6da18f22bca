"""Shortens results that no log takes whole, and picks those of several that are too much together. Pure."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Literal, Protocol

from pydantic_core import to_json

from perdure.journal.compact_json import payload_size
from perdure.journal.entries import MAX_EVENT_BYTES, ToolOutput
from perdure.journal.events import Event, EventActions
from perdure.plan.contents import types
from perdure.rules.tool_responses import confirmation_request, requested_confirmation, response_event, told_beside

MAX_RESULT_BYTES = MAX_EVENT_BYTES - 50_000
"""What a tool may return, with the state that it writes, and what a model may answer, a user send or answer, as JSON:
the log holds it in an event, which has some things beside it."""

BEGINNING_LENGTH = 4_000
"""Characters that the model gets of a result that is too large."""

_LEAST_LENGTH = 100
_CHARACTER_BYTES = 6
"""What a character takes at the most, as JSON."""

_AROUND_BYTES = 600
"""What stands around a beginning."""

_ENVELOPE_BYTES = 2_000
"""What an event has beside its content and actions: ids, time, author."""

_SURELY_FITS = MAX_EVENT_BYTES // 2
"""So much leaves room for all that an event may have beside it."""

_RESPONSE_BYTES = 300
"""What a response has beside its call's id and name, and what the tool returned."""

NO_STORE = "the rest was not kept, since this app has no place for artifacts"

Remedy = Literal["shorten", "drop"]
"""`shorten` a call's result, or `drop` what it does beside it."""


def as_text(result: Any) -> str:
    """Return a result as it is kept and counted: a text as it is, anything else as JSON."""
    return result if isinstance(result, str) else to_json(result).decode()


def in_words(size: int) -> str:
    """Return a size in bytes as people read it."""
    return f"{size / 1e6:.2f} MB" if size >= 1e5 else f"{size / 1e3:.1f} kB"


def shortened(tool: str, output: ToolOutput, kept: str, length: int = BEGINNING_LENGTH) -> ToolOutput:
    """Return an output with the beginning of its result instead of the whole.

    Args:
        tool: The tool.
        output: What it gave.
        kept: What became of the rest, as a clause.
        length: Characters of the beginning.
    """
    text = as_text(output.result)
    size = len(text.encode())
    told = {
        "note": f"The result of {tool!r} has {in_words(size)}, which is too large to be shown whole: this is its"
        f" beginning, and {kept}.",
        "size": size,
        "beginning": text[:length],
    }
    return output.model_copy(update={"result": told})


def without_actions(tool: str, output: ToolOutput) -> ToolOutput:
    """Return an output without its large actions: the state that it writes, and its questions to a person."""
    left = output.actions.model_copy(update={"state_delta": {}, "requested_tool_confirmations": {}})
    if payload_size(left) > BEGINNING_LENGTH:
        left = EventActions()
    told = (
        f"Tool {tool!r} has run, but what it wrote into the state, or wanted to ask a person, was not kept: together"
        f" with what other tools did at once it is too large ({in_words(payload_size(output.actions))})."
    )
    return ToolOutput(result=told_beside(told, output.result), actions=left)


def beginning_length(calls: int) -> int:
    """Return the characters of a beginning, so that those of all calls of one answer fit together."""
    share = MAX_EVENT_BYTES // 2 // max(calls, 1) // _CHARACTER_BYTES
    return max(_LEAST_LENGTH, min(BEGINNING_LENGTH, share))


def too_large(
    calls: Sequence[types.FunctionCall],
    outputs: Mapping[str, ToolOutput],
    long_running: frozenset[str],
    around: Event,
    tried: Collection[tuple[str, Remedy]],
) -> list[tuple[types.FunctionCall, Remedy]]:
    """Return remedies for responses that no log takes together, the largest first; nothing if they fit.

    Args:
        calls: The calls of one model answer.
        outputs: What they gave, by call id.
        long_running: Ids of those that wait.
        around: The event without content: author, branch, invocation.
        tried: What has been done, which is not to be done again.
    """
    request = confirmation_request(calls, outputs, (f"adk-{call.id}".ljust(40) for call in calls))
    if request is None and _response_bytes_at_most(calls, outputs) + payload_size(around) <= _SURELY_FITS:
        return []
    room = MAX_EVENT_BYTES - _ENVELOPE_BYTES - payload_size(around)
    if request is not None and payload_size(request) > room:
        asking = [call for call in calls if requested_confirmation(call, outputs[call.id or ""]) is not None]
        parts = [part for part in _parts(asking, outputs) if part[2] == "drop"]
        return _chosen(asking, parts, tried, payload_size(request) - room, least=0)
    response = response_event(calls, outputs, long_running)
    excess = payload_size(response) - room if response is not None else 0
    least = beginning_length(len(calls)) * _CHARACTER_BYTES + _AROUND_BYTES
    return _chosen(calls, list(_parts(calls, outputs)), tried, excess, least=least)


def _response_bytes_at_most(calls: Sequence[types.FunctionCall], outputs: Mapping[str, ToolOutput]) -> int:
    """Return the bytes that the response event takes at the most, without making it."""
    names = sum(len(call.id or "") + len(call.name or "") for call in calls)
    told = sum(payload_size(outputs[call.id or ""]) for call in calls)
    return told + names * _CHARACTER_BYTES + len(calls) * _RESPONSE_BYTES


class Shorten(Protocol):
    """Returns an output with the beginning of its result."""

    async def __call__(self, call: types.FunctionCall, output: ToolOutput, length: int) -> ToolOutput:
        """Leave so many characters of it."""
        ...


async def fit(
    calls: Sequence[types.FunctionCall],
    outputs: dict[str, ToolOutput],
    long_running: frozenset[str],
    around: Event,
    shorten: Shorten,
    keep: Callable[[str, ToolOutput], None],
) -> None:
    """Shorten the largest of several outputs, in place, until one event takes them all.

    Args:
        calls: The calls of one model answer.
        outputs: What they gave, by call id.
        long_running: Ids of those that wait.
        around: As of `too_large`.
        shorten: Shortens one.
        keep: Keeps each by the call's id, before anything is awaited, since the tools have run; then what is left.
    """
    tried: set[tuple[str, Remedy]] = set()
    while remedies := too_large(calls, outputs, long_running, around, tried):
        for call in calls:
            if requested_confirmation(call, outputs[call.id or ""]) is None:
                keep(call.id or "", outputs[call.id or ""])
        tried |= {(call.id or "", remedy) for call, remedy in remedies}
        shorten_to = partial(shorten, length=beginning_length(len(calls)))
        made = await asyncio.gather(
            *(_remedied(call, outputs[call.id or ""], remedy, shorten_to) for call, remedy in remedies)
        )
        for (call, _), output in zip(remedies, made, strict=True):
            outputs[call.id or ""] = output
            keep(call.id or "", output)


async def _remedied(
    call: types.FunctionCall,
    output: ToolOutput,
    remedy: Remedy,
    shorten: Callable[[types.FunctionCall, ToolOutput], Awaitable[ToolOutput]],
) -> ToolOutput:
    return without_actions(call.name or "", output) if remedy == "drop" else await shorten(call, output)


_Part = tuple[int, int, Remedy]
"""Bytes of a part of an output, the place of its call, and what makes it small."""


def _parts(calls: Sequence[types.FunctionCall], outputs: Mapping[str, ToolOutput]) -> Iterator[_Part]:
    for place, call in enumerate(calls):
        output = outputs[call.id or ""]
        yield payload_size(ToolOutput(result=output.result)), place, "shorten"
        yield payload_size(output.actions), place, "drop"


def _chosen(
    calls: Sequence[types.FunctionCall],
    parts: Sequence[_Part],
    tried: Collection[tuple[str, Remedy]],
    excess: int,
    *,
    least: int,
) -> list[tuple[types.FunctionCall, Remedy]]:
    """Return the largest parts, as many as take the excess away; what is small already does not help."""
    chosen: dict[int, Remedy] = {}
    for size, place, remedy in sorted(parts, key=lambda part: (-part[0], part[1], part[2])):
        if excess <= 0:
            break
        left = least if remedy == "shorten" else 0
        if size <= left or place in chosen or (calls[place].id or "", remedy) in tried:
            continue
        chosen[place] = remedy
        excess -= size - left
    return [(calls[place], remedy) for place, remedy in chosen.items()]
