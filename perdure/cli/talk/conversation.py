"""A conversation with an app in a terminal: what the person does, message by message and answer by answer."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from perdure.cli.exits import ExitCode
from perdure.cli.output import describe_event
from perdure.cli.talk.asking import Asking
from perdure.cli.talk.keyboard import EndOfInput, Interrupt, Keyboard
from perdure.cli.talk.screen import Screen
from perdure.cli.talk.watch import Watch, working_in
from perdure.cli.turns.following import exit_code, plan_for_answers
from perdure.client import Runner
from perdure.errors import CallAnswered, CallNotFound, RequestRefused
from perdure.journal.attribution import attribution
from perdure.journal.open_calls import PendingCall
from perdure.messages.keys import SessionKey
from perdure.messages.session import InvocationView

COMMANDS: Mapping[str, str] = {
    "/resume": "run on what failed or was stopped: the newest, or /resume INVOCATION_ID",
    "/later": "at a call that waits: leave it, and write a message",
    "/answer": "ask again for what waits",
    "/stop": "give up the invocation that waits",
    "/events": "print the session's log",
    "/help": "print this",
    "/quit": "leave; the session stays, and what is at work goes on",
}
"""What may be written in the place of a message, or of an answer."""

_KEYS = "Ctrl-C stops what is at work; at a prompt it leaves, as Ctrl-D does. A text that begins with / is written //."
_PROMPT = "> "


class _Left(Exception):
    """The person leaves."""


class _PutOff(Exception):
    """The person does not answer now."""


class _News(Exception):
    """Something came while a line was to be read."""


@dataclass(frozen=True, kw_only=True)
class Sending:
    """How messages are sent."""

    state_delta: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Goes with the first one."""
    max_llm_calls: int | None = None


class Conversation:
    """One person's conversation in one session."""

    def __init__(self, runner: Runner, key: SessionKey, keyboard: Keyboard, sending: Sending, *, flags: str) -> None:
        """Begin; `flags` name the session and its server on a command line."""
        self._runner, self._key, self._keyboard, self._flags = runner, key, keyboard, flags
        self._screen = Screen()
        self._watch = Watch(runner, key, self._screen, keyboard.remember)
        self._state_delta: Mapping[str, Any] | None = sending.state_delta or None
        self._max_llm_calls = sending.max_llm_calls
        self._asking: dict[str, Asking] = {}
        self._is_reading = False
        self._unfinished = ("", "")
        """The prompt whose line was taken back, and what stood in it."""

    async def hold(self) -> int:
        """Talk until the person leaves; returns the exit code."""
        whole = asyncio.current_task()
        assert whole is not None

        def interrupt() -> None:
            if not self._watch.stop():
                whole.cancel()

        self._keyboard.on_interrupt = interrupt
        try:
            await self._watch.begin()
            while True:
                await self._go_on()
        except _Left:
            code = self._code()
        except asyncio.CancelledError:
            code = ExitCode.INTERRUPTED
        self._screen.close()
        if self._watch.exists:
            self._screen.line(f"Go on with: perdure run {self._flags}", of="quiet")
        return code

    def note(self, text: str, *, once: bool = False) -> None:
        """Say something that is not of the session; `once`, if it was said last, not again.

        At a prompt nothing is said: that no worker answers, say, is told to whoever sends a message.
        """
        if not self._is_reading:
            self._screen.note(text, once=once)

    def _code(self) -> ExitCode:
        found = [exit_code(one) for one in self._invocations() if one.status not in ("queued", "running")]
        return ExitCode.WAITING if ExitCode.WAITING in found else found[-1] if found else ExitCode.FINISHED

    def _invocations(self) -> tuple[InvocationView, ...]:
        return self._watch.view.invocations if self._watch.view is not None else ()

    async def _go_on(self) -> None:
        """Show what comes until it is the person's turn; then read a message, or the answer to a call that waits."""
        call = await self._watch.rest()
        try:
            if call is None:
                await self._message()
            else:
                await self._answer(call)
        except _News:
            pass
        except Interrupt as interrupt:
            if call is not None:
                self._leave_for_later(call)
            elif not interrupt.typed:
                raise asyncio.CancelledError from None
        except EndOfInput:
            raise _Left from None
        except RequestRefused as error:
            self._screen.line(str(error), of="bad")

    async def _message(self) -> None:
        self._screen.gap()
        text = (await self._read(_PROMPT, keep=True)).strip()
        if not text:
            return
        if text.startswith("/") and not text.startswith("//"):
            await self._command(text)
            return
        text = text.removeprefix("/") if text.startswith("//") else text
        self._watch.own.append(text)
        self._begin_turn()
        try:
            sent = await self._runner.send_message(
                **self._key.arguments,
                message=text,
                state_delta=self._state_delta,
                max_llm_calls=self._max_llm_calls,
            )
        except RequestRefused:
            self._watch.own.remove(text)
            raise
        self._watch.exists, self._state_delta = True, None
        if sent.invocation.status == "queued" and any(one.id != sent.invocation.id for one in self._working()):
            self._screen.line("Its turn comes after what is at work.", of="quiet")

    def _working(self) -> list[InvocationView]:
        return working_in(self._watch.view) if self._watch.view is not None else []

    def _begin_turn(self) -> None:
        self._screen.gap()
        self._screen.working()
        self._runner.expect_tokens(**self._key.arguments)

    async def _answer(self, call: PendingCall) -> None:
        asking = self._asking.get(call.id)
        if asking is None:
            plan = await plan_for_answers(self._runner, self._key, [call])
            asking = self._asking[call.id] = Asking(call, plan, self._screen, self._flags)
        first = call.id not in self._watch.asked
        self._watch.asked[call.id] = asking.tool
        asking.name()
        if not asking.can_be_answered:
            self._watch.put_off.add(call.id)
            return

        async def read(prompt: str, prefill: str) -> str:
            nonlocal first
            # Nobody answers what he has not seen.
            line = await self._answer_line(prompt, prefill, fresh=first)
            first = False
            return line

        try:
            answer = await asking.ask(read)
        except _PutOff:
            self._leave_for_later(call)
            return
        self._begin_turn()
        self._watch.answered.add(call.id)
        try:
            await self._runner.respond(
                **self._key.arguments,
                responses={call.id: answer.response},
                metadata=attribution(None, answer.why, datetime.now(UTC)),
            )
        except (CallAnswered, CallNotFound):
            # The next look says so.
            self._watch.answered.discard(call.id)
        except RequestRefused:
            self._watch.answered.discard(call.id)
            asking.again()
            raise

    def _leave_for_later(self, call: PendingCall) -> None:
        self._watch.put_off.add(call.id)
        self._screen.line("It goes on waiting; /answer asks again.", of="quiet")

    async def _answer_line(self, prompt: str, prefill: str, *, fresh: bool) -> str:
        """Read a line of an answer; what is a command is done."""
        while True:
            text = await self._read(prompt, prefill=prefill, fresh=fresh)
            if not text.startswith("/"):
                return text
            if text.startswith("//"):
                return text.removeprefix("/")
            if text.strip() == "/later":
                raise _PutOff
            await self._command(text)

    async def _read(self, prompt: str, *, prefill: str = "", fresh: bool = False, keep: bool = False) -> str:
        """Read a line; what was typed before it was taken back stands in it when it is asked for again.

        Raises:
            _News: Something came meanwhile.
        """
        self._screen.close()
        unfinished, self._unfinished = self._unfinished, ("", "")
        prefill = unfinished[1] if unfinished[0] == prompt else prefill
        self._is_reading = True
        reading = asyncio.create_task(self._keyboard.read(prompt, prefill=prefill, fresh=fresh, keep=keep))
        news = asyncio.create_task(self._watch.news())
        try:
            await asyncio.wait({reading, news}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not reading.done():
                reading.cancel()
            news.cancel()
            await asyncio.gather(reading, news, return_exceptions=True)
            self._is_reading = False
        if not reading.cancelled():
            self._screen.typed()
            return reading.result()
        self._unfinished = (prompt, self._keyboard.typed)
        raise _News

    async def _command(self, text: str) -> None:
        """Do what a line says that begins with a stroke."""
        name, _, rest = text.strip().partition(" ")
        match name:
            case "/quit":
                raise _Left
            case "/help":
                self._help()
            case "/events":
                await self._events()
            case "/answer":
                self._watch.put_off.clear()
                self._asking.clear()
                raise _News
            case "/resume":
                await self._resume(rest.strip())
            case "/stop":
                await self._stop()
            case _:
                self._screen.line(f"There is no command {name}; /help names them, and //… is a text.", of="bad")

    def _help(self) -> None:
        self._screen.gap()
        for name, does in COMMANDS.items():
            self._screen.line(f"  {name.ljust(8)}  {does}")
        self._screen.line(f"  {_KEYS}", of="quiet")

    async def _events(self) -> None:
        self._screen.gap()
        if not self._watch.exists:
            self._screen.line("There are none yet.", of="quiet")
            return
        async with aclosing(self._runner.events(**self._key.arguments)) as events:
            async for event in events:
                for line in describe_event(event):
                    self._screen.line(line, lines=True)

    async def _resume(self, invocation_id: str) -> None:
        resumable = [one.id for one in self._invocations() if one.resumable]
        if not (invocation_id or resumable):
            self._screen.line("Nothing has failed or was stopped that could be run on.", of="quiet")
            return
        self._begin_turn()
        await self._runner.resume(**self._key.arguments, invocation_id=invocation_id or resumable[-1])
        raise _News

    async def _stop(self) -> None:
        unfinished = [one for one in self._invocations() if one.status in ("running", "queued", "waiting")]
        if not unfinished:
            self._screen.line("Nothing waits, and nothing is at work.", of="quiet")
            return
        await self._runner.stop(
            **self._key.arguments, invocation_id=unfinished[-1].id, reason="/stop in a conversation"
        )
        raise _News
