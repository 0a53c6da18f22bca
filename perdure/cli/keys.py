"""`keys`: makes encryption keys, and tells which ones a file holds."""

from __future__ import annotations

from pathlib import Path

import click

from perdure.cli.exits import ExitCode
from perdure.cli.options import json_option
from perdure.cli.output import say, show_json, show_table


@click.group()
def keys() -> None:
    """Make and list the keys that encrypt histories; docs/encryption.md tells how to replace them.

    \b
    Example:
      perdure keys new --file keys.txt
    """


@keys.command("new")
@click.option("--file", type=click.Path(dir_okay=False, path_type=Path), help="Add the key to this file.")
@click.option("--id", help="The key's name, readable in histories.  [default: a fresh one]")
@click.option("--standby", is_flag=True, help="Let it decrypt only, until its line is moved to the top.")
@json_option
def new(file: Path | None, id: str | None, standby: bool, as_json: bool) -> int:
    """Make a key. It is printed, or added to a file that only its owner can read; then it is not shown.

    A file is made if it is not there. The new key stands first in it, and so it is the one that encrypts; the others
    decrypt what is there. With --standby it stands last.

    \b
    Examples:
      perdure keys new --file keys.txt
      perdure keys new --file keys.txt --id 2026-11 --standby
      export PERDURE_ENCRYPTION_KEYS="$(perdure keys new)"
    """
    from perdure.encryption.keys import Key, add_key

    key = Key.new(id)
    if file is None:
        if standby:
            raise click.UsageError("--standby needs --file FILE")
        if as_json:
            show_json({"id": key.id, "key": key.line})
        else:
            say(key.line)
        return ExitCode.FINISHED
    ring = add_key(file, key, standby=standby)
    if as_json:
        show_json(
            {"id": key.id, "file": str(file), "encrypts": ring.newest.id, "keys": [known.id for known in ring.keys]}
        )
    else:
        say(f"key {key.id} is in {file}; key {ring.newest.id} encrypts, of {len(ring.keys)}")
    return ExitCode.FINISHED


@keys.command("list")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@json_option
def list_(file: Path, as_json: bool) -> int:
    """List the ids of the keys in FILE, and which one encrypts. No key is shown.

    \b
    Example:
      perdure keys list keys.txt
    """
    from perdure.encryption.keys import KeyRing

    ring = KeyRing.from_file(file)
    if as_json:
        for key in ring.keys:
            show_json({"id": key.id, "encrypts": key is ring.newest})
    else:
        show_table(("KEY", "USE"), [(key.id, "encrypts" if key is ring.newest else "decrypts") for key in ring.keys])
    return ExitCode.FINISHED
