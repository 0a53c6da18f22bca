"""Errors that no local server can cause; the others are in `test_gemini`."""

from __future__ import annotations

import pytest
from google.auth.exceptions import GoogleAuthError, RefreshError, TransportError
from google.genai.errors import APIError

from perdure.models.gemini_errors import to_model_error


@pytest.mark.parametrize(
    ("error", "retryable"),
    [
        (RefreshError("the account is gone"), False),
        (RefreshError("the token server is busy", retryable=True), True),
        (TransportError("no route"), True),
        (ConnectionResetError("reset"), True),
        (TimeoutError(), True),
    ],
    ids=lambda value: type(value).__name__,
)
def test_credentials_and_connections(error: Exception, retryable: bool) -> None:
    found = to_model_error("gemini-x", error)
    assert found.retryable is retryable
    assert "gemini-x" in str(found)
    assert ("GOOGLE_API_KEY" in str(found)) is isinstance(error, GoogleAuthError)


def test_a_status_counts_without_a_response() -> None:
    found = to_model_error("gemini-x", APIError(503, {"error": {"message": "Busy."}}))
    assert found.retryable
    assert found.retry_after is None


def test_what_is_neither_the_servers_nor_the_ways_is_raised_as_it_is() -> None:
    error = RuntimeError("a bug")
    with pytest.raises(RuntimeError) as caught:
        to_model_error("gemini-x", error)
    assert caught.value is error
