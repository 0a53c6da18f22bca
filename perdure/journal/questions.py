"""Questions that an agent asks a person about a call: may it run, and has it taken effect? Pure.

Both are long-running calls of their own, `adk_request_confirmation` and `perdure_reconcile`, which name the call that
they are about. ADK: `flows/llm_flows/request_confirmation.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import from_json

from perdure.errors import InvalidMessage
from perdure.journal.events import REQUEST_CONFIRMATION, REQUEST_RECONCILE, Event, ToolConfirmation, asked_about
from perdure.plan.contents import types

_EXPECTED = (
    'a call in doubt takes {"happened": true, "result": …} (it took effect; the model gets the result),'
    ' {"happened": false} (it did not; the model is told so), or {"run_again": true} (run it again)'
)


class Verdict(BaseModel):
    """A person's word on a call in doubt."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    happened: bool | None = None
    result: Any = None
    run_again: bool | None = None


def parse_verdict(response: Mapping[str, Any]) -> Verdict:
    """Return the verdict in an answer; ADK's web page wraps it as text under `response`.

    Raises:
        InvalidMessage: The answer does not say what happened; the message says what is expected.
    """
    data: Any = response
    wrapped = response.get("response")
    try:
        if set(response) == {"response"} and isinstance(wrapped, str):
            # Not `json.loads`: it takes half characters (lone surrogates), which no journal could hold.
            data = from_json(wrapped)
        verdict = Verdict.model_validate(data)
    except (ValueError, ValidationError) as error:
        raise InvalidMessage(_EXPECTED) from error
    given = verdict.model_fields_set
    if given not in ({"happened"}, {"happened", "result"}, {"run_again"}):
        raise InvalidMessage(_EXPECTED)
    if verdict.happened is None and verdict.run_again is not True:
        raise InvalidMessage(_EXPECTED)
    if verdict.happened is False and "result" in given:
        raise InvalidMessage(f"{_EXPECTED}; a call that did not happen has no result")
    return verdict


def lets_run_again(response: Mapping[str, Any]) -> bool:
    """Return whether an answer lets the call start again; a malformed one does not."""
    try:
        return parse_verdict(response).run_again is True
    except InvalidMessage:
        return False


def is_doubt_request(event: Event) -> bool:
    """Return whether an event asks about calls in doubt."""
    return any(_asks_doubt(event, call) for call in event.get_function_calls())


def last_request(requests: Iterable[Event], call_id: str) -> str | None:
    """Return the id of the newest request about a call, if there is one."""
    found: str | None = None
    for event in requests:
        for call in event.get_function_calls():
            if _asks_doubt(event, call) and target_of(call.args or {}) == call_id:
                found = call.id
    return found


def times_asked(events: Iterable[Event], call_id: str) -> int:
    """Return the number of questions about a call in doubt."""
    calls = (call for event in events for call in event.get_function_calls() if call.name == REQUEST_RECONCILE)
    return sum(target_of(call.args or {}) == call_id for call in calls)


def target_of(args: Mapping[str, Any]) -> str:
    """Return the id of the tool call that a request is about, from the request's arguments."""
    return str(asked_about(args).get("id", ""))


def _asks_doubt(event: Event, call: types.FunctionCall) -> bool:
    return call.name == REQUEST_RECONCILE and call.id in (event.long_running_tool_ids or ())


def is_confirmation_request(event: Event) -> bool:
    """Return whether an event asks for confirmations; a model that makes such a call by itself asks for none."""
    return any(_asks_confirmation(event, call) for call in event.get_function_calls())


def _asks_confirmation(event: Event, call: types.FunctionCall) -> bool:
    return call.name == REQUEST_CONFIRMATION and call.id in (event.long_running_tool_ids or ())


def confirmation_targets(requests: Iterable[Event]) -> dict[str, str]:
    """Return, by the id of each confirmation request, the id of the tool call that it asks about."""
    return {
        call.id or "": str(asked_about(call.args).get("id", ""))
        for request in requests
        for call in request.get_function_calls()
        if _asks_confirmation(request, call)
    }


def parse_confirmation(response: Mapping[str, Any]) -> ToolConfirmation:
    """Return the decision in a person's answer; ADK's web page wraps it as text under `response`.

    Raises:
        InvalidMessage: The answer does not say whether the call is confirmed.
    """
    data: Any = response
    wrapped = response.get("response")
    try:
        if "confirmed" not in response and isinstance(wrapped, str):
            # Not `json.loads`: it takes half characters (lone surrogates), which no journal could hold.
            data = from_json(wrapped)
        decision = ToolConfirmation.model_validate(data, strict=True)
    except (ValueError, ValidationError) as error:
        raise InvalidMessage('a confirmation takes {"confirmed": true} or {"confirmed": false}') from error
    if "confirmed" not in decision.model_fields_set:
        raise InvalidMessage('a confirmation takes {"confirmed": true} or {"confirmed": false}; "confirmed" is missing')
    return decision
