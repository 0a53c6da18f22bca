"""Reads lines from a terminal on the main thread, for a conversation that runs on another one.

`input` edits a line and knows earlier ones (readline), but only the main thread hears the signals that end it: Ctrl-C,
and the one by which the conversation takes a prompt back, since there is something to show. While nothing is read, keys
that are pressed are not echoed: they stand in the next prompt.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import termios
import threading
from collections.abc import Callable, Coroutine, Generator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from types import FrameType
from typing import Any

import click

try:
    import readline
except ImportError:  # A Python that was built without it: lines are read all the same.
    readline = None

_ASK_BACK = signal.SIGUSR1

_TELLS_BEGINNING = hasattr(readline, "set_pre_input_hook")
"""Whether it is known from when on a line is edited; not with every library that readline may be."""


class EndOfInput(Exception):
    """Ctrl-D: there is nothing more to read."""


class Interrupt(Exception):
    """Ctrl-C at a prompt.

    Attributes:
        typed: Something had been typed.
    """

    def __init__(self, *, typed: bool) -> None:
        super().__init__()
        self.typed = typed


class _GaveWay(Exception):
    pass


@dataclass
class _Request:
    prompt: str
    prefill: str
    fresh: bool
    keep: bool
    answer: asyncio.Future[str] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    gone: asyncio.Future[str | Exception | None] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    """The prompt is on the screen no more: the line that was entered, what ended it, or nothing: it was taken back."""


class Keyboard:
    """The lines that a person types."""

    def __init__(self, words: Sequence[str] = ()) -> None:
        """Make it; `words` are completed at the beginning of a line, by Tab."""
        self._requests: SimpleQueue[_Request | None] = SimpleQueue()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_reading = False
        self._has_begun = False
        """The line that is read can be edited; before, and once it is entered, the terminal is as it always is."""
        self._words = tuple(words)
        self.typed = ""
        """What stood in the line that was not finished, since it was taken back or interrupted."""
        self.on_interrupt: Callable[[], None] = lambda: None
        """Called in the conversation's thread for a Ctrl-C while nothing is read."""

    def serve(self, conversation: Callable[[], Coroutine[Any, Any, int]]) -> int:
        """Run a conversation on a thread of its own, and read its lines on this one, the main thread.

        Returns:
            What it returns. What it raises is raised here.
        """
        outcome: Future[int] = Future()

        async def begin() -> int:
            self._loop = asyncio.get_running_loop()
            return await conversation()

        def work() -> None:
            try:
                outcome.set_result(asyncio.run(begin()))
            except BaseException as error:
                outcome.set_exception(error)
            finally:
                self._requests.put(None)

        with self._signals(), _terminal() as echo:
            threading.Thread(target=work, daemon=True).start()
            while (request := self._requests.get()) is not None:
                self._serve(request, echo)
        return outcome.result()

    async def read(self, prompt: str, *, prefill: str = "", fresh: bool = False, keep: bool = False) -> str:
        """Return a line. A cancelled read takes its prompt from the screen; `typed` has what stood in it.

        If the line was entered just before, it is returned all the same.

        Args:
            prompt: Stands in front of it.
            prefill: What stands in the line at first.
            fresh: Keys that were pressed before are forgotten: nobody may answer what he has not seen.
            keep: Keep it among the earlier lines.

        Raises:
            EndOfInput: Ctrl-D.
            Interrupt: Ctrl-C.
        """
        request = _Request(prompt, prefill, fresh, keep)
        self._requests.put(request)
        try:
            return await request.answer
        except asyncio.CancelledError:
            if not request.gone.done():
                signal.pthread_kill(threading.main_thread().ident or 0, _ASK_BACK)
            settled = await asyncio.shield(request.gone)
            if settled is None:
                raise
            if isinstance(settled, Exception):
                raise settled from None
            return settled

    def remember(self, line: str) -> None:
        """Put a line among the earlier ones."""
        if readline is not None and line:
            readline.add_history(line)

    def _serve(self, request: _Request, echo: Callable[[bool], None]) -> None:
        settled: str | Exception | None = None
        self.typed = request.prefill
        self._has_begun = False
        try:
            self._is_reading = True
            # Whoever takes it back from here on is heard.
            if not request.answer.done():
                echo(True)
                if request.fresh:
                    termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)
                settled = self._input(request)
        except _GaveWay:
            # Of a line that has wrapped only the last row is taken away.
            click.echo("\r\x1b[K", nl=False)
        except EOFError:
            click.echo()
            settled = EndOfInput()
        except KeyboardInterrupt:
            click.echo()
            settled = Interrupt(typed=bool(self.typed))
        finally:
            self._is_reading = False
            echo(False)
        assert self._loop is not None
        self._loop.call_soon_threadsafe(_settle, request, settled)

    def _input(self, request: _Request) -> str:
        if readline is None:
            return input(request.prompt)
        # Not functions of Python's: these would hear the signals, and readline would pass over what they raise.
        readline.set_startup_hook(partial(readline.insert_text, request.prefill))
        if _TELLS_BEGINNING:
            readline.set_pre_input_hook(partial(setattr, self, "_has_begun", True))
        readline.set_auto_history(request.keep)
        try:
            return input(request.prompt)
        finally:
            readline.set_startup_hook(None)

    @contextlib.contextmanager
    def _signals(self) -> Generator[None]:
        if readline is not None:
            readline.set_completer_delims("\n")
            readline.set_completer(self._complete)
            readline.parse_and_bind("tab: complete")
        before = {number: signal.getsignal(number) for number in (signal.SIGINT, _ASK_BACK)}
        signal.signal(signal.SIGINT, self._on_interrupt)
        signal.signal(_ASK_BACK, self._on_asked_back)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _complete(self, text: str, state: int) -> str | None:
        found = [word for word in self._words if text and word.startswith(text)]
        return found[state] if state < len(found) else None

    @property
    def _may_be_taken_back(self) -> bool:
        """A line is read, and it has not been entered: one that was would be lost."""
        if not (_TELLS_BEGINNING and self._has_begun):
            return self._is_reading
        return not termios.tcgetattr(sys.stdin.fileno())[3] & termios.ICANON

    def _on_interrupt(self, number: int, frame: FrameType | None) -> None:
        if self._may_be_taken_back:
            self._keep_typed()
            raise KeyboardInterrupt
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self.on_interrupt)

    def _on_asked_back(self, number: int, frame: FrameType | None) -> None:
        if self._may_be_taken_back:
            self._keep_typed()
            raise _GaveWay

    def _keep_typed(self) -> None:
        if readline is not None and (self._has_begun or not _TELLS_BEGINNING):
            self.typed = readline.get_line_buffer()


def _settle(request: _Request, settled: str | Exception | None) -> None:
    if isinstance(settled, str) and not request.answer.done():
        request.answer.set_result(settled)
    elif isinstance(settled, Exception) and not request.answer.done():
        request.answer.set_exception(settled)
    request.gone.set_result(settled)


@contextlib.contextmanager
def _terminal() -> Generator[Callable[[bool], None]]:
    """Yield what turns the echo of keys on and off; the terminal is left as it was found."""
    file = sys.stdin.fileno()
    found = termios.tcgetattr(file)
    silent = [*found]
    silent[3] &= ~termios.ECHO

    def echo(on: bool) -> None:
        termios.tcsetattr(file, termios.TCSADRAIN, found if on else silent)

    echo(False)
    try:
        yield echo
    finally:
        echo(True)
