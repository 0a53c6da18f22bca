"""Models that write while a test looks on."""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

from google.genai import types
from temporalio.client import Client

from perdure.agents import App
from perdure.client import Runner
from perdure.config import WorkerConfig
from perdure.errors import ModelError
from perdure.journal.events import Event
from perdure.models.base import BaseLlm, LlmRequest, LlmResponse
from perdure.streams.hub import TokenHub
from perdure.worker import create_workers
from tests.workflows.support import User


class Typist(BaseLlm):
    """Says each of its lines word by word if it is asked to stream; before each word it waits to be let on."""

    def __init__(self, *lines: str, held: bool = True) -> None:
        super().__init__("typist")
        self.lines = lines
        self.streamed: list[bool] = []
        """Whether each call was asked to stream."""
        self.fails_after: list[int] = []
        """Of the next calls, after how many words each fails."""
        self._let = threading.Semaphore(0)
        self._held = held

    def let(self, words: int = 1) -> None:
        """Let it say some words."""
        self._let.release(words)

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        self.streamed.append(stream)
        fails_after = self.fails_after.pop(0) if self.fails_after else None
        line = self.lines[llm_request.call_index]
        for number, word in enumerate(line.split(" ") if stream else []):
            if number == fails_after:
                raise ModelError("the line is busy", retryable=True, retry_after=0.1)
            if self._held:
                # On the models' own loop, where this model is alone.
                assert self._let.acquire(timeout=20), "the test never let the model go on"
            text = f" {word}" if number else word
            yield LlmResponse(content=types.Content(role="model", parts=[types.Part(text=text)]), partial=True)
        yield LlmResponse(content=types.Content(role="model", parts=[types.Part(text=line)]))


@asynccontextmanager
async def streaming(client: Client, app: App, hub: TokenHub | None = None, **config: Any) -> AsyncGenerator[User]:
    """Serve an app; its worker and its user share a hub, as in one process."""
    hub = hub or TokenHub()
    grace = timedelta(milliseconds=100)
    settings = WorkerConfig(graceful_shutdown_timeout=grace, fail_workflows_on_defects=True, **config)
    (worker,) = create_workers(client, [app], settings, streams=hub)
    async with worker:
        user = User(client, app.name)
        user.runner = Runner(app.name, client, streams=hub)
        yield user


def written(events: Sequence[Event]) -> list[str]:
    """Return events in short: of those that are partial the text in brackets."""
    return [f"[{event.text}]" if event.partial else event.text or "-" for event in events]


def by_id(events: Sequence[Event]) -> dict[str, str]:
    """Return the text of partial events, put together by id."""
    found: dict[str, str] = {}
    for event in events:
        if event.partial:
            found[event.id] = found.get(event.id, "") + (event.text or "")
    return found


def now() -> float:
    return time.monotonic()
