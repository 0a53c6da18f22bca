"""What is typed while a prompt is taken back, again and again, is neither lost nor entered twice."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import threading
import time

import pytest

pytestmark = pytest.mark.process

_LINES = 40

_PROGRAM = """
import asyncio, json, random, sys

from perdure.cli.talk.keyboard import Keyboard

keyboard = Keyboard()

async def talk():
    lines, begun = [], ""
    while len(lines) < int(sys.argv[1]):
        reading = asyncio.create_task(keyboard.read("> ", prefill=begun))
        await asyncio.wait({reading}, timeout=random.uniform(0, 0.01))
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        if reading.cancelled():
            begun = keyboard.typed
        else:
            lines.append(reading.result())
            begun = ""
    print(json.dumps(lines), file=sys.stderr)
    return 0

keyboard.serve(talk)
"""


def test_each_line_comes_once_and_whole() -> None:
    here, there = pty.openpty()
    command = [sys.executable, "-c", _PROGRAM, str(_LINES)]
    process = subprocess.Popen(command, stdin=there, stdout=there, stderr=subprocess.PIPE, text=True)
    os.close(there)
    try:
        threading.Thread(target=_drain, args=(here,), daemon=True).start()
        for number in range(_LINES):
            for key in f"line {number}\r":
                os.write(here, key.encode())
                time.sleep(0.002)
        _, said = process.communicate(timeout=60)
    finally:
        process.kill()
        os.close(here)
    assert json.loads(said) == [f"line {number}" for number in range(_LINES)]


def _drain(file: int) -> None:
    try:
        while os.read(file, 65536):
            pass
    except OSError:
        # So ends a pty whose other side is closed.
        pass
