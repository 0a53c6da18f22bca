"""What the tests of commands share: a command run in this process, and what it printed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest

from perdure.cli import run_command


@dataclass
class Done:
    """A command that has ended."""

    code: int
    out: str
    err: str

    @property
    def json_lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]


Perdure = Callable[..., Awaitable[Done]]


@pytest.fixture
def perdure(capsys: pytest.CaptureFixture[str]) -> Perdure:
    """Runs a command in this process, in a thread and on an event loop of its own."""

    async def run(*arguments: str) -> Done:
        capsys.readouterr()
        code = await asyncio.to_thread(run_command, arguments)
        captured = capsys.readouterr()
        return Done(code, captured.out, captured.err)

    return run
