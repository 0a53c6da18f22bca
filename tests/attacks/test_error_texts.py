"""What errors of the operator's code say reaches operators only: walked over every route that shows a session."""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import AsyncGenerator, Callable
from typing import Any, Literal

import httpx2
import pytest
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from google.genai import types
from temporalio.client import Client

from perdure.agents import FunctionTool, LlmAgent
from perdure.api.app import create_app
from perdure.api.base.config import ApiConfig
from perdure.api.base.error_texts import without_error_texts
from perdure.errors import ModelError
from perdure.journal.entries import ToolRan
from perdure.journal.events import REQUEST_RECONCILE, Event
from perdure.models.base import LlmRequest, LlmResponse
from perdure.rules.failures import public_text, reference
from perdure.views.explanation import RaisedStep
from tests.api.auth_support import Keys
from tests.api.support import Obedient, frames_of, served
from tests.api.test_access import every_route
from tests.workflows.support import ONCE, User, make_app, serving

pytestmark = [pytest.mark.server, pytest.mark.timeout(180)]

SECRET = "Hunter2"
KINDS = ("raise", "once", "model", "stop")
_PATIENCE = 15
QUERIES = {"export": "?journal=true", "live": "?length=0", "stream": "?partial=true"}


class Careless(Obedient):
    """Says in its errors, and in an answer that is none, what nobody should read."""

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        last = (llm_request.contents[-1].parts or [])[-1]
        match last.text:
            case "raise" | "once" as name:
                part = types.Part(function_call=types.FunctionCall(name=name, args={}))
                yield LlmResponse(content=types.Content(role="model", parts=[part]))
            case "model":
                raise ModelError(f"{SECRET}: the key is wrong", retryable=False)
            case "stop":
                yield LlmResponse(error_code="SAFETY", error_message=f"the prompt said {SECRET}")
            case _:
                yield LlmResponse(content=types.Content(role="model", parts=[types.Part(text="well")]))


def careless_app(errors: Literal["hidden", "shown"]) -> tuple[Any, Careless]:
    def fails(number: int = 0) -> str:
        raise ValueError(f"the password is {SECRET}")

    def once() -> str:
        return fails()

    model = Careless()
    fails.__name__ = "raise"
    tools: list[FunctionTool | Callable[..., Any]] = [
        FunctionTool(fails, retry=ONCE),
        FunctionTool(once, at_most_once=True),
    ]
    agent = LlmAgent(name="clerk", model=model, tools=tools)
    app = make_app(f"app_{uuid.uuid4().hex[:12]}", agent)
    return app.model_copy(update={"errors": errors}), model


def looks(app: FastAPI, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the paths of all GET routes that are about sessions."""
    every_route(app.routes, monkeypatch)
    document: Any = get_openapi(title="all", version="1", routes=app.routes)
    plain = {"/openapi.json", "/health", "/version", "/livez", "/readyz", "/sign-in"}
    return [path for path, methods in document["paths"].items() if "get" in methods and path not in plain]


async def read(http: httpx2.AsyncClient, path: str, headers: dict[str, str]) -> tuple[int, str]:
    """Return what a route answers; of a stream, what comes before nothing does for a second."""
    found = ""
    async with http.stream("GET", path, headers=headers) as answer:
        streamed = answer.headers["content-type"].startswith("text/event-stream")
        chunks = answer.aiter_text()
        try:
            while True:
                found += await asyncio.wait_for(anext(chunks), 1.5 if streamed and found else _PATIENCE)
        except (TimeoutError, StopAsyncIteration):
            pass
        return answer.status_code, found


@pytest.mark.parametrize("errors", ["hidden", "shown"])
async def test_no_route_tells_an_end_user_what_an_error_says(
    client: Client, errors: Literal["hidden", "shown"], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor do streams, pages, listings and exports; type and reference are told, and lead an operator to the text."""
    keys = Keys()
    app, model = careless_app(errors)
    async with serving(client, app), served(client, app, model, auth=keys.auth) as api:
        streamed: list[str] = []
        for kind in KINDS:
            session = User(client, app.name, "ann", kind)
            await session.create()
            body = {**api.body(kind, kind), "streaming": True}
            sent = await api.http.post("/run_sse", json=body, headers=keys.of("ann"))
            streamed.append(sent.text)
            ran = await api.http.post("/run", json=api.body(kind, kind), headers=keys.of("ann"))
            streamed.append(ran.text)
            if kind == "once":
                await session.resume((await session.view()).invocations[-1].id)
                await session.open(REQUEST_RECONCILE)
        assert any("ValueError" in text for text in streamed)
        assert any("error" in frame for frame in frames_of(streamed[0]))
        told: dict[str, set[str]] = {"ann": set(), "eve": set(), "root": set()}
        invocations = {kind: (await User(client, app.name, "ann", kind).view()).invocations[-1].id for kind in KINDS}

        async def look(path: str, kind: str, who: str) -> None:
            given = {"app_name": app.name, "user_id": "ann", "session_id": kind, "invocation_id": invocations[kind]}
            filled = re.sub(r"\{(\w+)\}", lambda match: given.get(match[1], "x"), path)
            query = QUERIES.get(path.rpartition("/")[2], "")
            try:
                status, text = await read(api.http, f"{filled}{query}", keys.of(who))
            except httpx2.TimeoutException as error:
                error.add_note(f"no answer of {filled}{query} to {who}")
                raise
            assert status < 500, (filled, text)
            if SECRET in text:
                told[who].add(path)

        paths = looks(create_app(client, [app], ApiConfig(auth=keys.auth)), monkeypatch)
        assert len(paths) > 20
        for path in paths:
            await asyncio.gather(*(look(path, kind, who) for kind in KINDS for who in told))
        assert len(told["root"]) >= 13
        if errors == "hidden":
            assert (told["ann"], told["eve"]) == (set(), set())
            assert SECRET not in "".join(streamed)
        else:
            assert told["ann"] == told["eve"] == told["root"]
            assert SECRET in "".join(streamed)


async def test_a_reference_leads_to_the_text(client: Client) -> None:
    """What an end user reads aloud, an operator finds in the same place, and in the log of the worker."""
    keys = Keys()
    app, model = careless_app("hidden")
    async with serving(client, app), served(client, app, model, auth=keys.auth) as api:
        user = User(client, app.name, "ann", "raise")
        await user.create()
        (failure,) = (await user.run("raise")).failures
        path = f"/v1/apps/{app.name}/users/ann/sessions/raise/invocations"
        (mine,) = (await api.http.get(path, headers=keys.of("ann"))).json()["invocations"]
        (full,) = (await api.http.get(path, headers=keys.of("root"))).json()["invocations"]
        known = reference(mine["id"], "clerk", "raise")
        assert mine["failures"] == [{"agent": "clerk", "step": "raise", "cause": f"ValueError (reference {known})"}]
        assert full["failures"] == [{"agent": "clerk", "step": "raise", "cause": failure.cause}]
        page = await api.http.get(f"/inbox/apps/{app.name}/users/ann/sessions/raise", headers=keys.of("root"))
        assert known in page.text
        assert SECRET in page.text


@pytest.mark.parametrize("errors", ["hidden", "shown"])
async def test_a_traceback_is_for_operators_alone(client: Client, errors: Literal["hidden", "shown"]) -> None:
    """Also where everybody may read what errors say: it tells files and lines of the operator's code."""
    keys = Keys()
    app, model = careless_app(errors)
    async with serving(client, app), served(client, app, model, auth=keys.auth) as api:
        user = User(client, app.name, "ann", "raise")
        await user.create()
        await user.run("raise")
        page = f"/inbox/apps/{app.name}/users/ann/sessions/raise"
        explain = f"/v1/apps/{app.name}/users/ann/sessions/raise/explain"
        told = {
            (who, path): (await api.http.get(path, headers=keys.of(who))).text
            for who in ("ann", "eve", "root")
            for path in (page, explain)
        }
    assert "<summary>Traceback</summary>" in told["root", page]
    assert "in fails" in told["root", page]
    assert {key for key, text in told.items() if __file__ in text or "in fails" in text} == {("root", page)}
    raised = RaisedStep(step="raise", trace=f"ValueError: {SECRET}")
    assert without_error_texts(raised).trace == ""


@pytest.mark.parametrize(
    ("cause", "told"),
    [
        ("ValueError: the password", "ValueError (reference r)"),
        ("ValueError", "error (reference r)"),
        ("", "error (reference r)"),
        ("NotFound: x", "NotFound (reference r)"),
        ("Hunter2: x", "error (reference r)"),
        ("hunter2Error: x", "error (reference r)"),
        ("Gemini answered 400: the key sk-1", "error (reference r)"),
        ("timed out (heartbeat timeout)", "timed out (heartbeat timeout)"),
        ("timed out (heartbeat timeout): x", "error (reference r)"),
        ("timed out (heartbeat timeout)\nx", "error (reference r)"),
    ],
)
def test_only_types_and_own_words_are_told(cause: str, told: str) -> None:
    """Whatever the operator's code may say, and wherever the words end."""
    assert public_text(cause, "r") == told
    assert public_text(cause) == told.removesuffix(" (reference r)")


def test_no_reference_is_told_that_matches_no_line() -> None:
    """An entry that names no agent and no tool has only its type to tell."""
    ran = ToolRan(call_id="a", outcome="failed", started=1.0, ended=2.0, cause=f"ValueError: {SECRET}")
    for entry in (ran, ran.model_copy(update={"invocation_id": "e-1"})):
        assert without_error_texts(entry, "e-1").cause == "ValueError"
    event = Event(error_message=SECRET)
    assert without_error_texts(event).error_message == "(withheld)"
