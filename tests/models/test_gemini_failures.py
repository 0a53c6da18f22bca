"""`Gemini` over real HTTP: what fails, for good or until it is tried again."""

from __future__ import annotations

from typing import Any

import pytest
from google.genai import types

from perdure.errors import ModelError
from tests.models.gemini_calls import KEY, failure, request, responses
from tests.models.gemini_server import GeminiServer, Reply, answer, error, retry_info

# Errors of the server.


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("reply", "retryable"),
    [
        (error(400, "INVALID_ARGUMENT", "Bad schema."), False),
        (error(401, "UNAUTHENTICATED", "No such key."), False),
        (error(403, "PERMISSION_DENIED", "Not yours."), False),
        (error(404, "NOT_FOUND", "No such model."), False),
        (error(408, "DEADLINE_EXCEEDED", "Too slow."), True),
        (error(429, "RESOURCE_EXHAUSTED", "Slow down."), True),
        (error(500, "INTERNAL", "Oops."), True),
        (error(503, "UNAVAILABLE", "Overloaded."), True),
        (error(504, "DEADLINE_EXCEEDED", "Too late."), True),
    ],
    ids=lambda value: str(value.status) if isinstance(value, Reply) else "",
)
async def test_the_status_decides_whether_a_call_is_tried_again(reply: Reply, retryable: bool, stream: bool) -> None:
    """And google-genai itself never does: `failure` sees one request."""
    error = await failure(reply, stream=stream)
    assert error.retryable is retryable
    said: str = reply.body["error"]["message"]
    assert f"HTTP {reply.status}" in str(error)
    assert said in str(error)
    assert error.retry_after is None


async def test_refused_credentials_come_with_the_remedy() -> None:
    assert "GOOGLE_API_KEY" in str(await failure(error(403, "PERMISSION_DENIED", "No.")))


@pytest.mark.parametrize(
    ("reply", "seconds"),
    [
        (error(429, "RESOURCE_EXHAUSTED", "x", {"@type": "other"}, retry_info("3s")), 3.0),
        (error(429, "RESOURCE_EXHAUSTED", "x", retry_info("12.25s"), retry_after="99"), 12.25),
        (error(429, "RESOURCE_EXHAUSTED", "x", retry_info("soon"), retry_after="7"), 7.0),
        (error(503, "UNAVAILABLE", "x", retry_after="7"), 7.0),
        (
            error(
                503,
                "UNAVAILABLE",
                "x",
                date="Wed, 21 Oct 2015 07:28:00 GMT",
                retry_after="Wed, 21 Oct 2015 07:28:30 GMT",
            ),
            30.0,
        ),
        (error(503, "UNAVAILABLE", "x", retry_after="later"), None),
        (error(503, "UNAVAILABLE", "x", retry_after="1.5"), 1.5),
        (error(503, "UNAVAILABLE", "x", retry_after="-3"), None),
        (error(429, "RESOURCE_EXHAUSTED", "x", retry_info("nans"), retry_after="7"), 7.0),
        (error(429, "RESOURCE_EXHAUSTED", "x", retry_info("0s"), retry_after="7"), 7.0),
        (Reply(b"<html>Busy</html>", status=503, headers={"retry-after": "2"}), 2.0),
    ],
    ids=[
        *("detail", "detail before header", "unreadable detail", "header", "date", "unreadable header"),
        *("fraction", "past", "no number", "nothing", "html"),
    ],
)
async def test_the_servers_retry_delay_is_passed_on(reply: Reply, seconds: float | None) -> None:
    error = await failure(reply)
    assert error.retryable
    assert error.retry_after == seconds


async def test_retries_asked_for_in_an_agents_settings_stay_off() -> None:
    options = types.HttpOptions(retry_options=types.HttpRetryOptions(attempts=5, initial_delay=0.01))
    async with GeminiServer(error(500, "INTERNAL", "x")) as server:
        with pytest.raises(ModelError):
            await responses(server, request(http_options=options))
        assert len(server.requests) == 1
    assert options.retry_options is not None
    assert options.retry_options.attempts == 5


# What happens on the way.


@pytest.mark.parametrize("cut", ["before", "within"])
async def test_a_dropped_connection_is_tried_again(cut: Any) -> None:
    assert (await failure(Reply(answer({"text": "a"}), cut=cut))).retryable


async def test_a_server_that_is_not_there_is_tried_again() -> None:
    async with GeminiServer() as server:
        url = server.url
    with pytest.raises(ModelError) as caught:
        await responses(url)
    assert caught.value.retryable


async def test_a_server_that_takes_too_long_is_tried_again() -> None:
    async with GeminiServer(Reply(answer({"text": "a"}), delay=0.5)) as server:
        with pytest.raises(ModelError) as caught:
            await responses(server, request(http_options=types.HttpOptions(timeout=50)))
    assert caught.value.retryable


@pytest.mark.parametrize("body", [b'{"candidates": [{"cont', b"<html>Hello</html>"])
async def test_a_body_that_is_no_json_is_tried_again(body: bytes) -> None:
    error = await failure(Reply(body))
    assert error.retryable
    assert "no JSON" in str(error)


async def test_a_body_of_another_shape_is_final_and_not_quoted() -> None:
    error = await failure(Reply(answer({"text": {"secret": 1}})))
    assert not error.retryable
    assert "candidates" in str(error)
    assert "secret" not in str(error)


@pytest.mark.parametrize("body", [b"[1]", b'"text"', b"{}", b""])
async def test_a_body_without_anything_of_a_response_is_tried_again(body: bytes) -> None:
    """google-genai reads it as a response without candidates, which counts as an empty answer."""
    assert (await failure(Reply(body))).retryable


async def test_a_base_url_that_is_none_is_final() -> None:
    with pytest.raises(ModelError, match="base URL") as caught:
        await responses("localhost:1")
    assert not caught.value.retryable


async def test_a_key_that_no_header_can_hold_is_not_quoted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_API_KEY", f"{KEY}\nx")
    async with GeminiServer(answer({"text": "a"})) as server:
        with pytest.raises(ModelError, match="API key") as caught:
            await responses(server)
    assert not caught.value.retryable
    assert KEY not in str(caught.value)


async def test_a_setting_that_the_api_does_not_know_is_final() -> None:
    async with GeminiServer(answer({"text": "a"})) as server:
        with pytest.raises(ModelError, match="audio_timestamp") as caught:
            await responses(server, request(audio_timestamp=True))
    assert not caught.value.retryable


async def test_a_failure_has_no_cause_that_quotes_the_exchange() -> None:
    """Temporal writes an error's causes into history, and a worker logs them."""
    error = await failure(Reply(b"the answer, which is secret"))
    assert error.__cause__ is None
    assert error.__suppress_context__
