"""Begins a conversation: on a terminal with a prompt, else with the lines of standard input as messages."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading

from temporalio.runtime import Runtime, TelemetryConfig

from perdure.cli.output import session_flags
from perdure.cli.talk.conversation import COMMANDS, Conversation
from perdure.cli.talk.given import Talk
from perdure.cli.talk.keyboard import Keyboard
from perdure.cli.talk.lines import take_lines
from perdure.cli.turns.following import streams_of
from perdure.client import Runner
from perdure.sessions.transfers import fresh_id


def talk(given: Talk) -> int:
    """Talk until the person, or the lines, are at an end; returns the exit code."""
    on_terminal = sys.stdin.isatty() and sys.stdout.isatty() and threading.current_thread() is threading.main_thread()
    if given.as_json or not on_terminal:
        return asyncio.run(take_lines(given))
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
