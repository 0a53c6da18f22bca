"""One turn of a program: what it says goes to the durable session, and the events come back to the program's loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from contextlib import ExitStack, aclosing, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from google.adk.agents.run_config import RunConfig, StreamingMode  # pyright: ignore[reportPrivateImportUsage] -- no other place in 1.x
from google.genai import types

from perdure.client import Runner
from perdure.journal.events import Event
from perdure.messages.session import InvocationResult
from perdure.programs.embedded import embedded

__all__ = ["Turn", "beside", "checked"]

_T = TypeVar("_T")

_TAKEN = frozenset({"streaming_mode", "max_llm_calls", "custom_metadata", "telemetry"})
"""Fields of a `RunConfig` that mean here what they mean to google.adk."""


def checked(config: RunConfig | None, more: dict[str, Any]) -> RunConfig:
    """Return a run's configuration, if it says nothing that means nothing here.

    Raises:
        ValueError: It does, or a further parameter of google.adk's does.
    """
    config, default = config or RunConfig(), RunConfig()
    # Not by attributes: some are deprecated, and warn.
    set_here = [name for name, value in vars(config).items() if value != vars(default)[name]]
    unknown = [f"run_config.{name}" for name in set_here if name not in _TAKEN] + [name for name in more if more[name]]
    if unknown:
        raise ValueError(f"{', '.join(unknown)}: not supported by a durable run; leave it out")
    return config


async def beside(coroutine: Coroutine[Any, Any, _T]) -> _T:
    """Run a coroutine on the loop of the workers."""
    return await asyncio.wrap_future(embedded().submit(coroutine))


@dataclass(frozen=True)
class Turn:
    """A turn in a session."""

    sessions: Runner
    user_id: str
    session_id: str
    config: RunConfig

    @property
    def _who(self) -> dict[str, Any]:
        return {"user_id": self.user_id, "session_id": self.session_id}

    @property
    def _streaming(self) -> bool:
        return self.config.streaming_mode == StreamingMode.SSE

    async def begin(
        self, message: types.Content | None, invocation_id: str | None, state_delta: dict[str, Any] | None
    ) -> InvocationResult:
        """Send a message or answers, or resume.

        Raises:
            RequestRefused: The session did not take it.
            ValueError: There is nothing to send, or `state_delta` goes with no message.
        """
        return await beside(self._begin(message, invocation_id, state_delta))

    async def _begin(
        self, message: types.Content | None, invocation_id: str | None, state_delta: dict[str, Any] | None
    ) -> InvocationResult:
        with ExitStack() as unless_sent:
            if self._streaming:
                unless_sent.callback(self.sessions.expect_tokens(**self._who))
            result = await self._send(message, invocation_id, state_delta)
            unless_sent.pop_all()
        return result

    async def _send(
        self, message: types.Content | None, invocation_id: str | None, state_delta: dict[str, Any] | None
    ) -> InvocationResult:
        limit = self.config.max_llm_calls
        asked: dict[str, Any] = {"streaming": self._streaming}
        if limit != RunConfig.model_fields["max_llm_calls"].default:
            asked["max_llm_calls"] = limit
        if message is None:
            if invocation_id is None:
                raise ValueError("run_async needs a new_message, or the invocation_id of what is to be resumed")
            return await self.sessions.resume(**self._who, invocation_id=invocation_id, **asked)
        metadata = self.config.custom_metadata
        if any(part.function_response for part in message.parts or []):
            if state_delta:
                raise ValueError("a state_delta goes with a message, not with function responses")
            asked.pop("max_llm_calls", None)
            return await self.sessions.respond(**self._who, responses=message, metadata=metadata, **asked)
        return await self.sessions.send_message(
            **self._who, message=message, state_delta=state_delta, metadata=metadata, **asked
        )

    async def events(self, begun: InvocationResult) -> AsyncGenerator[Event, None]:
        """Yield the events of the agents until the invocation waits or ends.

        Raises:
            InvocationFailed: A step failed.
        """
        loop, queue = asyncio.get_running_loop(), asyncio.Queue[Event | Exception | None]()

        async def pump() -> None:
            last: Exception | None = None
            try:
                async with aclosing(self._follow(begun)) as events:
                    async for event in events:
                        loop.call_soon_threadsafe(queue.put_nowait, event)
            except Exception as error:
                last = error
            # A program that has dropped this may have closed its loop.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(queue.put_nowait, last)

        pumping = embedded().submit(pump())
        try:
            while (found := await queue.get()) is not None:
                if isinstance(found, Exception):
                    raise found
                yield found
        finally:
            pumping.cancel()

    def _follow(self, begun: InvocationResult) -> AsyncGenerator[Event, None]:
        return self.sessions.follow(
            **self._who, invocation_id=begun.invocation.id, since=begun.offset, streaming=self._streaming
        )
