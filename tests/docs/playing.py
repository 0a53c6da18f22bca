"""Plays a page: its blocks in order, in a folder of its own, against a Temporal namespace of its own."""

from __future__ import annotations

import ast
import asyncio
import importlib
import inspect
import json
import re
import tomllib
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tests.docs.blocks import Block, Command, commands_of
from tests.docs.shell import CommandFailed, Shell
from tests.test_examples import free_port

_IDS = {"CALL_ID": r"\badk-[0-9a-f-]{36}", "INVOCATION_ID": r"\be-[0-9a-f-]{36}", "API_KEY": r"\bpdk_\w+[\w-]*"}
"""What pages write in place of an id that was printed last."""

_PORT = re.compile(r"(?:(?<=:)|(?<=--port ))(?:7400|8000|8888|9090)\b")
"""Ports that pages name; each page has others in their place, since all are played on one machine."""

_LOOSE = re.compile(r"…|\.\.\.|\b(?:adk|e)-[0-9a-f-]{36}|\b[A-Z]+_ID\b|\d[\d.,:]*")
"""What differs from run to run in what is printed."""


class Page:
    """A page that is played: its folder, its shell, and the names that its fragments share."""

    def __init__(self, name: str, folder: Path, environment: Mapping[str, str], names: Mapping[str, Any]) -> None:
        self._folder = folder
        self._shell = Shell(folder, environment)
        self._ids: dict[str, str] = {}
        self._ports: dict[str, int] = {}
        self._printed = ""
        given = f"tests.docs.given.{name.lower().replace('-', '_')}"
        self._names = dict(names) | (vars(importlib.import_module(given)) if find_spec(given) else {})

    def close(self) -> None:
        """End all that the page has started."""
        self._shell.close()

    async def play(self, block: Block) -> None:
        """Play one block.

        Raises:
            Exception: It does not do what the page says; the exception's notes say where.
        """
        try:
            await self._play(block)
        except Exception as error:
            error.add_note(f"in the block of {block.place}:\n{block.text}\n{self._shell.log()}")
            raise

    async def _play(self, block: Block) -> None:
        if block.reason is not None:
            return
        if block.file is not None:
            path = self._folder / block.file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(self._here(block.text), encoding="utf-8")
        elif block.is_shell:
            for command in commands_of(block):
                await asyncio.to_thread(self._type, command)
        elif block.language == "python" and block.is_fragment:
            await run_fragment(self._here(block.text), self._names, block.place)
        elif block.language == "python":
            (self._folder / "program.py").write_text(self._here(block.text), encoding="utf-8")
            await asyncio.to_thread(self._type, Command(text="python program.py", exit_code=0, printed=()))
        elif block.language in READERS:
            READERS[block.language](block.text)
        else:
            check_printed(block.text.splitlines(), self._printed)

    def _here(self, text: str) -> str:
        """Return a text of the page with what holds here: ids that were printed, a folder for data, free ports."""
        for name, printed in self._ids.items():
            text = text.replace(name, printed)
        text = text.replace("/srv/", f"{self._folder}/srv/")
        return _PORT.sub(lambda found: str(self._ports.setdefault(found[0], free_port())), text)

    def _type(self, command: Command) -> None:
        text = self._here(command.text)
        if re.match(r"perdure (dev|api)(?![\w-])", text) and "--port" not in text:
            text = re.sub(r"(\s*&?\s*(#.*)?)$", self._here(" --port 8000") + r"\1", text, count=1)
        code, self._printed = self._shell.run(text)
        if code != command.exit_code:
            raise CommandFailed(f"{text}\nended with {code} and not {command.exit_code}:\n{self._printed}")
        for name, pattern in _IDS.items():
            if found := re.findall(pattern, self._printed):
                self._ids[name] = found[-1]
        check_printed(command.printed, self._printed)


READERS = {"json": json.loads, "toml": tomllib.loads}


def check_printed(expected: list[str] | tuple[str, ...], printed: str) -> None:
    """Check that lines were printed in this order, perhaps with others between them; numbers and ids may differ.

    Raises:
        AssertionError: One was not.
    """
    rest = iter(printed.splitlines())
    for line in filter(str.strip, expected):
        pattern = re.compile("".join(_loose_parts(line.strip())))
        assert any(pattern.fullmatch(told.strip()) for told in rest), f"{line!r} is not printed (there):\n{printed}"


def _loose_parts(line: str) -> list[str]:
    fixed = _LOOSE.split(line)
    loose = [r".*" if found in ("…", "...") else r"\S*" for found in _LOOSE.findall(line)] + [""]
    parts: list[str] = []
    for text, between in zip(fixed, loose, strict=True):
        parts += [r"\s+".join(re.escape(word) for word in re.split(r"\s+", text)), between]
    return parts


async def run_fragment(text: str, names: dict[str, Any], place: str) -> None:
    """Run lines out of a program, which may await at their top, with the names that the lines before it left."""
    code = compile(text, place, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    result: object = eval(code, names)
    if inspect.isawaitable(result):
        await result
