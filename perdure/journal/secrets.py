"""Finds the secrets of credentials in JSON: takes them out, puts them back, or shows the JSON without. Pure.

What ADK calls a credential is an object with an `authType`. ADK: `auth/auth_credential.py`, whose names of secret
fields these are.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

from perdure.journal.credential_questions import is_credential
from perdure.journal.events import REQUEST_CREDENTIAL

REFERENCE = "perdure-secret:"
"""Begins what stands in the place of a secret; its name in the store follows."""

_SECRET = frozenset(
    {
        *("password", "token", "additionalHeaders", "additional_headers", "clientSecret", "client_secret"),
        *("authResponseUri", "auth_response_uri", "authCode", "auth_code", "accessToken", "access_token"),
        *("refreshToken", "refresh_token", "idToken", "id_token", "codeVerifier", "code_verifier"),
        *("privateKeyId", "private_key_id", "privateKey", "private_key", "apiKey", "api_key"),
    }
)
_CREDENTIALS = frozenset({"rawAuthCredential", "raw_auth_credential"}) | {
    *("exchangedAuthCredential", "exchanged_auth_credential", "requestedAuthConfigs", "requested_auth_configs")
}

SealOne = Callable[[str], str]
"""Takes a secret, as JSON, and returns what stands for it."""


def sealed(value: Any, seal: SealOne) -> Any:
    """Return JSON with each secret of its credentials replaced; what is a reference already stays."""
    return _mapped(value, lambda secret: secret if _is_reference(secret) else seal(json.dumps(secret)), secret=False)


def opened(value: Any, secrets: Mapping[str, str]) -> Any:
    """Return JSON with the secrets put back, as JSON by their names; a reference that is not among them stays."""

    def open_one(found: Any) -> Any:
        secret = secrets.get(found.removeprefix(REFERENCE)) if _is_reference(found) else None
        return found if secret is None else json.loads(secret)

    return _mapped(value, open_one, secret=False)


def references(value: Any) -> set[str]:
    """Return the names of the secrets that credentials in JSON refer to."""
    found: set[str] = set()

    def note(secret: Any) -> Any:
        if _is_reference(secret):
            found.add(secret.removeprefix(REFERENCE))
        return secret

    _mapped(value, note, secret=False)
    return found


def holds_credentials(value: Any) -> bool:
    """Return whether JSON has a secret of a credential in it, or a reference to one."""
    found: list[Any] = []
    _mapped(value, found.append, secret=False)
    return bool(found)


def _is_reference(value: Any) -> bool:
    return isinstance(value, str) and value.startswith(REFERENCE)


def _mapped(value: Any, change: Callable[[Any], Any], *, secret: bool) -> Any:
    if isinstance(value, list):
        return [_mapped(item, change, secret=secret) for item in cast("list[Any]", value)]
    if not isinstance(value, dict):
        return value
    fields = cast("dict[str, Any]", value)
    secret = secret or is_credential(fields)
    return {
        key: change(item) if secret and key in _SECRET and item is not None else _mapped(item, change, secret=secret)
        for key, item in fields.items()
    }


def redacted(value: Any) -> Any:
    """Return JSON without the secrets of credentials, as ADK 2 shows events and sessions.

    ADK: `auth/auth_credential.py`, `_redact_credential_secrets`.
    """
    if isinstance(value, list):
        return [redacted(item) for item in cast("list[Any]", value)]
    if not isinstance(value, dict):
        return value
    fields = cast("dict[str, Any]", value)
    if is_credential(fields):
        return _without_secrets(fields)
    return dict(_shown(fields))


def redacted_args(name: str | None, args: dict[str, Any]) -> dict[str, Any]:
    """Return a call's arguments without secrets, if it asks for a credential."""
    return cast("dict[str, Any]", _without_secrets(args)) if name == REQUEST_CREDENTIAL else args


def _shown(fields: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    asks = fields.get("name") == REQUEST_CREDENTIAL
    for key, item in fields.items():
        bare = key in _CREDENTIALS or (asks and key in ("args", "response"))
        yield key, _without_secrets(item) if bare else redacted(item)


def _without_secrets(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_secrets(item) for item in cast("list[Any]", value)]
    if not isinstance(value, dict):
        return value
    fields = cast("dict[str, Any]", value)
    return {key: _without_secrets(item) for key, item in fields.items() if key not in _SECRET}
