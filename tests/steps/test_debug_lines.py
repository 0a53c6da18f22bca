"""Debug lines of steps: what models are asked and answer, what tools get and return, to be read, without secrets."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

import pytest
from google.genai import types
from temporalio.client import Client

from perdure.agents.adk_app import AnyApp
from perdure.journal.events import Event
from perdure.journal.tool_output import ToolOutput
from perdure.logs import configure_logging
from perdure.steps.debug_lines import log_answer, log_call, log_request, log_result
from tests.workflows.support import agent, calls, make_app, serving, text

BLOB = types.Content(
    role="user",
    parts=[types.Part(inline_data=types.Blob(data=b"x" * 1200, mime_type="image/png")), types.Part(text="hi")],
)
CREDENTIAL = {"authType": "oauth2", "oauth2": {"clientId": "c", "clientSecret": "hunter2", "accessToken": "hunter2"}}


def logged(log: Callable[[], None], level: str = "debug") -> list[dict[str, Any]]:
    stream = io.StringIO()
    configure_logging(json=True, level=level, stream=stream)  # type: ignore[arg-type]
    log()
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_request_is_told_with_sizes_in_the_place_of_bytes() -> None:
    tool = types.Tool(function_declarations=[types.FunctionDeclaration(name="find")])
    config = types.GenerateContentConfig(system_instruction="Be brief.", tools=[tool])
    [line] = logged(lambda: log_request("gemini", [BLOB], config))
    assert (line["event"], line["model"], line["offered"], line["instruction"]) == (
        *("model is asked", "gemini", "find", "Be brief."),
    )
    [content] = line["contents"]
    assert content["parts"][0]["inlineData"]["data"] == "(1,200 bytes)"
    assert content["parts"][1] == {"text": "hi"}


@pytest.mark.parametrize(
    "log",
    [
        lambda: log_call({"credential": CREDENTIAL}),
        lambda: log_result({"credential": CREDENTIAL}),
        lambda: log_result(ToolOutput(result={"credential": CREDENTIAL})),
        lambda: log_answer(
            [Event(content=types.Content(parts=[types.Part.from_function_call(name="f", args=CREDENTIAL)]))]
        ),
    ],
)
def test_the_secrets_of_credentials_are_left_out(log: Callable[[], None]) -> None:
    [line] = logged(log)
    assert "hunter2" not in json.dumps(line)
    assert "clientId" in json.dumps(line)


def test_above_debug_level_nothing_is_told() -> None:
    def log() -> None:
        log_request("gemini", [BLOB], None)
        log_answer([])
        log_call({"a": 1})
        log_result({"a": 1})

    assert logged(log, "info") == []


def look(city: str) -> dict[str, str]:
    """Look."""
    return {"seen": f"{city} in the rain"}


@pytest.mark.server
@pytest.mark.parametrize("kind", ["perdure", "google.adk"])
async def test_a_turn_can_be_read_in_the_log(client: Client, app_name: str, kind: str) -> None:
    native = agent("clerk", [calls("look", city="Oslo"), text("It rains.")], [look])
    from tests.adk import support as adk

    of_adk = adk.agent("clerk", adk.call("look", city="Oslo"), adk.say("It rains."), tools=[look])
    app: AnyApp = make_app(app_name, native) if kind == "perdure" else adk.make_app(app_name, of_adk)
    stream = io.StringIO()
    async with serving(client, app) as user:
        await user.create()
        configure_logging(json=True, level="debug", stream=stream)
        await user.run("How is the weather?")
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    told = [line for line in lines if line["event"].startswith(("model ", "tool "))]
    assert [line["event"] for line in told] == [
        *("model is asked", "model has answered", "tool is called", "tool has returned"),
        *("model is asked", "model has answered"),
    ]
    asked, answered, called, returned, again, done = told
    assert "How is the weather?" in json.dumps(asked["contents"])
    assert "look" in asked["offered"]
    assert "Oslo" in json.dumps(answered["response"])
    assert (called["tool"], called["arguments"]) == ("look", {"city": "Oslo"})
    assert "Oslo in the rain" in json.dumps(returned["result"])
    assert "Oslo in the rain" in json.dumps(again["contents"])
    assert "It rains." in json.dumps(done["response"])
    assert {(line["session"], line["agent"]) for line in told} == {("s", "clerk")}
