"""Metrics, as Prometheus sees them: of workers and the API, right over restarts, without ids of users and sessions."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import httpx2
import pytest
from google.genai import types
from temporalio.client import Client
from temporalio.exceptions import ApplicationError

from perdure.agents import App
from perdure.agents.tools import FunctionTool
from perdure.api.base.metering import meter_of
from perdure.compiler.compile import compile_app
from perdure.config import ConnectionConfig, connect
from perdure.errors import DefinitionError
from perdure.models.base import LlmRequest, LlmResponse
from perdure.models.scripted import ScriptedModel
from perdure.telemetry.metrics import SessionCount, prometheus_runtime
from perdure.telemetry.step_meter import error_name
from tests.api.support import Obedient, obedient_app, response_to, served
from tests.cli.test_main import free_port
from tests.workflows.support import ONCE, Counted, agent, calls, eventually, long_running, make_app, serving, text

pytestmark = pytest.mark.server

Samples = dict[str, dict[frozenset[tuple[str, str]], float]]

_LINE = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$")
_LABEL = re.compile(r'(\w+)="([^"]*)"')
_TEMPORALS = frozenset({"namespace", "task_queue", "activity_type", "workflow_type"})


class Scraped:
    """A connection with metrics, and what a scraper reads of it."""

    def __init__(self, client: Client, url: str) -> None:
        self.client = client
        self._url = url
        self.text = ""

    async def read(self) -> Samples:
        async with httpx2.AsyncClient(trust_env=False) as http:
            answer = await http.get(self._url)
        assert answer.status_code == 200
        self.text = answer.text
        found: Samples = {}
        for line in answer.text.splitlines():
            if match := _LINE.match(line):
                labels = frozenset(pair for pair in _LABEL.findall(match[2] or "") if pair[0] not in _TEMPORALS)
                found.setdefault(match[1], {})[labels] = float(match[3])
        return found

    async def values(self, name: str, **labels: str) -> dict[tuple[str, ...], float]:
        """Return a metric's values by those of its labels that are not given, in the order of their names."""
        given = set(labels.items())
        return {
            tuple(value for _, value in sorted(pairs - given)): number
            for pairs, number in (await self.read()).get(name, {}).items()
            if given <= pairs
        }


@asynccontextmanager
async def scraped(server: str) -> AsyncGenerator[Scraped]:
    address = f"127.0.0.1:{free_port()}"
    config = ConnectionConfig(address=server, namespace="default", tls=False, runtime=prometheus_runtime(address))
    yield Scraped(await connect(config), f"http://{address}/metrics")


class Priced(ScriptedModel):
    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        usage = types.GenerateContentResponseUsageMetadata(
            prompt_token_count=11, candidates_token_count=5, thoughts_token_count=2
        )
        async for response in super().generate_content_async(llm_request, stream):
            yield response.model_copy(update={"usage_metadata": usage})


def shop(name: str) -> tuple[App, Counted]:
    flaky = Counted("flaky", fail=1)
    script = [calls("ask"), calls("flaky"), text("done")]
    return make_app(name, agent("clerk", Priced(script), [long_running("ask"), flaky.once])), flaky


async def test_steps_tokens_calls_and_failures_are_counted_once_whatever_is_replayed(
    temporal_server: str, app_name: str
) -> None:
    app, _ = shop(app_name)
    async with scraped(temporal_server) as metrics:
        async with serving(metrics.client, app) as user:
            await user.create()
            asked = await user.run("the secret word")
            steps = await metrics.values("perdure_steps_total", app=app_name, agent="clerk")
            assert steps == {("model", "ok", "model"): 1, ("tool", "ok", "ask"): 1}
        # Another worker of the process: it has nothing in memory, and replays.
        async with serving(metrics.client, app) as user:
            failed = await user.answered({asked.pending[0].id: "the secret answer"})
            assert failed.status == "failed"
            assert (await user.resumed(asked.id)).status == "finished"
            await user.view()
        assert await metrics.values("perdure_steps_total", app=app_name, agent="clerk") == {
            ("model", "ok", "model"): 3,
            ("tool", "ok", "ask"): 1,
            ("tool", "error", "flaky"): 1,
            ("tool", "ok", "flaky"): 1,
        }
        tokens = await metrics.values("perdure_tokens_total", app=app_name, agent="clerk", model="scripted")
        assert tokens == {("input",): 33, ("output",): 21}
        assert await metrics.values("perdure_step_failures_total", app=app_name) == {
            ("clerk", "RuntimeError", "flaky"): 1
        }
        assert await metrics.values("perdure_invocations_total", app=app_name) == {
            ("started",): 1,
            ("waiting",): 1,
            ("failed",): 1,
            ("finished",): 1,
        }
        assert await metrics.values("perdure_failures_total", app=app_name) == {("clerk", "flaky"): 1}
        calls_that_wait = await metrics.values("perdure_waiting_calls_total", app=app_name, tool="ask")
        assert calls_that_wait == {("opened",): 1, ("answered",): 1}
        # Temporal's own are there, too.
        assert "temporal_activity_succeed_endtoend_latency_seconds_count" in metrics.text
        for private in ("secret", user.key, asked.id, asked.pending[0].id):
            assert private not in metrics.text


async def test_steps_of_one_activity_are_counted_each(
    temporal_server: str, app_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    flaky = Counted("flaky", fail=1)
    clerk = agent("clerk", Priced([calls("look"), calls("flaky"), text("done")]), [Counted("look").fn, flaky.fn])
    app = App(name=app_name, root_agent=clerk, steps_per_activity=20)
    async with scraped(temporal_server) as metrics:
        async with serving(metrics.client, app) as user:
            await user.create()
            assert (await user.run("go")).status == "finished"
        assert await metrics.values("perdure_steps_total", app=app_name, agent="clerk") == {
            ("model", "ok", "model"): 3,
            ("tool", "ok", "look"): 1,
            ("tool", "error", "flaky"): 1,
            ("tool", "ok", "flaky"): 1,
        }
        tokens = await metrics.values("perdure_tokens_total", app=app_name, agent="clerk", model="scripted")
        assert tokens == {("input",): 33, ("output",): 21}
        assert await metrics.values("perdure_step_failures_total", app=app_name) == {
            ("clerk", "RuntimeError", "flaky"): 1
        }


async def test_sessions_are_counted_by_status_and_by_the_tool_that_they_wait_for(
    temporal_server: str, app_name: str
) -> None:
    confirmed = FunctionTool(Counted("pay").fn, require_confirmation=True, retry=ONCE)
    tools = [long_running("ask"), confirmed]
    app = make_app(app_name, agent("clerk", [calls("ask"), calls("pay"), text("x")], tools))
    async with scraped(temporal_server) as metrics, serving(metrics.client, app) as user:
        meter = meter_of(metrics.client)
        count = SessionCount(metrics.client, [compile_app(app)], meter)

        async def counted(**expected: int) -> None:
            """Wait until Temporal's index, which is a moment late, shows this."""

            async def look() -> bool:
                await count.count()
                shown = {
                    **{key[0]: n for key, n in (await metrics.values("perdure_sessions", app=app_name)).items()},
                    **{
                        k[0]: n for k, n in (await metrics.values("perdure_sessions_waiting_for", app=app_name)).items()
                    },
                }
                return shown == {"running": 0, "failed": 0, "waiting": 0, "stopped": 0, "idle": 0, **expected}

            await eventually(look)

        await user.create()
        asked = await user.run("go")
        other = user.other(session_id="s2")
        await other.create()
        also = await other.run("go")
        await counted(waiting=2, ask=2, pay=0)
        await user.answered({asked.pending[0].id: 1})
        await counted(waiting=2, ask=1, pay=1)
        await other.stop(also.id)
        await counted(waiting=1, stopped=1, ask=1, pay=1)


async def test_a_namespace_in_which_nothing_can_be_counted_is_told_once(
    temporal_server: str, app_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    client = await connect(ConnectionConfig(address=temporal_server, namespace="nowhere", tls=False))
    plan = compile_app(shop(app_name)[0])
    counting = asyncio.create_task(SessionCount(client, [plan], meter_of(client)).run(timedelta(seconds=0.05)))
    await eventually(lambda: "sessions cannot be counted" in caplog.text)
    await asyncio.sleep(0.3)
    assert not counting.done()
    counting.cancel()
    assert caplog.text.count("sessions cannot be counted") == 1


async def test_the_apis_requests_are_counted_by_route(temporal_server: str, app_name: str) -> None:
    model = Obedient()
    app = obedient_app(app_name, model)
    async with scraped(temporal_server) as metrics, serving(metrics.client, app):
        async with served(metrics.client, app, model) as api:
            session = await api.create()
            await api.ran(session, "hello")
            await api.frames(session, "hello again")
            assert (await api.http.get(api.path("no-such-session"))).status_code == 404
            assert (await api.http.get("/no/such/route/at-all")).status_code == 404
            assert (await api.http.request("BREW", "/run")).status_code == 405
            answer = await api.http.post("/run", json={**api.body(session), "newMessage": response_to("nobody")})
            assert answer.status_code == 404
        sessions = "/apps/{app_name}/users/{user_id}/sessions"
        assert await metrics.values("perdure_http_requests_total") == {
            ("POST", sessions, "200"): 1,
            ("POST", "/run", "200"): 1,
            ("POST", "/run", "404"): 1,
            ("POST", "/run_sse", "200"): 1,
            ("GET", f"{sessions}/{{session_id}}", "404"): 1,
            ("GET", "none", "404"): 1,
            ("other", "/run", "405"): 1,
        }
        durations = await metrics.values("perdure_http_request_duration_seconds_count", method="POST")
        assert durations[("/run",)] == 2
        assert session not in metrics.text


def test_an_address_that_is_none_or_taken_is_explained() -> None:
    with pytest.raises(DefinitionError, match=r"'nowhere'.*IP:PORT"):
        prometheus_runtime("nowhere")
    address = f"localhost:{free_port()}"
    kept: Any = prometheus_runtime(address)
    with pytest.raises(DefinitionError, match="in use"):
        prometheus_runtime(address)
    del kept


@pytest.mark.parametrize(
    ("error", "name"),
    [
        (ValueError("x"), "ValueError"),
        (ApplicationError("x", type="ModelError"), "ModelError"),
        (ApplicationError("x", type="user 4929 not found"), "other"),
    ],
    ids=["class", "type", "text"],
)
def test_an_error_is_counted_by_its_kind_never_by_its_text(error: Exception, name: str) -> None:
    assert error_name(error) == name
