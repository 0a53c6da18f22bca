"""What holds of every command: an example in its help, JSON where it prints data, completion in three shells."""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest

from perdure.cli.main import main
from tests.cli.support import Perdure, perdure

__all__ = ["perdure"]

WITHOUT_JSON = {"new", "dev", "worker", "api", "exec", "codec", "export"}
"""They make files, or serve until they are told to end; an export is JSON lines anyway."""


def every_command(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from every_command(command, (*path, name))
        else:
            yield (*path, name)


COMMANDS = list(every_command(main))


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
async def test_every_command_shows_an_example_and_takes_json(perdure: Perdure, command: tuple[str, ...]) -> None:
    done = await perdure(*command, "--help")
    assert done.code == 0
    assert f"perdure {' '.join(command)}" in done.out.split("Example")[1]
    assert ("--json" in done.out.split("Options:")[1]) is (command[0] not in WITHOUT_JSON)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
async def test_a_shell_gets_its_completion(perdure: Perdure, monkeypatch: pytest.MonkeyPatch, shell: str) -> None:
    monkeypatch.setenv("_PERDURE_COMPLETE", f"{shell}_source")
    done = await perdure()
    assert done.code == 0
    assert f"_PERDURE_COMPLETE={shell}_complete" in done.out
    monkeypatch.setenv("_PERDURE_COMPLETE", f"{shell}_complete")
    monkeypatch.setenv("COMP_WORDS", "perdure ex")
    monkeypatch.setenv("COMP_CWORD", "ex" if shell == "fish" else "1")
    completed = await perdure()
    assert completed.code == 0
    assert [name for name in ("explain", "export", "run") if name in completed.out] == ["explain", "export"]
