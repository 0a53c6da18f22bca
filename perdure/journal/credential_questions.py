"""Questions for a credential: `adk_request_credential`, a long-running call that names the tool call it is for. Pure.

ADK: `auth/auth_preprocessor.py`, `auth/auth_tool.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

from pydantic_core import from_json

from perdure.errors import InvalidMessage
from perdure.journal.events import REQUEST_CREDENTIAL, Event
from perdure.plan.contents import types

TOOLSET = "_adk_toolset_auth_"
"""Begins what a question names that is for a toolset: ADK asks before the tools are listed, so there is no call."""

NODE = "wf_auth:"
"""Begins the id of a question of a graph's node; its path follows. ADK: `workflow/utils/_workflow_hitl_utils.py`."""

AUTH_TYPES = frozenset({"apiKey", "http", "oauth2", "openIdConnect", "serviceAccount"})
"""ADK: `AuthCredentialTypes`."""

_EXPECTED = (
    "a credential is answered with the auth config of the question, completed by exchangedAuthCredential: an object"
    f" with an authType, one of {', '.join(sorted(AUTH_TYPES))}, and what belongs to it; null, if there is none"
)


def is_credential_request(event: Event) -> bool:
    """Return whether an event asks for credentials; a model that makes such a call by itself asks for none."""
    return any(_asks(event, call) for call in event.get_function_calls())


def _asks(event: Event, call: types.FunctionCall) -> bool:
    return call.name == REQUEST_CREDENTIAL and call.id in (event.long_running_tool_ids or ())


def credential_requests(events: Iterable[Event]) -> list[types.FunctionCall]:
    """Return the questions for credentials in events, in order."""
    return [call for event in events for call in event.get_function_calls() if _asks(event, call)]


def asking_call(request: types.FunctionCall) -> str:
    """Return the id of the tool call that a question for a credential is for; empty if it is for a toolset."""
    call_id = str((request.args or {}).get("functionCallId", ""))
    return "" if call_id.startswith(TOOLSET) else call_id


def needed_by(request: types.FunctionCall, calling: Event | None) -> str:
    """Return the name of the tool, or of the toolset's class, that a question for a credential is for.

    Args:
        request: The question.
        calling: The event that holds the tool's call.
    """
    call_id = str((request.args or {}).get("functionCallId", ""))
    calls = calling.get_function_calls() if calling is not None else []
    return next((call.name or "" for call in calls if call.id == call_id), call_id.removeprefix(TOOLSET))


def credential_targets(requests: Iterable[Event], responses: Iterable[Event]) -> dict[str, tuple[str, ...]]:
    """Return, by the id of each question for a credential, the ids of the tool calls that run again with the answer.

    Those are the call that it is for, and others of the same answer of a model that need the same credential and have
    no question of their own: ADK 2 asks once for all of them. A toolset's question has none.

    Args:
        requests: Events, of which those that ask for credentials count.
        responses: The responses of the calls, in which they say what they need.
    """
    asked = credential_requests(requests)
    own = {asking_call(request) for request in asked}
    needed = {
        call_id: _key(config) for event in responses for call_id, config in event.actions.requested_auth_configs.items()
    }
    return {
        request.id or "": tuple(
            call_id
            for call_id in dict.fromkeys((asking_call(request), *needed))
            if call_id == asking_call(request) or (call_id not in own and needed[call_id] == _key_of(request))
        )
        if asking_call(request)
        else ()
        for request in asked
    }


def _key_of(request: types.FunctionCall) -> str | None:
    return _key((request.args or {}).get("authConfig"))


def _key(config: Any) -> str | None:
    """Return the key under which a credential is kept, from an auth config as JSON."""
    return cast("dict[str, Any]", config).get("credentialKey") if isinstance(config, dict) else None


def example_credential(args: Mapping[str, Any]) -> dict[str, Any]:
    """Return a credential of the form that a question with these arguments takes."""
    scheme = scheme_of(args)
    match scheme.get("type"):
        case "apiKey":
            return {"authType": "apiKey", "apiKey": "…"}
        case "http":
            basic = {"username": "…", "password": "…"}
            given = basic if scheme.get("scheme") == "basic" else {"token": "…"}
            return {"authType": "http", "http": {"scheme": scheme.get("scheme", "bearer"), "credentials": given}}
        case "openIdConnect":
            return {"authType": "openIdConnect", "oauth2": {"authResponseUri": "…"}}
        case _:
            return {"authType": "oauth2", "oauth2": {"authResponseUri": "…"}}


def scheme_of(args: Mapping[str, Any]) -> dict[str, Any]:
    """Return the auth scheme in a question's arguments; empty if they hold none."""
    return _object(_object(args.get("authConfig")).get("authScheme"))


def exchanged_of(args: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a question's arguments hold of the credential already: of OAuth 2, where to sign in."""
    return _object(_object(args.get("authConfig")).get("exchangedAuthCredential"))


def _object(value: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def is_credential(fields: Mapping[str, Any]) -> bool:
    """Return whether an object of JSON is what ADK calls a credential: it has an `authType` that ADK knows."""
    return any(isinstance(kind := fields.get(key), str) and kind in AUTH_TYPES for key in ("authType", "auth_type"))


def unwrapped(call_id: str | None, response: dict[str, Any]) -> dict[str, Any]:
    """Return an answer, with the credential that ADK takes under `result` from whom a graph's node asks: a key as well.

    ADK: `process_auth_resume` of the same module.
    """
    if not (call_id or "").startswith(NODE) or set(response) != {"result"}:
        return response
    match response["result"]:
        case dict():
            return cast("dict[str, Any]", response["result"])
        case bool():
            return response
        case str() | int() | float() as key:
            return {"authType": "apiKey", "apiKey": str(key)}
        case _:
            return response


def parse_credential(response: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the credential in a person's answer, as JSON; `None` if they give none.

    ADK's web page wraps the answer as text under `response`. It is ADK's auth config, or the credential alone.

    Raises:
        InvalidMessage: The answer holds no credential; the message never quotes it.
    """
    data: Any = response
    wrapped = response.get("response")
    if set(response) == {"response"} and isinstance(wrapped, str):
        try:
            data = from_json(wrapped)
        except ValueError:
            raise InvalidMessage(_EXPECTED) from None
    if not isinstance(data, dict):
        raise InvalidMessage(_EXPECTED)
    answer = cast("dict[str, Any]", data)
    credential: Any = answer
    for name in ("exchangedAuthCredential", "exchanged_auth_credential"):
        if name in answer:
            credential = answer[name]
            if credential is None:
                return None
    if not isinstance(credential, dict):
        raise InvalidMessage(_EXPECTED)
    given = cast("dict[str, Any]", credential)
    if not is_credential(given):
        raise InvalidMessage(_EXPECTED)
    return given
