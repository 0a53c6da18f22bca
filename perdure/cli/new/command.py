"""`new`: makes the folder, and says what to type next."""

from __future__ import annotations

import keyword
import re
from importlib.util import find_spec
from pathlib import Path

import click

from perdure.cli.exits import ExitCode
from perdure.cli.new.files import Wanted, files_of, question_of
from perdure.cli.output import say


@click.command()
@click.argument("name")
@click.option(
    "--adk", is_flag=True, help="Write with google.adk's classes, so that `adk web` serves it, too (extra `adk`)."
)
@click.option("--tree", is_flag=True, help="Two agents: one that talks to people, and hands over to one that knows.")
@click.option("--human-in-the-loop", "human", is_flag=True, help="A tool that waits until a person has answered.")
def new(name: str, adk: bool, tree: bool, human: bool) -> int:
    """Make a folder NAME with an agent that runs: tools, a test, and a README with the commands.

    It needs no key: at first the agent thinks with a stand-in for a model, and one line of agent.py switches to Gemini.
    The options go together. Nothing that is there is overwritten.

    \b
    Examples:
      perdure new shop
      perdure new shop --tree --human-in-the-loop
      perdure new shop --adk
    """
    folder = Path(name)
    _check_name(name)
    if folder.exists() or folder.is_symlink():
        raise click.UsageError(f"{name!r} exists, and nothing is overwritten; choose another name, or another folder")
    if adk and find_spec("google.adk") is None:
        raise click.UsageError("--adk needs google-adk, which is not installed: pip install 'perdure[adk]'")
    wanted = Wanted(name, adk=adk, tree=tree, human=human)
    try:
        folder.mkdir()
        for file, text in files_of(wanted).items():
            with (folder / file).open("x", encoding="utf-8") as written:
                written.write(text)
            say(f"made  {folder / file}")
    except OSError as error:
        raise click.ClickException(
            f"{name!r} cannot be made: {error.strerror or error}; is the folder yours?"
        ) from error
    say()
    say("It runs as it is, without a key. In one terminal, and then in another:")
    say(f"  perdure dev {name}")
    say(f'  perdure run {name} "{question_of(wanted)}"')
    say("Its test, and what of it is durable:")
    say(f"  pytest {name}")
    say(f"  perdure check {name}")
    say(f"For Gemini, change the line MODEL in {folder / 'agent.py'}; {folder / 'README.md'} says more.")
    return ExitCode.FINISHED


def _check_name(name: str) -> None:
    """Check the name of a folder that is to be a Python package, and an app.

    Raises:
        click.BadParameter: It cannot be one.
    """
    advice = ""
    if not name.isidentifier():
        cleaned = re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_")
        advice = "use letters, digits and underscores, with no digit first"
        if cleaned.isidentifier() and not _is_taken(cleaned):
            advice += f", as in `perdure new {cleaned}`"
        problem = "it is the name of a Python package, too"
    elif keyword.iskeyword(name):
        problem = "it is a word of Python's own"
    elif name == "user":
        problem = "it is the author of what people send"
    elif not Path(name).exists() and _is_taken(name):
        problem = "Python would import another module of that name"
    else:
        return
    advice = advice or f"choose another one, as in `perdure new {name}_agent`"
    raise click.BadParameter(f"an app cannot be named {name!r}, since {problem}; {advice}", param_hint="NAME")


def _is_taken(name: str) -> bool:
    try:
        return keyword.iskeyword(name) or name == "user" or find_spec(name) is not None
    except (ImportError, ValueError):
        # A module that is half loaded, or has no origin: there is one.
        return True
