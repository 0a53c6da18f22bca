"""The OpenAPI document: FastAPI's, with the answers of middleware and error handlers, which it cannot know."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI

from perdure.api.auth.authenticator import COOKIE
from perdure.api.auth.middleware import OPEN_PATHS

__all__ = ["DocumentedApi"]

_REFUSAL = {
    "title": "Refusal",
    "type": "object",
    "properties": {
        "type": {"type": "string", "title": "Type", "description": "Where the documentation tells of it"},
        "detail": {"type": "string", "title": "Detail"},
    },
    "required": ["type", "detail"],
}
_JSON: dict[str, Any] = {"application/json": {"schema": {"$ref": "#/components/schemas/Refusal"}}}
_TEXT: dict[str, Any] = {"text/plain": {"schema": {"type": "string"}}}
_INVALID: dict[str, Any] = {
    "application/json": {
        "schema": {
            "anyOf": [{"$ref": "#/components/schemas/HTTPValidationError"}, {"$ref": "#/components/schemas/Refusal"}]
        }
    }
}
_STREAM: dict[str, Any] = {"text/event-stream": {}}

_RETRY: dict[str, Any] = {
    "Retry-After": {"description": "Seconds after which to try again", "schema": {"type": "string"}}
}

_EVERYWHERE: dict[str, Any] = {
    "400": {"description": "A name, a message or a path that cannot be one", "content": _JSON},
    "403": {"description": "An origin, a host or a name that is not allowed", "content": _TEXT | _JSON},
    "408": {"description": "The request did not come in time; the connection is closed"},
    "500": {"description": "An internal error, or a run that failed", "content": _TEXT | _JSON},
}
_OF_SESSIONS: dict[str, Any] = {
    "404": {"description": "No such session, invocation or call; or another user's", "content": _JSON},
    "409": {"description": "What is there does not allow it", "content": _JSON},
    "413": {"description": "The body or a state is too large", "content": _JSON},
    "422": {"description": "A malformed request", "content": _INVALID},
    "429": {
        "description": "Too many of the session's messages wait for their turn",
        "headers": _RETRY,
        "content": _JSON,
    },
    "503": {"description": "No worker, or no Temporal, answers in time", "headers": _RETRY, "content": _JSON},
}
_UNKNOWN: dict[str, Any] = {
    "401": {
        "description": "No credential, or one that is not valid",
        "headers": {"WWW-Authenticate": {"schema": {"type": "string"}}},
        "content": _JSON,
    },
    "503": {"description": "A token cannot be checked: its issuer does not answer", "content": _JSON},
}
_SCHEMES: dict[str, Any] = {
    "credential": {"type": "http", "scheme": "bearer", "description": "An API key, or a token of the issuer"},
    "signIn": {"type": "apiKey", "in": "cookie", "name": COOKIE, "description": "A browser's, from /sign-in"},
}


class DocumentedApi(FastAPI):
    """An application whose document names every answer."""

    asks_for_credentials = False
    """Whether it lets in only who is known."""

    def openapi(self) -> dict[str, Any]:
        """Return the document."""
        if self.openapi_schema is None:
            self.openapi_schema = self._completed(super().openapi())
        return self.openapi_schema

    def _completed(self, document: dict[str, Any]) -> dict[str, Any]:
        components = document.setdefault("components", {})
        components.setdefault("schemas", {})["Refusal"] = _REFUSAL
        if self.asks_for_credentials:
            components["securitySchemes"] = _SCHEMES
            document["security"] = [{name: []} for name in _SCHEMES]
        for path, operations in document["paths"].items():
            for operation in operations.values():
                self._complete(path, operation)
        return document

    def _complete(self, path: str, operation: dict[str, Any]) -> None:
        answers: dict[str, Any] = operation["responses"]
        # FastAPI gives no type to what streams.
        answers.get("200", {}).setdefault("content", _STREAM)
        found = dict(_EVERYWHERE)
        if "{" in path or path.startswith("/v1/") or "requestBody" in operation:
            found |= _OF_SESSIONS
        if self.asks_for_credentials and path not in OPEN_PATHS:
            found = _UNKNOWN | found
        elif self.asks_for_credentials:
            operation["security"] = []
        for status, answer in found.items():
            if status == "422" or status not in answers:
                answers[status] = answer
