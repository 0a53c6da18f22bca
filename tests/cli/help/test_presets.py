"""`perdure.toml`: what it gives to commands, what counts before it, and what in it is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.support import Perdure, perdure

__all__ = ["perdure"]

NOWHERE = "127.0.0.1:1"
ELSEWHERE = "127.0.0.1:2"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which commands run, where nothing says which server is meant."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TEMPORAL_ADDRESS", raising=False)
    return tmp_path


def write(folder: Path, text: str) -> None:
    (folder / "perdure.toml").write_text(text)


@pytest.mark.parametrize(
    "text",
    [
        f"address = '{NOWHERE}'",
        f"[pending]\naddress = '{NOWHERE}'",
        f"address = '{ELSEWHERE}'\n[pending]\naddress = '{NOWHERE}'\n[dev]\nport = 8100",
    ],
    ids=["for all", "for one", "for one before all"],
)
async def test_it_gives_options_to_commands(perdure: Perdure, folder: Path, text: str) -> None:
    write(folder, text)
    done = await perdure("pending", "shop")
    assert (done.code, f"no Temporal server answers at '{NOWHERE}'" in done.err) == (69, True), done.err


async def test_it_gives_options_to_commands_of_a_group(perdure: Perdure, folder: Path) -> None:
    write(folder, f"[session.show]\naddress = '{NOWHERE}'")
    assert NOWHERE in (await perdure("session", "show", "shop", "--session", "s")).err


@pytest.mark.parametrize("by", ["command line", "environment"])
async def test_the_command_line_and_the_environment_count_before_it(
    perdure: Perdure, folder: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    write(folder, f"address = '{NOWHERE}'")
    monkeypatch.setenv("TEMPORAL_ADDRESS", ELSEWHERE if by == "environment" else NOWHERE)
    given = ("--address", ELSEWHERE) if by == "command line" else ()
    assert ELSEWHERE in (await perdure("pending", "shop", *given)).err


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("addres = 'x'", "no command has an option 'addres'; did you mean 'address'?"),
        ("[dev]\nprot = 1", "[dev] has no option 'prot'; did you mean 'port'?"),
        ("[wroker]\n", "there is no command 'wroker'; did you mean 'worker'?"),
        ("[session.shwo]\n", "there is no command 'session.shwo'; did you mean 'show'?"),
        ("[session]\nshow = 3", "[session.show] is to be a table"),
        ("[dev", "perdure.toml cannot be read: "),
        ("[pending]\nolder-than = 'soon'", "--older-than"),
    ],
)
async def test_what_is_wrong_in_it_is_named(perdure: Perdure, folder: Path, text: str, told: str) -> None:
    write(folder, text)
    done = await perdure("pending", "shop")
    assert (done.code, told in done.err) == (64, True), done.err


async def test_each_option_has_a_variable(perdure: Perdure, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(folder, f"address = '{NOWHERE}'\nnamespace = 'theirs'")
    monkeypatch.setenv("PERDURE_PENDING_NAMESPACE", "mine")
    assert "(namespace 'mine')" in (await perdure("pending", "shop")).err
    monkeypatch.setenv("PERDURE_SESSION_SHOW_NAMESPACE", "other")
    # The version of an image, say.
    monkeypatch.setenv("PERDURE_VERSION", "1")
    assert "(namespace 'other')" in (await perdure("session", "show", "shop", "--session", "s")).err


async def test_values_are_checked_as_those_of_the_command_line(perdure: Perdure, folder: Path) -> None:
    write(folder, "[api]\nport = 'http'")
    done = await perdure("api", "shop")
    assert (done.code, "--port" in done.err) == (64, True), done.err
