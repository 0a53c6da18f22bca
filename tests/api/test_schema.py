"""The OpenAPI document tells the truth: schemathesis sends what it allows, and what it does not, to the real server."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any, cast

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from schemathesis import checks as general
from schemathesis.specs.openapi import checks as of_documents
from temporalio.client import Client

from tests.api.auth_support import Keys
from tests.api.support import Api, api_and_worker, call_of

schemathesis.serializer.alias("application/x-ndjson", "text/plain")

pytestmark = pytest.mark.server

Json = Any

EXAMPLES = 2
"""For each operation, of each kind: what the document allows, and what it does not."""

NEVER_ENDS = ("/events/stream",)
"""Streams that last as long as the client stays; they are asked for sessions that are not there."""

CONFORMANCE: list[Any] = [
    getattr(of_documents, name)
    for name in (
        "status_code_conformance",
        "content_type_conformance",
        "response_headers_conformance",
        "response_schema_conformance",
        "ignored_auth",
        "unsupported_method",
    )
]
NO_SERVER_ERROR: Any = getattr(general, "not_a_server_error")  # noqa: B009 -- untyped

TELLS_BY_503 = "/readyz"
"""Its answer where Temporal is late, as it may be while other tests run: in the document, and no fault of ours."""


@dataclass
class Place:
    """What is there to be asked for."""

    api: Api
    keys: Keys
    sessions: list[str]
    invocation: str
    call: str

    def steer(self, method: str, path: str, given: dict[str, Any], chance: random.Random) -> None:
        """Put names of what is there into most requests, which would else all end at the first 404."""
        known = {
            "app_name": self.api.app,
            "user_id": "ann",
            "session_id": chance.choice(self.sessions),
            "invocation_id": self.invocation,
            "call_id": self.call,
        }
        for name in known.keys() & given.keys():
            # Nobody serves other apps, and a request for one waits for a worker.
            if name == "app_name" or chance.random() < 0.8:
                given[name] = known[name]
        if path.endswith(NEVER_ENDS) or method == "delete":
            # What is there is still needed.
            given["session_id"] = "no-such"

    def steer_body(self, body: Any, chance: random.Random) -> None:
        if not isinstance(body, dict) or "userId" not in body:
            return
        fields = cast("dict[str, Any]", body)
        fields["appName"] = self.api.app
        if chance.random() < 0.8:
            fields |= {"userId": "ann", "sessionId": chance.choice(self.sessions)}
        if chance.random() < 0.5:
            for name in ("invocationId", "stateDelta"):
                fields.pop(name, None)
            fields["newMessage"] = {"parts": [{"text": chance.choice(["ask", "hello", "ä\x00"])}]}


@pytest.fixture(scope="module")
async def place(client: Client) -> AsyncGenerator[Place]:
    keys = Keys()
    async with api_and_worker(client, auth=keys.auth) as api:
        api.http.headers.update(keys.of("ann"))
        waiting, idle = await api.create(), await api.create()
        call, invocation = call_of(await api.ran(waiting, "ask"))
        await api.ran(idle, "hello")
        yield Place(api, keys, [waiting, idle], invocation, call)


def fuzz(place: Place, operation: Any, mode: schemathesis.GenerationMode) -> None:
    headers = place.keys.of("ann")

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=(HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large),
    )
    @seed(4)
    @given(case=operation.as_strategy(generation_mode=mode), chance=st.randoms(use_true_random=False))
    def send(case: Any, chance: random.Random) -> None:
        place.steer(operation.method, operation.path, case.path_parameters, chance)
        place.steer_body(case.body, chance)
        response = case.call(headers=headers, timeout=20)
        checks = CONFORMANCE if operation.path == TELLS_BY_503 else [NO_SERVER_ERROR, *CONFORMANCE]
        case.validate_response(response, checks=checks, headers=headers)

    send()


@pytest.mark.timeout(240)
async def test_every_operation_answers_as_the_document_says(place: Place) -> None:
    """No status, type or shape that is not in it, no 5xx, and nothing without a credential."""

    def run() -> list[str]:
        schema: Any = schemathesis.openapi.from_url(f"{place.api.url}/openapi.json", headers=place.keys.of("ann"))
        names: list[str] = []
        for result in schema.get_all_operations():
            operation = result.ok()
            names.append(f"{operation.method} {operation.path}")
            for mode in (schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE):
                if mode is schemathesis.GenerationMode.POSITIVE or operation.body or operation.query:
                    fuzz(place, operation, mode)
        return names

    names = await asyncio.to_thread(run)
    assert len(names) > 15
