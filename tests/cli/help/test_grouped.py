"""Help in groups: a first screen of what most people need, and each option once."""

from __future__ import annotations

import re
from collections import Counter

import click
import pytest

from perdure.cli.main import main
from tests.cli.support import Perdure, perdure

__all__ = ["perdure"]


def sections(text: str) -> dict[str, list[str]]:
    """Return the options of a help's sections, by heading."""
    found: dict[str, list[str]] = {}
    heading = ""
    for line in text.splitlines():
        if re.fullmatch(r"[A-Z][^:]*:", line):
            heading = line.removesuffix(":")
        elif option := re.match(r"  (?:-\w, )?(--[a-z-]+)", line):
            found.setdefault(heading, []).append(option[1])
    return found


@pytest.mark.parametrize("name", ["dev", "worker"])
async def test_each_option_stands_once_in_the_help(perdure: Perdure, name: str) -> None:
    done = await perdure(name, "--help")
    shown = Counter(option for options in sections(done.out).values() for option in options)
    declared = {
        next(opt for opt in parameter.opts if opt.startswith("--"))
        for parameter in main.commands[name].params
        if isinstance(parameter, click.Option)
    }
    assert shown == Counter(declared | {"--help"})


async def test_the_first_screen_of_dev_has_what_most_people_need(perdure: Perdure) -> None:
    found = sections((await perdure("dev", "--help")).out)
    assert next(iter(found)) == "Options"
    assert 8 <= len(found["Options"]) <= 10
    assert {"--port", "--address", "--data", "--help"} <= set(found["Options"])
