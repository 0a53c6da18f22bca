"""`perdure doctor`: each check is right about what is there and what is not, and shows no secret."""

from __future__ import annotations

import socket
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from perdure.agents import App
from perdure.compiler.compile import compile_app
from perdure.config import ConnectionConfig, connect
from perdure.doctor.checks import Check, check_credentials, check_keys, fits
from perdure.doctor.server import check_server
from perdure.encryption.keys import Key, add_key
from perdure.plan.nodes import LlmNode, Plan
from perdure.serving.dev_server import DevServer, DevServerConfig
from tests.cli.support import Perdure, perdure
from tests.workflows.support import agent, make_app, serving, text

__all__ = ["perdure"]

SECRET = "s3cret-key"


def plan_of(model: str) -> Plan:
    return Plan(app="shop", root=LlmNode(name="root", model=model))


@pytest.mark.parametrize(
    ("environment", "model", "verdict", "word"),
    [
        ({}, None, "warning", "neither GOOGLE_API_KEY nor GEMINI_API_KEY"),
        ({}, "gemini-2.5-flash", "failure", "neither GOOGLE_API_KEY nor GEMINI_API_KEY"),
        ({"GOOGLE_API_KEY": ""}, "gemini-2.5-flash", "failure", "neither"),
        ({}, "scripted", "ok", "no model of this app is Google's"),
        ({"GOOGLE_API_KEY": SECRET}, "gemini-2.5-flash", "ok", "GOOGLE_API_KEY is set"),
        ({"GEMINI_API_KEY": SECRET}, None, "ok", "GEMINI_API_KEY is set"),
        ({"GEMINI_API_KEY": f"{SECRET}\n"}, None, "failure", "white space"),
        ({"GOOGLE_GENAI_USE_VERTEXAI": "true", "GOOGLE_API_KEY": SECRET}, None, "ok", "Vertex AI with an API key"),
        ({"GOOGLE_GENAI_USE_VERTEXAI": "1", "HOME": "/nowhere"}, None, "warning", "no application default credentials"),
        (
            {"GOOGLE_GENAI_USE_VERTEXAI": "1", "GOOGLE_GENAI_USE_ENTERPRISE": "0", "GOOGLE_API_KEY": SECRET},
            None,
            "ok",
            "GOOGLE_API_KEY is set",
        ),
        (
            {"GOOGLE_GENAI_USE_VERTEXAI": "1", "GOOGLE_APPLICATION_CREDENTIALS": "/no/such/file"},
            None,
            "failure",
            "a file that is not there",
        ),
        ({"HOME": "/nowhere"}, "projects/p/locations/l/endpoints/1", "warning", "Vertex AI"),
    ],
)
def test_credentials_are_found_as_the_models_find_them(
    environment: dict[str, str], model: str | None, verdict: str, word: str
) -> None:
    check = check_credentials(environment, plan_of(model) if model is not None else None)
    assert (check.verdict, word in check.words) == (verdict, True), check
    assert SECRET not in check.model_dump_json()


def test_vertex_credentials_come_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "account.json"
    file.write_text("{}")
    environment = {"GOOGLE_GENAI_USE_VERTEXAI": "TRUE", "GOOGLE_APPLICATION_CREDENTIALS": str(file)}
    assert "GOOGLE_CLOUD_PROJECT is not set" in check_credentials(environment, None).words
    check = check_credentials(environment | {"GOOGLE_CLOUD_PROJECT": "acme"}, None)
    assert (check.verdict, check.words) == ("ok", "Vertex AI, project acme, location global")


def test_a_file_of_keys_is_looked_at(tmp_path: Path) -> None:
    path = tmp_path / "keys.txt"
    assert check_keys(path).verdict == "failure"
    key = Key.new("k1")
    add_key(path, key)
    check = check_keys(path)
    assert (check.verdict, check.words) == ("ok", f"1 in {str(path)!r}; key 'k1' encrypts")
    path.chmod(0o640)
    check = check_keys(path)
    assert (check.verdict, check.remedy) == ("warning", f"chmod 600 {path}")
    assert key.line not in check.model_dump_json()


@pytest.mark.parametrize(
    ("found", "requirement", "wanted"),
    [
        ("1.35.0", "temporalio>=1.35,<2", True),
        ("1.34.9", "temporalio>=1.35,<2", False),
        ("2.0.0", "temporalio>=1.35,<2", False),
        ("3.10", "google-genai>=3.4,<4", True),
        ("1", "", True),
    ],
)
def test_versions_are_compared_as_numbers(found: str, requirement: str, wanted: bool) -> None:
    assert fits(found, requirement) is wanted


async def test_without_a_server_it_says_so_and_what_else_it_knows(perdure: Perdure) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
    done = await perdure("doctor", "--app", "shop", "--address", address, "--json")
    assert done.code == 1
    checks = {line["name"]: line for line in done.json_lines}
    assert checks["server"]["verdict"] == "failure"
    assert address in checks["server"]["words"]
    assert "perdure dev" in checks["server"]["remedy"]
    assert {name for name, check in checks.items() if check["verdict"] == "skipped"} == {
        *("namespace", "search attributes", "payload limits", "worker", "plan")
    }
    assert checks["temporalio"]["verdict"] == checks["python"]["verdict"] == "ok"


async def test_an_app_that_cannot_be_loaded_is_a_failure(perdure: Perdure) -> None:
    done = await perdure("doctor", "no_such_target", "--address", "127.0.0.1:1")
    assert done.code == 1
    assert "'no_such_target' is neither a folder" in done.out
    done = await perdure("doctor", "target", "--app", "app")
    assert (done.code, done.out) == (64, "")


@pytest.fixture(scope="module")
async def fresh_server() -> AsyncGenerator[str]:
    """The address of a server that no worker has seen."""
    async with DevServer(DevServerConfig(headless=True)) as server:
        yield server.address


async def look(address: str, app: App, *, namespace: str = "default") -> dict[str, Check]:
    config = ConnectionConfig(address=address, namespace=namespace, tls=False)
    return {check.name: check async for check in check_server(config, app.name, compile_app(app))}


@pytest.mark.server
async def test_a_server_before_and_after_a_worker_came(fresh_server: str, perdure: Perdure, app_name: str) -> None:
    app = make_app(app_name, agent("clerk", [text("x")]))
    before = await look(fresh_server, app)
    assert before["server"].words.startswith("Temporal 1.")
    assert before["namespace"].words == "'default'; a session whose workflow is closed can be brought back for 24 h"
    assert before["payload limits"].verdict == "ok"
    assert before["search attributes"].verdict == "warning"
    assert "--name PerdurePendingTools --type KeywordList" in (before["search attributes"].remedy or "")
    assert (before["worker"].verdict, before["plan"].verdict) == ("failure", "skipped")

    client = await connect(ConnectionConfig(address=fresh_server, namespace="default", tls=False))
    async with serving(client, app) as user:
        await user.create()
        await user.run("a")
        after = await look(fresh_server, app)
        assert {check.verdict for check in after.values()} == {"ok"}
        assert "in the code here and in the workers" in after["plan"].words
        # As where the workers' option says otherwise.
        other = (await look(fresh_server, app.model_copy(update={"steps_per_activity": 20})))["plan"]
        assert (other.verdict, other.words.partition(", ")[2]) == (
            "ok",
            "in the code here, and in the workers, whose activities take 1 step",
        )
        changed = await look(fresh_server, make_app(app_name, agent("clerk", [], instruction="Be brief.")))
        assert (changed["worker"].verdict, changed["plan"].verdict) == ("ok", "warning")
        done = await perdure("doctor", "--app", app_name, "--address", fresh_server)
        assert done.code == 0, done.out
        assert f"ok       worker             app '{app_name}' is served by " in done.out


@pytest.mark.server
async def test_a_namespace_that_is_not_there_is_a_failure(fresh_server: str, app_name: str) -> None:
    checks = await look(fresh_server, make_app(app_name, agent("clerk", [])), namespace="nowhere")
    assert (checks["server"].verdict, checks["namespace"].verdict) == ("ok", "failure")
    assert "temporal operator namespace create --namespace nowhere" in (checks["namespace"].remedy or "")
    assert checks["worker"].verdict == "skipped"
