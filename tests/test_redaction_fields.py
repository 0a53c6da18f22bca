"""Of every model that travels, each field that holds an id, a name or encoded data is kept from the redact function."""

from __future__ import annotations

import json
import typing
from collections.abc import Iterator
from datetime import datetime, timedelta
from enum import Enum
from typing import Any, Literal, cast

import pytest
from pydantic import BaseModel
from temporalio.api.common.v1 import Payload

from perdure.journal import entries as journal
from perdure.journal import tool_output
from perdure.journal.packing import unpack
from perdure.messages import claims, effects, rollout, stretches
from perdure.messages import kept_results as result_messages
from perdure.messages import large_requests as sent_ahead
from perdure.messages import session as messages
from perdure.messages import shared_state as state_messages
from perdure.messages.session import JournalSlice, SessionInput
from perdure.plan.nodes import Plan
from perdure.redaction import RedactingCodec
from perdure.temporal.payloads import data_converter
from tests.journal.test_entries import ONE_OF_EACH
from tests.temporal.test_payloads import OUTPUT, SAMPLES

MODULES = (
    messages,
    effects,
    stretches,
    sent_ahead,
    state_messages,
    claims,
    result_messages,
    rollout,
    tool_output,
    journal,
)

FREE = frozenset(
    {
        *(
            "args",
            "callback_args",
            "kwargs",
            "response",
            "result",
            "payload",
            "state",
            "delta",
            "state_delta",
            "stateDelta",
            "shared",
        ),
        *("metadata", "customMetadata", "partMetadata", "cacheMetadata", "agentState", "setModelResponse"),
        *("logprobsResult", "requestedAuthConfigs", "renderUiWidgets"),
    }
)
"""What users, models and tools say, in any form; `args` of a claim are a digest."""

SAID = frozenset(
    {
        *(
            "text",
            "message",
            "cause",
            "reason",
            "hint",
            "errorMessage",
            "transferReason",
            "compaction",
            "output",
            "code",
        ),
        "task_result",
        *("displayName", "fileUri", "stringValue", "nodeInfo", "goAway", "interactionStatus", "turnCompleteReason"),
        *(
            "liveSessionResumptionUpdate",
            "voiceActivity",
            "startOffset",
            "endOffset",
            "word",
            "speaker",
            "speakerLabel",
        ),
        *("style", "visibleCells", "title", "uri", "license", "domain", "documentName", "fileSearchStore", "duration"),
        *("flagContentUri", "googleMapsUri", "imageUri", "photoUri", "sourceUri", "review", "renderedContent"),
        *("imageSearchQueries", "webSearchQueries", "retrievalQueries", "relativePublishTimeDescription"),
    }
)
"""Fields whose texts nothing is found by. A new field stands here, or among those that redaction keeps."""

NAMED = frozenset({"artifactDelta", "requestedToolConfirmations"})
"""Objects whose keys are names."""

MORE: tuple[BaseModel, ...] = (
    claims.Claim(key="e-1/a", start="f", tool="pay", args="0" * 16, at=1.5, token="t", verdict="lost", lost="e-1/b"),
    claims.ClaimInput(
        claim=claims.Claim(key="k", tool="pay", args="a" * 16, at=1.5, token="t"), run_id="r", known=("a", "b")
    ),
    claims.ClaimResult(verdict="started", key="k"),
    claims.ClaimsInput(runs=("r",), lost=("k",)),
    result_messages.KeepResultInput(tool="t", idempotency_key="e-1/a", output=OUTPUT, length=3),
    JournalSlice(offset=0, entries=ONE_OF_EACH),
    messages.ModelInput(agent="a", invocation_id="i", call_index=1, begun_after="uuid", journal=JournalSlice(offset=0)),
    messages.ToolInput(
        agent="a", tool="t", function_call_id="c", invocation_id="i", key_salt="salt", known=3, again="answer"
    ),
)


def _types(hint: Any) -> Iterator[Any]:
    if typing.get_origin(hint) is Literal:
        yield hint
    elif (parts := typing.get_args(hint)) and hasattr(hint, "__metadata__"):
        yield from _types(parts[0])
    elif parts:
        for part in parts:
            yield from _types(part)
    else:
        yield hint


def _texts(model: type[BaseModel], seen: set[type[BaseModel]]) -> Iterator[tuple[str, bool, str]]:
    """Yield the fields that are texts in JSON, within others too: name, whether any text may stand there, model."""
    if model in seen:
        return
    seen.add(model)
    hints = typing.get_type_hints(model)
    for name, field in model.model_fields.items():
        key = field.serialization_alias or field.alias or name
        if key in FREE or key in NAMED:
            continue
        for kind in _types(hints.get(name, field.annotation)):
            if not isinstance(kind, type) or not issubclass(kind, BaseModel):
                if (any_text := _takes_any_text(kind)) is not None:
                    yield key, any_text, model.__name__
            elif kind is not Plan:
                yield from _texts(kind, seen)


def _takes_any_text(kind: Any) -> bool | None:
    """Return whether a field of a type takes any text, or only some; `None` if it is no text in JSON."""
    if kind is str or kind is Any:
        return True
    if typing.get_origin(kind) is Literal:
        return False if any(isinstance(value, str) for value in typing.get_args(kind)) else None
    return False if isinstance(kind, type) and issubclass(kind, (Enum, bytes, timedelta, datetime)) else None


async def _redacted(payload: Payload) -> Payload:
    (told,) = await RedactingCodec(lambda _: "x").encode([payload])
    return told


async def test_each_field_is_either_said_or_kept() -> None:
    defined = [
        value
        for module in MODULES
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, BaseModel) and value.__module__ == module.__name__
    ]
    assert len(defined) > 60
    seen: set[type[BaseModel]] = set()
    found = [text for model in defined for text in _texts(model, seen)]
    assert len(found) > 150
    for key, is_free_text, model in found:
        plain = Payload(metadata={"encoding": b"json/plain"}, data=json.dumps({key: "a text"}).encode())
        kept = json.loads((await _redacted(plain)).data)[key] == "a text"
        where = f"{model}.{key}"
        if key in SAID:
            assert not kept, f"{where} is kept, and is said"
            assert is_free_text, f"{where} is said, and takes no other text"
        else:
            assert kept, f"say in SAID here, or in _KEPT of perdure/redaction.py, what {where} is"


def _changed(before: Any, after: Any, key: str = "") -> Iterator[str]:
    if isinstance(before, dict):
        fields, others = cast(dict[str, Any], before), cast(dict[str, Any], after)
        assert fields.keys() == others.keys()
        for name, value in fields.items():
            if name not in FREE:
                yield from _changed(value, others[name], name)
    elif isinstance(before, list):
        for one, other in zip(cast(list[Any], before), cast(list[Any], after), strict=True):
            yield from _changed(one, other, key)
    elif before != after:
        yield key


@pytest.mark.parametrize("message", [*SAMPLES, *MORE], ids=lambda message: type(message).__name__)
async def test_a_message_of_which_no_text_is_left_keeps_its_ids(message: BaseModel) -> None:
    (payload,) = await data_converter.encode([message])
    told = await _redacted(payload)
    assert set(_changed(json.loads(payload.data), json.loads(told.data))) <= SAID
    (back,) = await data_converter.decode([told], [type(message)])
    assert type(back) is type(message)
    if isinstance(message, SessionInput):
        assert isinstance(back, SessionInput)
        assert unpack(back.journal or "") == unpack(message.journal or "")
    if isinstance(message, claims.Claim):
        assert back == message


async def test_a_name_by_itself_is_kept_and_a_text_is_not() -> None:
    """The signal that brings a request has its name as an argument, and a memo has a run's id."""
    name = "0b5d2c1e-7f7a-4a55-9d0e-0123456789ab"
    for value, kept in ((name, True), (f"{name} ", False), ("a text", False), ({"args": name}, False)):
        (payload,) = await data_converter.encode([value])
        assert ((await _redacted(payload)) == payload) is kept
