"""Traces: one from the request to the model calls and tools, wherever they run; names and numbers, no contents."""

from __future__ import annotations

import asyncio
import json
import secrets
import signal
import sys
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
import pytest
from google.genai import types
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from temporalio.client import Client

from perdure.agents import App, ResumabilityConfig
from perdure.cli.main import run_command
from perdure.client import Runner
from perdure.config import ConnectionConfig, connect
from perdure.errors import DefinitionError
from perdure.messages.session import Trial
from perdure.models.base import LlmRequest, LlmResponse
from perdure.models.scripted import ScriptedModel
from perdure.telemetry.exporting import Discreet, Tracing, exporter_from
from tests.cli.test_main import Process
from tests.telemetry.collector import collecting
from tests.workflows.custom_agents import Broker, quote, slow_quote
from tests.workflows.support import Counted, Gate, User, agent, calls, eventually, long_running, make_app, serving, text

OFF = {"OTEL_TRACES_EXPORTER": "none"}

SLOW_AGENT = """
import asyncio, pathlib
from perdure.agents import App, LlmAgent, ResumabilityConfig
from perdure.models.scripted import ScriptedModel

async def wait_here(secret: str) -> str:
    '''Wait until a file is there.'''
    here = pathlib.Path(__file__).parent
    (here / "waiting").touch()
    while not (here / "go").exists():
        await asyncio.sleep(0.05)
    return f"it was {secret}"

clerk = LlmAgent(
    name="clerk",
    model=ScriptedModel([{"calls": [{"name": "wait_here", "args": {"secret": "hunter2"}}]}, {"text": "Sesame."}]),
    tools=[wait_here],
)
app = App(name="NAME", root_agent=clerk, resumability_config=ResumabilityConfig(is_resumable=True))
"""


@pytest.mark.server
@pytest.mark.process
async def test_one_trace_from_the_request_to_the_tool_over_a_killed_worker(
    client: Client, temporal_server: str, app_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """API and two workers, processes of their own, send to one collector; a replay sends nothing again."""
    (tmp_path / f"{app_name}.py").write_text(SLOW_AGENT.replace("NAME", app_name))
    trace, caller = secrets.token_hex(16), secrets.token_hex(8)
    at = ("--otel", "--address", temporal_server)
    with collecting() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint)
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
        worker = await Process.start("worker", f"{app_name}:app", *at, cwd=tmp_path)
        api = await Process.start("api", "--port", "0", "--auto-create-session", *at, cwd=tmp_path)
        told = await api.read_until("HTTP API")
        url = told.partition("HTTP API at ")[2].partition(",")[0]
        await worker.read_until("serving")
        body = {"appName": app_name, "userId": "ann", "sessionId": "s", "newMessage": {"parts": [{"text": "Open up"}]}}
        async with httpx2.AsyncClient(timeout=60, trust_env=False) as http:
            headers = {"traceparent": f"00-{trace}-{caller}-01", "baggage": "card=4929-zxy"}
            running = asyncio.create_task(http.post(f"{url}/run?key=hush", json=body, headers=headers))
            await eventually((tmp_path / "waiting").exists)
            # What is not sent yet dies with the worker; the next one's spans stand below these.
            sent = {"chat scripted", "StartActivity:wait_here"}
            await eventually(lambda: sent <= {span.name for span in collector.of(trace)})
            assert await worker.end(signal.SIGKILL) == -signal.SIGKILL
            worker = await Process.start("worker", f"{app_name}:app", *at, cwd=tmp_path)
            await worker.read_until("serving")
            (tmp_path / "go").touch()
            assert "Sesame." in (await running).text
        assert await worker.end(signal.SIGTERM) == 0
        assert await api.end(signal.SIGTERM) == 0
    spans = collector.of(trace)
    by_id = {span.id: span for span in spans}
    request = next(span for span in spans if span.name == "POST /run")
    assert (request.parent, request.service) == (caller, "perdure-api")
    for span in spans:
        while span is not request:
            span = by_id[span.parent]
    names = Counter(span.name for span in spans)
    assert names["chat scripted"] == 2
    # The first attempt died with its worker.
    assert names["execute_tool wait_here"] == 1
    # What the workflow does is told once, though two workers ran it.
    assert names["StartActivity:perdure:model"] == 2
    # The plan was not at hand in a worker's first session.
    assert (names["StartActivity:wait_here"], names["StartActivity:perdure:load_plan"]) == (1, 2)
    assert names["HandleUpdate:send_message"] == 1
    assert {span.service for span in spans} == {"perdure-api", "perdure-worker"}
    for secret in (b"hunter2", b"Sesame", b"Open up", b"hush"):
        assert secret not in collector.raw
    history = await client.get_workflow_handle(f"{app_name}/ann/s").fetch_history()
    kept = b"".join(event.SerializeToString() for event in history.events)
    assert trace.encode() in kept
    assert b"4929-zxy" not in kept


@asynccontextmanager
async def traced(address: str) -> AsyncGenerator[tuple[Client, Tracing, InMemorySpanExporter]]:
    """A client whose spans, and those of workers that use it, are kept here."""
    tracing, kept = Tracing("test", OFF), InMemorySpanExporter()
    tracing.provider.add_span_processor(SimpleSpanProcessor(Discreet(kept)))
    config = ConnectionConfig(address=address, namespace="default", tls=False, interceptors=(tracing.interceptor,))
    yield await connect(config), tracing, kept
    tracing.close()


def traces(kept: InMemorySpanExporter) -> dict[str, list[str]]:
    """Return the names of the steps' spans by the name of the trace's first span that was made here."""
    spans = sorted(kept.get_finished_spans(), key=lambda span: span.start_time or 0)
    roots = {trace_of(span): span.name for span in spans if span.parent is None}
    found: dict[str, list[str]] = {name: [] for name in roots.values()}
    for span in spans:
        if span.name.startswith(("chat", "execute_tool", "run_activity")):
            found[roots[trace_of(span)]].append(span.name)
    return found


def trace_of(span: ReadableSpan) -> int:
    assert span.context is not None
    return span.context.trace_id


class Priced(ScriptedModel):
    """A scripted model that says what it cost."""

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        usage = types.GenerateContentResponseUsageMetadata(
            prompt_token_count=11, candidates_token_count=5, thoughts_token_count=2, cached_content_token_count=3
        )
        async for response in super().generate_content_async(llm_request, stream):
            yield response.model_copy(
                update={
                    "usage_metadata": usage,
                    "model_version": "scripted-001",
                    "finish_reason": types.FinishReason.STOP,
                }
            )


@pytest.mark.server
async def test_each_turn_of_a_session_belongs_to_the_trace_of_whoever_caused_it(
    temporal_server: str, app_name: str
) -> None:
    """Message, answer and resume each have their trace, though one workflow runs them all."""
    tool = Counted("look", fail=1)
    script = [calls("ask"), calls("look"), text("done")]
    app = make_app(app_name, agent("clerk", Priced(script), [long_running("ask"), tool.once]))
    async with traced(temporal_server) as (client, tracing, kept), serving(client, app) as user:
        with tracing.tracer.start_as_current_span("create"):
            await user.create()
        with tracing.tracer.start_as_current_span("message"):
            asked = await user.run("go")
        with tracing.tracer.start_as_current_span("answer"):
            failed = await user.answered({asked.pending[0].id: "yes"})
        assert failed.status == "failed"
        with tracing.tracer.start_as_current_span("resume"):
            assert (await user.resumed(asked.id)).status == "finished"
        assert traces(kept) == {
            "create": [],
            "message": ["chat scripted", "execute_tool ask"],
            "answer": ["chat scripted", "execute_tool look"],
            "resume": ["execute_tool look", "chat scripted"],
        }
        last = [span for span in kept.get_finished_spans() if span.name == "chat scripted"][-1]
        assert dict(last.attributes or {}) == {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": "priced",
            "gen_ai.request.model": "scripted",
            "gen_ai.response.model": "scripted-001",
            "gen_ai.response.finish_reasons": ("stop",),
            "gen_ai.usage.input_tokens": 11,
            "gen_ai.usage.output_tokens": 7,
            "gen_ai.usage.cache_read.input_tokens": 3,
            "gen_ai.agent.name": "clerk",
            "gen_ai.conversation.id": "s",
            "perdure.app": app_name,
            "perdure.attempt": 1,
            "perdure.invocation_id": asked.id,
        }


@pytest.mark.server
async def test_each_step_of_one_activity_has_a_span(
    temporal_server: str, app_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clerk = agent("clerk", Priced([calls("look"), calls("look"), text("done")]), [Counted("look").fn])
    app = App(name=app_name, root_agent=clerk, steps_per_activity=20)
    async with traced(temporal_server) as (client, tracing, kept), serving(client, app) as user:
        with tracing.tracer.start_as_current_span("message"):
            await user.create()
            await user.run("go")
        names = Counter(span.name for span in kept.get_finished_spans())
        assert (names["chat scripted"], names["execute_tool look"], names["RunActivity:perdure:model"]) == (3, 2, 1)
        asked = [span for span in kept.get_finished_spans() if span.name == "chat scripted"]
        assert [(span.attributes or {})["gen_ai.usage.input_tokens"] for span in asked] == [11, 11, 11]
        assert {(span.attributes or {})["gen_ai.agent.name"] for span in asked} == {"clerk"}


@pytest.mark.server
@pytest.mark.parametrize("steps", [1, 20])
async def test_attempts_of_a_step_have_their_numbers_whatever_activity_makes_them(
    temporal_server: str, app_name: str, steps: int
) -> None:
    clerk = agent("clerk", Priced([calls("look"), text("done")]), [Counted("look", fail=2).fn])
    app = App(name=app_name, root_agent=clerk, steps_per_activity=steps)
    async with traced(temporal_server) as (client, _, kept), serving(client, app) as user:
        await user.create()
        assert (await user.run("go")).status == "finished"
        ran = [span for span in kept.get_finished_spans() if span.name == "execute_tool look"]
        assert {(span.attributes or {})["perdure.attempt"] for span in ran} == {1, 2, 3}
        assert len(ran) == 3


@pytest.mark.server
async def test_what_an_error_says_does_not_get_into_a_span(temporal_server: str, app_name: str) -> None:
    def look() -> None:
        """Look."""
        raise RuntimeError("the card is 4929-zxy")

    app = make_app(app_name, agent("clerk", [calls("look"), text("x")], [look]))
    async with traced(temporal_server) as (client, _, kept), serving(client, app) as user:
        await user.create()
        assert (await user.run("go")).status == "failed"
        spans = kept.get_finished_spans()
        told = [dict(event.attributes or {}) for span in spans for event in span.events]
        assert {"exception.type": "temporalio.exceptions.ApplicationError"} in told
        assert [dict(s.attributes or {})["error.type"] for s in spans if s.name == "execute_tool look"][:1] == [
            "RuntimeError"
        ]
        assert "4929-zxy" not in json.dumps([span.to_json() for span in spans])


@pytest.mark.server
async def test_a_trace_goes_on_in_the_runs_that_continue_a_session(temporal_server: str, app_name: str) -> None:
    tool = Counted("tool")
    app = make_app(app_name, agent("clerk", [calls("tool"), calls("tool"), text("done")], [tool.fn]))
    async with traced(temporal_server) as (client, tracing, kept), serving(client, app) as user:
        user.runner = Runner(app_name, client, trial=Trial(steps_per_run=3))
        await user.create()
        first = (await user.workflow.describe()).run_id
        with tracing.tracer.start_as_current_span("message"):
            assert (await user.run("go")).status == "finished"
        assert (await user.workflow.describe()).run_id != first
        assert traces(kept)["message"] == [*["chat scripted", "execute_tool tool"] * 2, "chat scripted"]


@pytest.mark.server
async def test_custom_agents_are_traced(temporal_server: str, app_name: str) -> None:
    gate = Gate()
    gate.open()
    inner = agent("inner", [calls("tool"), text("x")], [gate.tool("tool")])
    app = App(
        name=app_name,
        root_agent=Broker(name="broker", sub_agents=[inner]),
        resumability_config=ResumabilityConfig(is_resumable=True),
        activities=[quote, slow_quote],
    )
    async with traced(temporal_server) as (client, tracing, kept), serving(client, app) as user:
        await user.create()
        with tracing.tracer.start_as_current_span("message"):
            assert (await user.run("go")).status == "finished"
        assert traces(kept)["message"] == [
            "run_activity quote",
            "run_activity slow_quote",
            "chat scripted",
            "execute_tool tool",
            "chat scripted",
        ]


@pytest.mark.server
async def test_a_session_that_was_begun_without_traces_goes_on_with_them(
    client: Client, temporal_server: str, app_name: str
) -> None:
    """And the other way round: what is in histories is read by any worker."""
    app = make_app(app_name, agent("clerk", [calls("ask"), calls("ask"), text("x")], [long_running("ask")]))
    async with serving(client, app) as user:
        await user.create()
        asked = await user.run("go")
    async with traced(temporal_server) as (other, _, kept), serving(other, app) as user:
        again = await user.answered({asked.pending[0].id: 1})
        assert [names for names in traces(kept).values() if names] == [["chat scripted", "execute_tool ask"]]
    async with serving(client, app, cached=0):
        plain = User(client, app_name)
        assert (await plain.answered({again.pending[0].id: 2})).status == "finished"


def test_without_the_extra_it_is_said_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delitem(sys.modules, "perdure.telemetry.exporting")
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    assert run_command(["api", "--port", "0", "--otel"]) == 1
    assert "pip install 'perdure[telemetry]'" in capsys.readouterr().err


def test_the_standard_variables_choose_the_exporter() -> None:
    assert exporter_from(OFF) is None
    assert exporter_from({"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}) is not None
    with pytest.raises(DefinitionError, match="choose otlp, console or none"):
        exporter_from({"OTEL_TRACES_EXPORTER": "zipkin"})
    with pytest.raises(DefinitionError, match="port 4318"):
        exporter_from({"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"})


@pytest.mark.parametrize(
    ("environment", "named"), [({}, "perdure-worker"), ({"OTEL_SERVICE_NAME": "shop"}, "shop")], ids=["own", "given"]
)
def test_a_service_has_the_name_that_it_is_given(
    environment: dict[str, str], named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    tracing = Tracing("perdure-worker", {**OFF, **environment})
    assert tracing.provider.resource.attributes["service.name"] == named
    tracing.close()
