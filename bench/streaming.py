"""Latency of a token from the model to a client of the HTTP API, and what streaming costs the run and its history.

    python -m bench.streaming [--tokens 200] [--rate 50] [--followers 20] [--burst 5000] [--json]

A model writes the time into each of its tokens. `one_process`: worker and API share a process, as in `perdure dev`;
`two_processes`: the worker has its own, and the API hears of it over TCP. `followers` is the latency at many clients of
one session, who share this process with the API. `arrived` is the share of tokens that came before the final event,
behind which none come. `burst` is the time of a run whose model writes as fast as it can: not streamed, with one
follower, and with a client connected that never reads. `history` compares a run that is streamed with one that is not:
events but for workflow tasks, which come as they come, and their bytes. The last line is the result.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx2
from google.genai import types
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client

from bench.processes import percentile, print_report, process, ready, tell_ready
from perdure.agents.definitions import App, LlmAgent
from perdure.api.app import create_app
from perdure.client import Runner
from perdure.config import ConnectionConfig, connect
from perdure.messages.keys import SessionKey
from perdure.models.base import BaseLlm, LlmRequest, LlmResponse
from perdure.serving.dev_server import DevServer
from perdure.serving.event_loop import run_serving
from perdure.serving.http_server import serve
from perdure.serving.sockets import listen, url_of
from perdure.streams import wire
from perdure.streams.hub import TokenHub
from perdure.streams.remote import StreamClient, split_address
from perdure.streams.server import StreamServer
from perdure.worker import create_workers

HERE, THERE = "bench_here", "bench_there"


class Clock(BaseLlm):
    """Answers `COUNT PAUSE` with as many tokens, each the time at which it is written, and seconds between them."""

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        asked = (llm_request.contents[-1].parts or [])[-1].text or ""
        count, pause = asked.split()
        said: list[str] = []
        for _ in range(int(count)):
            said.append(f"{time.time():.6f} ")
            if stream:
                yield LlmResponse(content=types.Content(role="model", parts=[types.Part(text=said[-1])]), partial=True)
            if float(pause):
                await asyncio.sleep(float(pause))
        yield LlmResponse(content=types.Content(role="model", parts=[types.Part(text="".join(said))]))


def make_app(name: str) -> App:
    return App(name=name, root_agent=LlmAgent(name="clock", model=Clock("clock")))


async def work(address: str) -> None:
    """Serve the app of another process, and tell what its model writes; prints where."""
    client = await connect(ConnectionConfig(address=address, namespace="default", tls=False))
    hub = TokenHub()
    [worker] = create_workers(client, [make_app(THERE)], streams=hub)
    async with worker, StreamServer(hub) as server:
        print(server.address)
        tell_ready()
        await asyncio.to_thread(sys.stdin.read)


@asynccontextmanager
async def api(client: Client, hub: TokenHub) -> AsyncGenerator[str]:
    """Serve the HTTP API; yields its URL."""
    stop, listener = asyncio.Event(), listen("127.0.0.1", 0)
    app = create_app(client, streams=hub)
    serving = asyncio.create_task(serve(app, listener, stop, closing=app.state.backend.closing))
    try:
        yield url_of(listener)
    finally:
        stop.set()
        await serving


class Bench:
    """Runs turns over HTTP."""

    def __init__(self, client: Client, http: httpx2.AsyncClient) -> None:
        self._client = client
        self._http = http

    async def session(self, app: str) -> str:
        id = str(uuid.uuid4())
        await Runner(app, self._client).create_session(user_id="u", session_id=id)
        return id

    async def turn(self, app: str, session: str, message: str, *, streaming: bool = True) -> list[float]:
        """Run a turn; returns how old each token is as it arrives."""
        body: dict[str, Any] = {"appName": app, "userId": "u", "sessionId": session, "streaming": streaming}
        body["newMessage"] = {"parts": [{"text": message}]}
        async with self._http.stream("POST", "/run_sse", json=body) as stream:
            return await _ages(stream.aiter_lines())

    async def attached(self, app: str, session: str) -> list[float]:
        """Follow a session until its agent has answered."""
        path = f"/v1/apps/{app}/users/u/sessions/{session}/events/stream"
        async with self._http.stream("GET", path, params={"partial": "true"}) as stream:
            return await _ages(stream.aiter_lines())

    async def latency(self, app: str, tokens: int, rate: float) -> dict[str, float]:
        """Return how old tokens are as they arrive, in milliseconds."""
        session = await self.session(app)
        await self.turn(app, session, "5 0.01")
        ages = await self.turn(app, session, f"{tokens} {1 / rate}")
        return _summary(ages, tokens)

    async def followers(self, app: str, count: int, tokens: int, rate: float) -> dict[str, float]:
        """Return the same for many followers of one session: of all tokens at all of them."""
        session = await self.session(app)
        following = [asyncio.create_task(self.attached(app, session)) for _ in range(count)]
        await asyncio.sleep(1)
        await self.turn(app, session, f"{tokens} {1 / rate}")
        return _summary([age for one in await asyncio.gather(*following) for age in one], tokens * count)

    async def seconds(self, app: str, tokens: int, *, streaming: bool, repeat: int = 5) -> float:
        """Return how long a turn takes whose model does not pause."""
        took: list[float] = []
        for _ in range(repeat):
            session = await self.session(app)
            started = time.perf_counter()
            await self.turn(app, session, f"{tokens} 0", streaming=streaming)
            took.append(time.perf_counter() - started)
        return statistics.median(took)

    async def history(self, app: str, tokens: int, *, streaming: bool) -> dict[str, int]:
        """Return events and bytes of the history of one turn, workflow tasks left out."""
        session = await self.session(app)
        await self.turn(app, session, f"{tokens} 0", streaming=streaming)
        history = await self._client.get_workflow_handle(SessionKey(app, "u", session).workflow_id).fetch_history()
        kept = [event for event in history.events if "WORKFLOW_TASK" not in EventType.Name(event.event_type)]
        return {"events": len(kept), "bytes": sum(event.ByteSize() for event in kept)}


async def _ages(lines: AsyncIterator[str]) -> list[float]:
    ages: list[float] = []
    async for line in lines:
        if not line.startswith("data: "):
            continue
        now = time.time()
        event = json.loads(line.removeprefix("data: "))
        if event.get("partial"):
            ages += [now - float(token) for part in event["content"]["parts"] for token in part["text"].split()]
        elif event["author"] == "clock":
            break
    return ages


def _summary(ages: list[float], expected: int) -> dict[str, float]:
    if not ages:
        return {"arrived": 0.0}
    return {
        "median_ms": statistics.median(ages) * 1e3,
        "p99_ms": percentile(ages, 0.99) * 1e3,
        "worst_ms": max(ages) * 1e3,
        "arrived": len(ages) / expected,
    }


async def _never_reads(address: str, session: str) -> wire.Connection:
    connection = wire.Connection(*await asyncio.open_connection(*split_address(address), limit=1000))
    await wire.greet_server(connection, "")
    await connection.send({"want": session})
    return connection


async def main() -> None:
    """Run the benchmark and print a table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--rate", type=float, default=50.0, help="tokens per second")
    parser.add_argument("--followers", type=int, default=20)
    parser.add_argument("--burst", type=int, default=5000)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--worker", metavar="ADDRESS", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        await work(options.worker)
        return
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(DevServer())
        client = await connect(ConnectionConfig(address=server.address, namespace="default", tls=False))
        hub = TokenHub()
        [worker] = create_workers(client, [make_app(HERE)], streams=hub)
        await stack.enter_async_context(worker)
        child = await stack.enter_async_context(process("bench.streaming", "--worker", server.address))
        assert child.stdout is not None
        address = (await child.stdout.readline()).decode().strip()
        await ready(child)
        hearing = await stack.enter_async_context(StreamClient(hub, [address]))
        assert await hearing.connects(10)
        url = await stack.enter_async_context(api(client, hub))
        limits = httpx2.Limits(max_connections=None)
        http = httpx2.AsyncClient(base_url=url, timeout=60, trust_env=False, limits=limits)
        bench = Bench(client, await stack.enter_async_context(http))
        report = await _measure(bench, options, address)
    print_report(report, table=not options.json)


async def _measure(bench: Bench, options: argparse.Namespace, address: str) -> dict[str, Any]:
    tokens, rate, burst = options.tokens, options.rate, options.burst
    latency = {
        "one_process": await bench.latency(HERE, tokens, rate),
        "two_processes": await bench.latency(THERE, tokens, rate),
        "followers": await bench.followers(THERE, options.followers, tokens, rate),
    }
    await bench.seconds(THERE, burst, streaming=True, repeat=1)
    whole = await bench.seconds(THERE, burst, streaming=False)
    followed = await bench.seconds(THERE, burst, streaming=True)
    session = await bench.session(THERE)
    stuck = await _never_reads(address, SessionKey(THERE, "u", session).workflow_id)
    started = time.perf_counter()
    for _ in range(3):
        await bench.turn(THERE, session, f"{burst} 0", streaming=False)
    beside = (time.perf_counter() - started) / 3
    stuck.close()
    history = {name: await bench.history(THERE, burst, streaming=name == "streamed") for name in ("whole", "streamed")}
    return {
        "tokens": tokens,
        "latency": latency,
        "burst_seconds": {"whole": whole, "followed": followed, "one_never_reads": beside},
        "history": history,
        "history_events_added": history["streamed"]["events"] - history["whole"]["events"],
        "history_bytes_added": history["streamed"]["bytes"] - history["whole"]["bytes"],
    }


if __name__ == "__main__":
    run_serving(main())
