"""Nothing that a session holds steers the terminal of whoever looks at it by a command, or reads a log there."""

from __future__ import annotations

import ast
import io
import json
import logging
import re
import subprocess
import sys
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st
from temporalio.client import Client

from perdure import cli
from perdure.cli.main import main
from perdure.escapes import escaped, escaped_json
from perdure.logs import configure_logging
from tests.api.support import Obedient, obedient_app
from tests.cli.support import Perdure, perdure
from tests.workflows.support import User, serving

__all__ = ["perdure"]

HOSTILE = "\x1b]0;owned\x07\x9b2J\u202eevil\u2066\u2028x\r\ny\x7f\u200b"
HARMFUL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]")


READS = """
import json, sys
from perdure.trajectories.given_logs import read_given
assert read_given(json.dumps({"author": "a", "finishReason": sys.stdin.read()})).events
"""


@pytest.mark.process
def test_a_library_warns_of_no_word_that_a_log_holds() -> None:
    """google-genai quotes each value of an enumeration that it does not know, of any length, on standard error."""
    ran = subprocess.run(
        [sys.executable, "-c", READS], input=HOSTILE.encode(), capture_output=True, timeout=60, check=False
    )
    assert (ran.returncode, ran.stderr) == (0, b"")


def leaves(group: click.Group, *path: str) -> Iterator[tuple[str, ...]]:
    """Yield the names of all commands."""
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from leaves(command, *path, name)
        else:
            yield (*path, name)


def command_of(path: tuple[str, ...]) -> click.Command:
    found: click.Command = main
    for name in path:
        assert isinstance(found, click.Group)
        found = found.commands[name]
    return found


@pytest.fixture
async def user(client: Client, app_name: str) -> AsyncGenerator[User]:
    """A user whose id, session, state and messages are hostile, with one invocation that waits and one that failed."""
    async with serving(client, obedient_app(app_name, Obedient())) as plain:
        user = plain.other(f"u{HOSTILE}", f"s{HOSTILE}")
        await user.create(**{f"key{HOSTILE}": HOSTILE, "plain": HOSTILE})
        assert (await user.run(f"fail {HOSTILE}")).status == "failed"
        assert (await user.run(HOSTILE)).status == "finished"
        assert (await user.run("ask")).status == "waiting"
        yield user


def arguments(user: User, tmp_path: Path, address: str, call: str, invocation: str) -> dict[tuple[str, ...], list[str]]:
    """Return what each command is given."""
    at = ["--address", address]
    one = ["--user", str(user.who["user_id"]), "--session", str(user.who["session_id"])]
    kept = ["--artifacts", str(tmp_path / "artifacts")]
    file = tmp_path / f"text{HOSTILE.replace('/', '')}.txt"
    file.write_text(HOSTILE)
    log = tmp_path / "log.jsonl"
    log.write_text(json.dumps({"author": HOSTILE, "id": HOSTILE}))
    keys = tmp_path / "keys.toml"
    made: dict[tuple[str, ...], list[str]] = {
        ("run",): [user.app, HOSTILE, *one, *at],
        ("stop",): [user.app, invocation, "--reason", HOSTILE, *one, *at],
        ("resume",): [user.app, f"e-{HOSTILE}", *one, *at],
        ("respond",): [user.app, f"{call}{HOSTILE}=1", *one, *at],
        ("events",): [user.app, *one, *at],
        ("effects",): [user.app, *one, *at],
        ("sessions",): [user.app, *at],
        ("session", "create"): [user.app, *one, *at],
        ("session", "show"): [user.app, *one, *at],
        ("session", "state"): [user.app, f"{HOSTILE}=1", *one, *at],
        ("session", "delete"): [user.app, "--yes", "--user", "u", "--session", HOSTILE, *at],
        ("pending",): [user.app, *at],
        ("explain",): [user.app, *one, *at],
        ("apps",): [*at],
        ("artifacts", "list"): [user.app, *one, *kept],
        ("artifacts", "versions"): [user.app, "text", *one, *kept],
        ("artifacts", "get"): [user.app, f"no{HOSTILE}", *one, *kept],
        ("artifacts", "put"): [user.app, str(file), "--name", "text", *one, *kept],
        ("artifacts", "delete"): [user.app, "text", *one, *kept],
        ("export",): [user.app, "--user", "u", "--session", HOSTILE, *at],
        ("import",): [str(log), "--app", user.app, "--user", HOSTILE, *at],
        ("replay",): [user.app, *one, *at],
        ("doctor",): [*at, "--namespace", f"no{HOSTILE}"],
        ("api-keys", "new"): [str(keys), "--subject", HOSTILE],
        ("api-keys", "list"): [str(keys)],
        ("keys", "new"): ["--file", str(tmp_path / "ring")],
        ("keys", "list"): [str(tmp_path / "ring")],
    }
    return made


@pytest.mark.server
@pytest.mark.timeout(300)
async def test_no_command_prints_what_steers_a_terminal(
    perdure: Perdure, user: User, tmp_path: Path, temporal_server: str
) -> None:
    """Every command there is, as text and as JSON, whether it does its work or refuses."""
    view = await user.view()
    (call,) = (await user.pending()).values()
    given = arguments(user, tmp_path, temporal_server, call, view.invocations[-1].id)
    said: set[tuple[str, ...]] = set()
    for path in sorted(leaves(main)):
        command = command_of(path)
        as_json = any("--json" in parameter.opts for parameter in command.params)
        words = given.get(path, [f"no{HOSTILE}", f"--no{HOSTILE}"])
        for more in ([], ["--json"]) if as_json else ([],):
            done = await perdure(*path, *words, *more)
            found = HARMFUL.search(done.out.replace("\n", "") + done.err.replace("\n", ""))
            assert found is None, (path, more, done.out, done.err)
            if "x9b" in done.out + done.err or "u009b" in done.out + done.err:
                said.add(path)
            if more and done.code in (0, 2) and path != ("codec",):
                assert all(json.loads(line) for line in done.out.splitlines())
    # Those that must have had something hostile to say.
    assert said >= {("events",), ("session", "show"), ("sessions",), ("pending",), ("explain",), ("run",), ("respond",)}


def test_commands_print_through_one_module() -> None:
    """Else a new one could print an id as it is."""
    folder = Path(cli.__file__).parent
    found: list[str] = []
    for file in sorted(folder.rglob("*.py")):
        if file.name == "output.py" or (file.parent.name == "talk" and file.name in ("keyboard.py", "screen.py")):
            # A conversation writes, and reads, through these two.
            continue
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call):
                name = ast.unparse(node.func)
                if re.fullmatch(
                    r"print|input|click\.(echo|secho|echo_via_pager|prompt|confirm|pause)|sys\.std(out|err)\.(buffer\.)?write"
                    r"|traceback\.print_\w+|\w+\.show",
                    name,
                ) and not name.endswith("printer.show"):
                    found.append(f"{file.name}:{node.lineno}: {name}")
    assert found == []


@pytest.mark.parametrize("kind", ["field", "event", "exception", "list"])
def test_no_log_line_steers_a_terminal(kind: str) -> None:
    """Nor one of another library's; in JSON it is escaped anyway."""
    for as_json in (False, True):
        stream = io.StringIO()
        configure_logging(json=as_json, stream=stream)
        logger = logging.getLogger("perdure.test")
        try:
            raise ValueError(HOSTILE)
        except ValueError:
            match kind:
                case "field":
                    logger.warning("a line", extra={"user": HOSTILE})
                case "event":
                    logger.warning("a line %s", HOSTILE)
                case "exception":
                    logger.exception("a line")
                case _:
                    logger.warning("a line", extra={"users": [HOSTILE, {HOSTILE: 1}]})
        told = stream.getvalue()
        assert "a line" in told
        assert HARMFUL.search(told.replace("\n", "")) is None
        assert "owned" in told


@given(st.text())
def test_an_escaped_line_is_one_line_and_harmless(text: str) -> None:
    """Whatever the text, and escaping twice is escaping once."""
    line = escaped(text)
    assert len(line.splitlines()) <= 1
    assert HARMFUL.search(line) is None
    assert escaped(line) == line
    assert HARMFUL.search(escaped(text, lines=True).replace("\n", "").replace("\t", "")) is None


@given(st.recursive(st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_escaped_json_means_the_same(value: Any) -> None:
    """In every form that JSON is written in."""
    for ascii_only in (False, True):
        text = json.dumps(value, ensure_ascii=ascii_only)
        assert json.loads(escaped_json(text)) == value
        assert HARMFUL.search(escaped_json(text)) is None


def test_the_commands_are_all_known() -> None:
    """The walk finds those of groups, too."""
    assert ("session", "show") in set(leaves(main))
    assert len(set(leaves(main))) > 25
