"""`perdure.toml`: options of commands run in its folder, unless the command line or the environment says otherwise."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, cast

import click

FILE = "perdure.toml"

_TEMPORALS = {
    "address": "TEMPORAL_ADDRESS",
    "namespace": "TEMPORAL_NAMESPACE",
    "profile": "TEMPORAL_PROFILE",
    "config_file": "TEMPORAL_CONFIG_FILE",
}
"""Variables that Temporal's SDK reads by itself: where one is set, it counts, as any other of the environment's."""


def read_presets(main: click.Group) -> dict[str, Any] | None:
    """Return what the file in the current folder gives to commands, as `click.Context.default_map` has it.

    Raises:
        click.UsageError: It is no TOML, or names a command or an option that there is not.
    """
    path = Path(FILE)
    if not path.is_file():
        return None
    import tomllib

    try:
        given = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise click.UsageError(f"{FILE} cannot be read: {error}") from error
    common = {key: value for key, value in given.items() if not isinstance(value, dict)}
    every = {key for command in _walk(main) for key in _options(command)}
    for key in common.keys() - every:
        raise click.UsageError(f"{FILE}: no command has an option {key!r}{_close(key, every)}")
    return _of_group(main, {key: given[key] for key in given.keys() - common.keys()}, common, "")


def _walk(command: click.Command) -> Iterable[click.Command]:
    for inner in command.commands.values() if isinstance(command, click.Group) else ():
        yield inner
        yield from _walk(inner)


def _options(command: click.Command) -> dict[str, str]:
    """Return a command's options: what the file calls each, and the parameter that it is."""
    return {
        name.removeprefix("--"): parameter.name
        for parameter in command.params
        if isinstance(parameter, click.Option)
        for name in parameter.opts
        if name.startswith("--")
    }


def _of_group(group: click.Group, given: Mapping[str, Any], common: Mapping[str, Any], within: str) -> dict[str, Any]:
    for name in given.keys() - group.commands.keys():
        raise click.UsageError(f"{FILE}: there is no command {within + name!r}{_close(name, group.commands)}")
    found: dict[str, Any] = {}
    for name, command in group.commands.items():
        table: Any = given.get(name, {})
        if not isinstance(table, dict):
            raise click.UsageError(f"{FILE}: [{within}{name}] is to be a table of options")
        own = cast(dict[str, Any], table)
        if isinstance(command, click.Group):
            found[name] = _of_group(command, own, common, f"{within}{name}.")
        else:
            found[name] = _of_command(command, own, common, within + name)
    return found


def _of_command(
    command: click.Command, given: Mapping[str, Any], common: Mapping[str, Any], name: str
) -> dict[str, Any]:
    options = _options(command)
    for key in given.keys() - options.keys():
        raise click.UsageError(f"{FILE}: [{name}] has no option {key!r}{_close(key, options)}")
    found = {options[key]: value for key, value in {**common, **given}.items() if key in options}
    return {key: value for key, value in found.items() if _TEMPORALS.get(key, "") not in os.environ}


def _close(name: str, names: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(names), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""
