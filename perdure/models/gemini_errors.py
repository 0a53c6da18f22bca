"""Converts errors between a worker and Gemini to `ModelError`; whether to retry is decided here and nowhere else.

No message holds a prompt, an answer or a key.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any, cast

from google.auth.exceptions import GoogleAuthError, TransportError
from google.genai.errors import APIError, UnknownApiResponseError
from pydantic import ValidationError

from perdure.errors import ModelError, error_text

_TRANSPORTS = frozenset({"httpx2", "httpx", "aiohttp"})
"""The libraries of which google-genai takes the one that is installed, so that none can be imported here."""

_MISCONFIGURED = frozenset({"UnsupportedProtocol", "InvalidURL", "LocalProtocolError"})
"""Their errors about a request that can never be sent, such as a base URL without a scheme."""

_RETRY_INFO = "type.googleapis.com/google.rpc.RetryInfo"
_MAX_MESSAGE = 1000

_CREDENTIALS = (
    "give the worker GOOGLE_API_KEY (or GEMINI_API_KEY), or for Vertex AI GOOGLE_GENAI_USE_VERTEXAI=true with "
    "GOOGLE_CLOUD_PROJECT and GOOGLE_CLOUD_LOCATION, and start it again"
)


def setup_error(model: str, error: Exception) -> ModelError:
    """Return the error for a client that could not be made: credentials are missing or contradictory."""
    retryable = isinstance(error, TransportError)
    return ModelError(f"model {model!r} has no usable credentials ({error}); {_CREDENTIALS}", retryable=retryable)


def to_model_error(model: str, error: Exception) -> ModelError:
    """Return the error of a failed call.

    Raises:
        Exception: The error itself, where it comes neither from the server nor from the way there.
    """
    where = f"model {model!r}"
    if isinstance(error, APIError):
        return _api_error(where, error)
    if isinstance(error, GoogleAuthError):
        retryable = isinstance(error, TransportError) or bool(getattr(error, "retryable", False))
        return ModelError(f"{where} could not be called: {error}; {_CREDENTIALS}", retryable=retryable)
    if isinstance(error, json.JSONDecodeError | UnknownApiResponseError):
        return ModelError(f"{where} answered with a body that is no JSON", retryable=True)
    if isinstance(error, ValidationError):
        fields = ", ".join(".".join(map(str, problem["loc"])) for problem in error.errors(include_input=False))
        return ModelError(f"{where}: google-genai cannot read or write these fields: {fields}", retryable=False)
    if type(error).__module__.partition(".")[0] in _TRANSPORTS:
        return _transport_error(where, error)
    if isinstance(error, ConnectionError | TimeoutError):
        return ModelError(f"{where} could not be reached: {error_text(error)}", retryable=True)
    if isinstance(error, ValueError) and not isinstance(error, UnicodeError):
        # google-genai's word for a setting that this API does not know.
        return ModelError(f"{where} could not be called: {error}", retryable=False)
    raise error


def _transport_error(where: str, error: Exception) -> ModelError:
    name = type(error).__name__
    if name in _MISCONFIGURED:
        # Its text may quote a header, and with it the key.
        return ModelError(f"{where} could not be called ({name}); check its base URL and the API key", retryable=False)
    return ModelError(f"{where}: the connection was lost or never came about ({error_text(error)})", retryable=True)


def _api_error(where: str, error: APIError) -> ModelError:
    code = int(error.code or 0)
    status = f" {error.status}" if error.status else ""
    said = str(error.message or "no message")[:_MAX_MESSAGE]
    remedy = f"; {_CREDENTIALS}" if code in (401, 403) else ""
    return ModelError(
        f"{where} answered HTTP {code}{status}: {said}{remedy}",
        retryable=code in (408, 429) or code >= 500,
        retry_after=_retry_info(cast(Any, error).details) or _retry_after(cast(Any, error).response),
    )


def _retry_info(body: Any) -> float | None:
    """Return the seconds of `google.rpc.RetryInfo` in an error's body, if it holds one."""
    try:
        details: list[Any] = body["error"]["details"]
        delays = [detail["retryDelay"] for detail in details if detail.get("@type") == _RETRY_INFO]
        return _found(float(str(delays[0]).removesuffix("s")))
    except (KeyError, IndexError, TypeError, AttributeError, ValueError):
        return None


def _retry_after(response: Any) -> float | None:
    """Return the seconds of the header `Retry-After`, if there is one.

    A date is measured against the server's own `Date`, so no clock is read here.
    """
    found = getattr(response, "headers", None)
    if not isinstance(found, Mapping):
        return None
    headers = {str(name).lower(): str(value) for name, value in cast(Mapping[Any, Any], found).items()}
    wanted = headers.get("retry-after", "")
    try:
        if wanted[:1].isdigit():
            return _found(float(wanted))
        return _found((parsedate_to_datetime(wanted) - parsedate_to_datetime(headers["date"])).total_seconds())
    except (KeyError, TypeError, ValueError):
        return None


def _found(seconds: float) -> float | None:
    """Return a pause, unless it is no number or lies in the past."""
    return seconds if seconds > 0 else None
