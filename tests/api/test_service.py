"""What the server tells of itself and of its apps."""

from __future__ import annotations

import platform

import httpx2
import pytest
from temporalio.client import Client

import perdure
from perdure.agents import SequentialAgent
from perdure.api.app import create_app
from perdure.api.base.config import ApiConfig
from tests.api.support import Obedient, obedient_app
from tests.workflows.support import agent, make_app, text

ARTIFACTS = (
    "",
    "/{artifact_name}",
    "/{artifact_name}/versions",
    "/{artifact_name}/versions/metadata",
    "/{artifact_name}/versions/{version_id}",
    "/{artifact_name}/versions/{version_id}/metadata",
)
"""What follows `…/artifacts` in the paths of its routes."""


@pytest.fixture(scope="module")
async def http() -> httpx2.AsyncClient:
    """A client of a server with two apps; none of these requests reaches Temporal."""
    lazy = await Client.connect("127.0.0.1:1", lazy=True)
    steps = SequentialAgent(name="steps", sub_agents=[agent("one", [text("hi")])])
    app = create_app(lazy, [obedient_app("shop", Obedient()), make_app("flow", steps)], ApiConfig(default_app="shop"))
    return httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url="http://localhost")


async def test_health_and_version(http: httpx2.AsyncClient) -> None:
    assert (await http.get("/health")).json() == {"status": "ok"}
    version = (await http.get("/version")).json()
    assert version == {
        "version": perdure.__version__,
        "language": "python",
        "language_version": platform.python_version(),
    }


async def test_the_apps_are_listed(http: httpx2.AsyncClient) -> None:
    assert (await http.get("/list-apps")).json() == ["flow", "shop"]
    flow, shop = (await http.get("/list-apps", params={"detailed": "true"})).json()["apps"]
    assert flow["rootAgentName"] == "steps"
    assert shop == {
        "name": "shop",
        "rootAgentName": "clerk",
        "description": "Does as told.",
        "language": "python",
        "isComputerUse": False,
    }


async def test_an_app_tells_of_its_llm_agents_and_their_tools(http: httpx2.AsyncClient) -> None:
    info = (await http.get("/apps/shop/app-info")).json()
    assert (info["name"], info["rootAgentName"]) == ("shop", "clerk")
    assert list(info["agents"]) == ["clerk", "helper", "left"]
    clerk = info["agents"]["clerk"]
    assert (clerk["description"], clerk["instruction"]) == ("Does as told.", "Do as you are told.")
    assert clerk["sub_agents"] == ["helper", "steps"]
    declared = [tool["functionDeclarations"][0]["name"] for tool in clerk["tools"]]
    assert declared == ["approve", "look", "pay"]
    assert (await http.get("/app-info")).json() == info


@pytest.mark.parametrize(("app", "status"), [("flow", 400), ("no_such", 404), ("__reserved", 403)])
async def test_apps_that_have_no_such_information(http: httpx2.AsyncClient, app: str, status: int) -> None:
    answer = await http.get(f"/apps/{app}/app-info")
    assert answer.status_code == status
    assert app in answer.json()["detail"]


async def test_the_document_names_every_route_and_no_page_is_loaded_from_elsewhere(http: httpx2.AsyncClient) -> None:
    document = (await http.get("/openapi.json")).json()
    session = "/v1/apps/{app_name}/users/{user_id}/sessions/{session_id}"
    assert set(document["paths"]) == {
        "/apps/{app_name}/app-info",
        "/apps/{app_name}/users/{user_id}/memory",
        "/apps/{app_name}/users/{user_id}/sessions",
        "/apps/{app_name}/users/{user_id}/sessions/{session_id}",
        "/health",
        "/list-apps",
        "/livez",
        "/readyz",
        "/run",
        "/run_sse",
        "/v1/apps/{app_name}/pending",
        "/v1/apps/{app_name}/plan",
        "/v1/apps/{app_name}/users/{user_id}/imports",
        f"{session}/effects",
        f"{session}/events",
        f"{session}/events/stream",
        f"{session}/explain",
        f"{session}/export",
        f"{session}/invocations",
        f"{session}/invocations/{{invocation_id}}",
        f"{session}/invocations/{{invocation_id}}/explain",
        f"{session}/invocations/{{invocation_id}}/plan",
        f"{session}/invocations/{{invocation_id}}/resume",
        f"{session}/invocations/{{invocation_id}}/stop",
        f"{session}/pending",
        f"{session}/pending/{{call_id}}/answer",
        "/v1/pending",
        "/version",
        *(f"/apps/{{app_name}}/users/{{user_id}}/sessions/{{session_id}}/artifacts{rest}" for rest in ARTIFACTS),
    }
    assert (await http.get("/docs")).status_code == 404
