"""Asks for a credential by a form, and shows where to sign in. Pure.

ADK: `auth/auth_tool.py`; its web page fills in the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from perdure.journal.credential_questions import exchanged_of, scheme_of
from perdure.journal.open_calls import PendingCall
from perdure.views.forms.fields import Form, form_of

_LINKS = ("https://", "http://")


def credential_form(call: PendingCall) -> Form | None:
    """Return the fields of the credential that a question asks for; `None` where only JSON can say it."""
    scheme = scheme_of(call.args)
    match scheme.get("type"):
        case "apiKey":
            return _form(apiKey=f"API key ({scheme.get('in') or scheme.get('in_')} {scheme.get('name')})")
        case "http" if scheme.get("scheme") == "basic":
            return _form(username="User name", password="Password")  # noqa: S106 -- a label
        case "http":
            return _form(token="Token")  # noqa: S106 -- a label
        case "oauth2" | "openIdConnect" if sign_in_link(call):
            return _form(authResponseUri="Address that the sign-in led to, as the browser shows it")
        case _:
            return None


def sign_in_link(call: PendingCall) -> str | None:
    """Return where to sign in for a credential, if the question says so: a web address."""
    uri = _oauth2(exchanged_of(call.args)).get("authUri")
    return uri if isinstance(uri, str) and uri.startswith(_LINKS) else None


def credential_answer(call: PendingCall, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the answer that fields were filled in with: ADK's auth config, completed."""
    scheme = scheme_of(call.args)
    credential: dict[str, Any]
    match scheme.get("type"):
        case "apiKey":
            credential = {"authType": "apiKey", **values}
        case "http":
            credential = {"authType": "http", "http": {"scheme": scheme.get("scheme"), "credentials": dict(values)}}
        case _:
            exchanged = exchanged_of(call.args)
            credential = {
                "authType": scheme.get("type"),
                **exchanged,
                "oauth2": {**_oauth2(exchanged), **values},
            }
    return {**cast("dict[str, Any]", call.args.get("authConfig") or {}), "exchangedAuthCredential": credential}


def _form(**labels: str) -> Form | None:
    properties = {name: {"type": "string", "title": label, "minLength": 1} for name, label in labels.items()}
    return form_of({"type": "object", "properties": properties, "required": list(labels)})


def _oauth2(credential: Mapping[str, Any]) -> dict[str, Any]:
    found: Any = credential.get("oauth2")
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}
