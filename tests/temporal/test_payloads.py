"""Every value that crosses a process border comes back as it was, from JSON that a person can read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from google.genai import types
from pydantic import BaseModel
from temporalio.api.common.v1 import Payload
from temporalio.client import Client
from temporalio.common import RawValue
from temporalio.converter import DataConverter, PayloadCodec

from perdure.journal.entries import EventLogged, Failure, InvocationSettled, PlanLoaded, SessionCreated, ToolKept
from perdure.journal.events import Event, EventActions, ToolConfirmation
from perdure.journal.open_calls import PendingCall
from perdure.journal.packing import pack, unpack
from perdure.journal.tool_output import RunTimes, ToolOutput
from perdure.messages import large_requests as sent_ahead
from perdure.messages import session as messages
from perdure.messages import shared_state as state_messages
from perdure.messages.callbacks import CallbackInput
from perdure.messages.effects import Effect, EffectsPage
from perdure.messages.rollout import Rollout
from perdure.messages.session import InvocationView, JournalSlice
from perdure.plan.nodes import LlmNode, Plan, SequentialNode, ToolOptions, ToolPlan
from perdure.temporal.payloads import adapt, data_converter

AWKWARD: dict[str, Any] = {
    "none": None,
    "list": [None, {"deep": None}],
    "big": 2**80,
    "negative": -(2**63),
    "float": 0.1,
    "text": 'Grüße 🛫 \x00 \u2028 \\ "',
    "true": True,
    "": {},
}
SIGNATURE = bytes(range(256))

CONTENT = types.Content(
    role="model",
    parts=[
        types.Part(text="thinking", thought=True, thought_signature=SIGNATURE),
        types.Part(function_call=types.FunctionCall(id="adk-1", name="search", args=AWKWARD)),
        types.Part(function_response=types.FunctionResponse(id="adk-1", name="search", response=AWKWARD)),
        types.Part(inline_data=types.Blob(mime_type="image/png", data=b"\x89PNG\xff\x00")),
    ],
)
EVENT = Event.model_validate(
    {
        "id": "1",
        "timestamp": 1.5,
        "author": "picker",
        "invocationId": "e-1",
        "branch": "fan.picker",
        "content": CONTENT,
        "actions": {"stateDelta": AWKWARD, "agentState": {}, "actionOfALaterVersion": {"x": None}},
        "longRunningToolIds": ["adk-1"],
        "fieldOfALaterVersion": {"kept": [None, 1]},
        "customMetadata": AWKWARD,
    }
)
PLAN = Plan(
    app="travel",
    resumable=True,
    root=SequentialNode(
        name="root",
        sub_agents=(
            LlmNode(
                name="picker",
                model="scripted",
                tools=(
                    ToolPlan(
                        name="search",
                        declaration=types.FunctionDeclaration(name="search", description="Find {it}."),
                        options=ToolOptions(timeout=timedelta(seconds=1.5), non_retryable=("ValueError",)),
                    ),
                ),
                generate_content_config={"temperature": 0.0, "stopSequences": []},
            ),
        ),
    ),
)
CALL = PendingCall(id="adk-1", name="search", args=AWKWARD, agent="picker", invocation_id="e-1", since=1.5)
INVOCATION = InvocationView(
    id="e-1",
    status="failed",
    agent="picker",
    failures=(Failure(agent="picker", step="model", cause="no"),),
    pending=(CALL,),
    plan=PLAN.digest,
    resumable=True,
)
OUTPUT = ToolOutput(
    result=AWKWARD,
    actions=EventActions(
        state_delta={"temp:x": None}, requested_tool_confirmations={"adk-1": ToolConfirmation(payload=AWKWARD)}
    ),
)
ENTRIES = (
    SessionCreated(state=AWKWARD),
    PlanLoaded(plan=PLAN),
    EventLogged(event=EVENT, hidden=True),
    ToolKept(invocation_id="e-1", call_id="adk-1", output=OUTPUT),
)
EFFECT = Effect(
    call_id="adk-1",
    tool="book",
    agent="clerk",
    invocation_id="e-1",
    idempotency_key="e-1/adk-1",
    called=1.5,
    outcome="done",
)
REFERENCE = messages.JournalReference(run_id="r", length=4)
SLICE = JournalSlice(offset=3, entries=ENTRIES)

SAMPLES: list[BaseModel] = [
    messages.SessionInput(
        state=AWKWARD,
        journal=pack(ENTRIES),
        stopped=(InvocationSettled(invocation_id="e-1", status="stopped", reason="späť", timestamp=1.5),),
        trial=messages.Trial(steps_per_run=1, reenter=True),
    ),
    messages.Trial(steps_per_run=1, dead_after=1.5),
    messages.MessageInput(content=CONTENT, state_delta=AWKWARD, request_id="r"),
    messages.AnswerInput(content=CONTENT, invocation_id="e-1", metadata=AWKWARD),
    messages.InvocationInput(invocation_id="e-1", reason="späť", request_id="r"),
    CALL,
    INVOCATION,
    messages.InvocationResult(invocation=INVOCATION, offset=7),
    messages.PageInput(since=3, invocation_id="e-1"),
    messages.EventsPage(events=(EVENT,), total=1, status="failed", invocation=INVOCATION),
    messages.JournalPage(packed=pack(ENTRIES), total=4),
    messages.SessionView(
        app_name="travel", user_id="a/b", id="ß", state=AWKWARD, status="idle", invocations=(INVOCATION,)
    ),
    messages.PendingView(calls=(CALL,)),
    EFFECT,
    EffectsPage(effects=(EFFECT,), total=1),
    REFERENCE,
    messages.LoadJournalInput(journal=REFERENCE, since=2),
    messages.PlanInput(digest=PLAN.digest),
    messages.PlanView(plan=PLAN),
    Rollout(attempts=3, pause=timedelta(seconds=2)),
    messages.LoadPlanInput(user_id="u", known=PLAN.digest),
    messages.LoadPlanOutput(digest=PLAN.digest, plan=PLAN, shared={"user:x": None}, search_attributes=True),
    state_messages.ShareStateInput(user_id="u", write_id="1", delta=AWKWARD),
    state_messages.StateInput(state=AWKWARD, written=("1", "2")),
    state_messages.StateWrite(write_id="1", delta=AWKWARD),
    state_messages.StateView(state=AWKWARD),
    state_messages.StateChangeInput(state_delta=AWKWARD, request_id="r"),
    state_messages.StateChangeResult(event=EVENT),
    sent_ahead.SentAhead(sent_ahead="r"),
    SLICE,
    messages.ModelInput(agent="picker", invocation_id="e-1", plan=PLAN.digest, call_index=2, journal=SLICE),
    messages.ModelOutput(event=EVENT),
    messages.ModelOutput(step=messages.StepLog(events=(EVENT,), state=AWKWARD, ended=True)),
    messages.StepLog(events=(EVENT,), state=AWKWARD, ended=True),
    CallbackInput(which="before", agent="picker", invocation_id="e-1", journal=SLICE),
    CallbackInput(which="authorize", agent="picker", invocation_id="e-1", requests=("adk-1",), journal=SLICE),
    messages.ToolInput(
        agent="picker",
        tool="search",
        args=AWKWARD,
        function_call_id="adk-1",
        invocation_id="e-1",
        confirmation=ToolConfirmation(hint="sure?", confirmed=True, payload=AWKWARD),
        state=AWKWARD,
    ),
    messages.CodeInput(name="fetch", args=(None, AWKWARD), kwargs=AWKWARD),
    messages.CodeOutput(result=AWKWARD),
]


async def through_temporal(value: Any, hint: Any = None) -> Any:
    payloads = await data_converter.encode([value])
    return (await data_converter.decode(payloads, [hint] if hint else None))[0]


async def json_of(value: Any) -> Any:
    payload = (await data_converter.encode([value]))[0]
    assert payload.metadata["encoding"] == b"json/plain"
    return json.loads(payload.data)


@pytest.mark.parametrize("message", SAMPLES, ids=lambda message: type(message).__name__)
async def test_a_message_comes_back_as_it_was(message: BaseModel) -> None:
    assert await through_temporal(message, type(message)) == message


def test_every_message_has_a_sample() -> None:
    defined = {
        value
        for module in (messages, sent_ahead, state_messages)
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, BaseModel) and value.__module__ == module.__name__
        if not value.__name__.startswith("_")
    }
    assert defined - {type(sample) for sample in SAMPLES} == set()


async def test_events_keep_adks_names_and_lose_null_fields() -> None:
    event = (await json_of(messages.ModelOutput(event=EVENT)))["event"]
    assert event["invocationId"] == "e-1"
    assert event["fieldOfALaterVersion"] == {"kept": [None, 1]}
    assert "usageMetadata" not in event
    assert "transferToAgent" not in event["actions"]
    # A checkpoint of an empty state is not the same as no checkpoint.
    assert event["actions"]["agentState"] == {}


async def test_what_says_nothing_is_left_out_on_the_way_and_only_there() -> None:
    event = Event(content=types.Content(role="user"), actions=EventActions(state_delta={"x": None}))
    idle = Event(id="1", author="a", content=types.Content(role="user"))
    entries = (EventLogged(event=event), EventLogged(event=idle))
    part = await json_of(JournalSlice(offset=1, entries=entries))
    assert part == {
        "offset": 1,
        "entries": [
            {"kind": "event", "event": {"content": {"role": "user"}, "actions": {"stateDelta": {"x": None}}}},
            {"kind": "event", "event": {"content": {"role": "user"}, "id": "1", "author": "a"}},
        ],
    }
    assert await json_of(ToolOutput(result={}, times=RunTimes(started=1, ended=2))) == {
        "result": {},
        "times": {"started": 1.0, "ended": 2.0},
    }
    assert await through_temporal(entries[0], EventLogged) == entries[0]
    assert unpack(pack(entries)) == entries
    # Readers get ADK's JSON, whatever was sent before.
    assert json.loads(idle.to_json()) == {
        "content": {"role": "user"},
        "id": "1",
        "timestamp": 0.0,
        "author": "a",
        "invocationId": "",
        "actions": {
            "stateDelta": {},
            "artifactDelta": {},
            "requestedAuthConfigs": {},
            "requestedToolConfirmations": {},
        },
    }


async def test_what_says_something_is_never_left_out() -> None:
    actions = EventActions.model_validate({"agentState": {}, "actionOfALaterVersion": 1})
    output = ToolOutput(
        result=None, actions=actions, needs_confirmation=True, times=RunTimes(attempt=0, started=1, ended=2)
    )
    assert await json_of(output) == {
        "actions": {"agentState": {}, "actionOfALaterVersion": 1},
        "needs_confirmation": True,
        "times": {"attempt": 0, "started": 1.0, "ended": 2.0},
    }


async def test_null_inside_data_is_kept() -> None:
    assert (await json_of(state_messages.StateView(state=AWKWARD)))["state"] == AWKWARD
    assert await json_of(AWKWARD) == AWKWARD


async def test_a_thought_signature_survives_byte_for_byte() -> None:
    output: messages.ModelOutput = await through_temporal(messages.ModelOutput(event=EVENT), messages.ModelOutput)
    assert output.answer.parts[0].thought_signature == SIGNATURE


async def test_the_json_is_readable_text() -> None:
    payload = (await data_converter.encode([{"greeting": "Grüße"}]))[0]
    assert payload.data.decode() == '{"greeting":"Grüße"}'


async def test_raw_values_pass_untouched() -> None:
    payload = Payload(metadata={"encoding": b"json/plain"}, data=b'{"id": "adk-1", "response": null}')
    encoded = (await data_converter.encode([RawValue(payload)]))[0]
    assert encoded == payload
    decoded = (await data_converter.decode([encoded], [RawValue]))[0]
    assert isinstance(decoded, RawValue)
    assert decoded.payload == payload


async def test_no_value_and_bytes_use_temporals_own_encodings() -> None:
    nothing, data = await data_converter.encode([None, b"\xff"])
    assert nothing.metadata["encoding"] == b"binary/null"
    assert data.metadata["encoding"] == b"binary/plain"
    assert await through_temporal(None) is None
    assert await through_temporal(b"\xff", bytes) == b"\xff"


class ReversingCodec(PayloadCodec):
    """Stands for encryption: what is encoded is no JSON any more."""

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return [Payload(metadata={"encoding": b"reversed"}, data=p.SerializeToString()[::-1]) for p in payloads]

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return [Payload.FromString(payload.data[::-1]) for payload in payloads]


@pytest.mark.server
async def test_any_client_is_made_to_speak_perdures_payloads_and_keeps_its_codec(temporal_server: str) -> None:
    codec = ReversingCodec()
    plain = await Client.connect(
        temporal_server, data_converter=DataConverter(payload_codec=codec), namespace="default"
    )
    adapted = adapt(plain)
    assert adapted.namespace == plain.namespace
    assert adapted.data_converter.payload_codec is codec
    message = messages.ModelOutput(event=EVENT)
    (payload,) = await adapted.data_converter.encode([message])
    assert payload.metadata["encoding"] == b"reversed"
    assert await adapted.data_converter.decode([payload], [messages.ModelOutput]) == [message]
    assert await adapted.service_client.check_health()


@pytest.mark.server
async def test_a_client_that_speaks_them_already_is_taken_as_it_is(client: Client) -> None:
    assert adapt(client) is client
