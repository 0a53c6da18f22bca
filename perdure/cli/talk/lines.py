"""Takes the lines of a pipe as messages, one after the other."""

from __future__ import annotations

import asyncio
import sys
import threading
from concurrent.futures import Future, InvalidStateError
from contextlib import AsyncExitStack, suppress

from temporalio.client import Client

from perdure.cli.exits import ExitCode
from perdure.cli.output import say
from perdure.cli.talk.given import Talk
from perdure.cli.turns.following import follow_to_end, open_session, streams_of
from perdure.client import Runner
from perdure.messages.keys import SessionKey
from perdure.streams.hub import TokenHub


async def take_lines(given: Talk) -> int:
    """Send each line of standard input as a message, and print what comes of it; the first failure is the last line."""
    async with AsyncExitStack() as stack:
        lines = await _Lines.begin(given, stack)
        while line := await _next_line():
            if line.strip() and not await lines.send(line.strip()):
                break
        return lines.code


async def _next_line() -> str:
    """Return the next line of standard input, empty at its end.

    It is read in a thread, which may be left alone: where this one reads, a Ctrl-C in the moment before is heard only
    with the next line.
    """
    found: Future[str] = Future()

    def read() -> None:
        # Who waited may have given up meanwhile.
        with suppress(InvalidStateError):
            try:
                found.set_result(sys.stdin.readline())
            except (OSError, ValueError) as error:
                found.set_exception(error)

    threading.Thread(target=read, daemon=True).start()
    return await asyncio.wrap_future(found)


class _Lines:
    """A conversation by the lines of standard input."""

    def __init__(self, given: Talk, client: Client, hub: TokenHub | None) -> None:
        self._given = given
        self._runner = Runner(given.name.app, client, streams=hub)
        self._key: SessionKey | None = None
        self._codes: dict[str, ExitCode] = {}

    @classmethod
    async def begin(cls, given: Talk, stack: AsyncExitStack) -> _Lines:
        """Connect."""
        streams = streams_of(given.connection, given.stream_from, on=given.stream)
        hub = await stack.enter_async_context(streams)
        return cls(given, await given.connect(), hub)

    @property
    def code(self) -> ExitCode:
        """The exit code: 2 if anything waits, 1 if the last message failed."""
        codes = list(self._codes.values())
        if not codes:
            say("perdure: standard input holds no message, so nothing was sent", err=True)
            return ExitCode.FINISHED
        return ExitCode.WAITING if ExitCode.WAITING in codes and codes[-1] != ExitCode.FAILED else codes[-1]

    async def send(self, message: str) -> bool:
        """Send a message and print what comes of it; returns whether the next one may be sent."""
        given = self._given
        first = self._key is None
        if self._key is None:
            self._key = await open_session(self._runner, given.name)
            if given.name.session is None and not given.as_json:
                say(f"session {self._key.session} of user {self._key.user}", err=True)
        self._runner.expect_tokens(**self._key.arguments)
        result = await self._runner.send_message(
            **self._key.arguments,
            message=message,
            state_delta=given.sending.state_delta if first else None,
            max_llm_calls=given.sending.max_llm_calls,
        )
        code = await follow_to_end(self._runner, self._key, result, given.connection, as_json=given.as_json)
        # A task's next message goes on with its invocation; the last to end is the last here.
        self._codes.pop(result.invocation.id, None)
        self._codes[result.invocation.id] = code
        return code is not ExitCode.FAILED
