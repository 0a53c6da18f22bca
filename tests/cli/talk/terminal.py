"""A command in a terminal of its own, as a person has it: a pty of 100 columns, keys sent, the screen read as text."""

from __future__ import annotations

import asyncio
import fcntl
import os
import pty
import re
import struct
import sys
import termios
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress

_STYLE = re.compile(r"\x1b\[[0-9;]*m|\x1b\[\?2004[hl]|\x01|\x02")
_COLUMNS, _ROWS = 100, 40
_PATIENCE = 60.0


class Terminal:
    """What a person sees and types.

    Attributes:
        raw: All that was written, as it was.
    """

    def __init__(self, file: int, process: asyncio.subprocess.Process) -> None:
        self._file = file
        self._process = process
        self._grown = asyncio.Event()
        self._read_to = 0
        self.raw = ""
        os.set_blocking(file, False)
        asyncio.get_running_loop().add_reader(file, self._read)

    def _read(self) -> None:
        try:
            data = os.read(self._file, 65536)
        except OSError:
            # So ends a pty whose other side is closed.
            data = b""
        if not data:
            asyncio.get_running_loop().remove_reader(self._file)
        self.raw += data.decode(errors="replace")
        self._grown.set()

    @property
    def text(self) -> str:
        """All that was written, styles left out; what was erased stands on a line of its own."""
        return re.sub(r"\r\x1b\[K|\r\n|\r", "\n", _STYLE.sub("", self.raw))

    async def sees(self, *texts: str) -> str:
        """Wait until texts have come, in this order, behind what was seen before; returns what came till then."""
        begin = self._read_to
        for text in texts:
            try:
                async with asyncio.timeout(_PATIENCE):
                    while (at := self.text.find(text, self._read_to)) < 0:
                        self._grown.clear()
                        await self._grown.wait()
            except TimeoutError:
                seen, rest = self.text[: self._read_to], self.text[self._read_to :]
                raise AssertionError(f"{text!r} did not come behind:\n{seen}--- but:\n{rest}") from None
            self._read_to = at + len(text)
        return self.text[begin : self._read_to]

    async def sees_one(self, *texts: str) -> str:
        """Wait until one of some texts has come; returns which."""
        found = "|".join(map(re.escape, texts))
        async with asyncio.timeout(_PATIENCE):
            while (match := re.compile(found).search(self.text, self._read_to)) is None:
                self._grown.clear()
                await self._grown.wait()
        self._read_to = match.end()
        return match[0]

    def type(self, keys: str) -> None:
        """Press keys."""
        os.write(self._file, keys.encode())

    async def says(self, prompt: str, line: str) -> str:
        """Wait for a prompt and type a line behind it; returns what came before."""
        seen = await self.sees(prompt)
        self.type(f"{line}\r")
        return seen

    async def ends(self) -> int:
        """Wait for the command's end and return its exit code."""
        try:
            async with asyncio.timeout(_PATIENCE):
                return await self._process.wait()
        except TimeoutError:
            raise AssertionError(f"it did not end:\n{self.text}") from None

    @property
    def echoes(self) -> bool:
        """Whether the terminal shows keys by itself."""
        return bool(termios.tcgetattr(self._file)[3] & termios.ECHO)


@asynccontextmanager
async def terminal(*arguments: str, variables: Mapping[str, str] | None = None) -> AsyncGenerator[Terminal]:
    """Run `perdure` in a terminal; it is killed at the end if it has not ended."""
    here, there = pty.openpty()
    fcntl.ioctl(there, termios.TIOCSWINSZ, struct.pack("HHHH", _ROWS, _COLUMNS, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS", "LINES")}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "perdure", *arguments),
        stdin=there,
        stdout=there,
        stderr=there,
        env=environment | {"TERM": "xterm-256color", "INPUTRC": "/dev/null"} | dict(variables or {}),
        # The terminal's Ctrl-C goes to whom it belongs to.
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0) and None,
    )
    try:
        yield Terminal(here, process)
    finally:
        os.close(there)
        if process.returncode is None:
            process.kill()
            await process.wait()
        with suppress(ValueError):
            asyncio.get_running_loop().remove_reader(here)
        os.close(here)
