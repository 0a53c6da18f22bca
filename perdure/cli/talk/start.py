"""Begins a conversation: on a terminal with a prompt, else with the lines of standard input as messages."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from contextlib import AsyncExitStack
from dataclasses import dataclass

from temporalio.client import Client
from temporalio.runtime import Runtime, TelemetryConfig

from perdure.cli.exits import ExitCode
from perdure.cli.options import Connection, SessionName
from perdure.cli.output import say, session_flags
from perdure.cli.talk.conversation import COMMANDS, Conversation, Sending
from perdure.cli.talk.keyboard import Keyboard
from perdure.cli.turns.following import check_served, follow_to_end, open_session, streams_of
from perdure.client import Runner
from perdure.config import connect
from perdure.messages.keys import SessionKey
from perdure.sessions.transfers import fresh_id
from perdure.streams.hub import TokenHub


@dataclass(frozen=True, kw_only=True)
class Talk:
    """What the command line says of a conversation."""

    name: SessionName
    connection: Connection
    sending: Sending
    stream: bool
    stream_from: tuple[str, ...]
    wait_for_worker: bool
    as_json: bool

    async def connect(self) -> Client:
        """Return a connected client, of an app that is served."""
        client = await connect(self.connection.config())
        if not self.wait_for_worker:
            await check_served(client, self.name.app)
        return client


def talk(given: Talk) -> int:
    """Talk until the person, or the lines, are at an end; returns the exit code."""
    on_terminal = sys.stdin.isatty() and sys.stdout.isatty() and threading.current_thread() is threading.main_thread()
    if given.as_json or not on_terminal:
        return _take_lines(given)
    keyboard = Keyboard(tuple(COMMANDS))
    return keyboard.serve(lambda: _converse(given, keyboard))


async def _converse(given: Talk, keyboard: Keyboard) -> int:
    # Temporal's core would write its own lines of each attempt across the screen.
    Runtime.set_default(Runtime(telemetry=TelemetryConfig(logging=None)))
    streams = streams_of(given.connection, given.stream_from, on=True, wait=given.stream)
    async with streams as hub:
        client = await given.connect()
        runner = Runner(given.name.app, client, streams=hub, auto_create_session=True)
        key = given.name.key(given.name.session or fresh_id())
        flags = session_flags(key) + given.connection.flags
        conversation = Conversation(runner, key, keyboard, given.sending, flags=flags)
        conversation.note(f"{key.app}, session {key.session}")
        conversation.note("Ctrl-C stops what is at work, Ctrl-D leaves, /help says more.")
        log = _Log(conversation)
        logging.getLogger("perdure").addHandler(log)
        try:
            return await conversation.hold()
        finally:
            logging.getLogger("perdure").removeHandler(log)


class _Log(logging.Handler):
    """Has the conversation show the warnings of its client, such as that no worker answers."""

    def __init__(self, conversation: Conversation) -> None:
        super().__init__(logging.WARNING)
        self._conversation = conversation

    def emit(self, record: logging.LogRecord) -> None:
        self._conversation.note(record.getMessage(), once=True)


def _take_lines(given: Talk) -> int:
    """Send each line of standard input as a message, and print what comes of it; the first failure is the last line."""
    with asyncio.Runner() as loop:
        stack = AsyncExitStack()
        try:
            lines = loop.run(_Lines.begin(given, stack))
            # Read in this thread, between two messages: so Ctrl-C ends it at once.
            for line in sys.stdin:
                if line.strip() and not loop.run(lines.send(line.strip())):
                    break
            return lines.code
        finally:
            loop.run(stack.aclose())


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
