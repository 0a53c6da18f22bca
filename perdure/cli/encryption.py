"""`keys` and `codec`: the keys that encrypt histories, and the endpoint that decrypts them for Temporal's UI."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from perdure.cli.api import listening, url_of
from perdure.cli.ending import stop_on_signal
from perdure.cli.exits import ExitCode
from perdure.cli.options import Connection, json_option
from perdure.cli.output import say, show_json, show_table
from perdure.errors import DefinitionError

if TYPE_CHECKING:
    import socket

    from fastapi import FastAPI


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


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Where it listens.")
@click.option("--port", type=click.IntRange(0, 65535), default=8888, show_default=True, help="0 is any free one.")
@click.option(
    "--keys",
    "--encryption-keys",
    "keys",
    envvar="PERDURE_ENCRYPTION_KEYS_FILE",
    type=click.Path(path_type=Path),
    help="File of the keys.  [default: the keys in PERDURE_ENCRYPTION_KEYS]",
)
@click.option(
    "--payload-codec", envvar="PERDURE_PAYLOAD_CODEC", metavar="MODULE:NAME", help="A codec of yours instead."
)
@click.option("--allow-origin", "origins", multiple=True, metavar="URL", help="Where the Temporal UI is; repeatable.")
@click.option("--token-file", type=click.Path(path_type=Path), help="File of bearer tokens, one a line; each opens it.")
@click.option("--no-auth", is_flag=True, help="Ask for no token. Only where it listens for this machine alone.")
def codec(
    host: str,
    port: int,
    keys: Path | None,
    payload_codec: str | None,
    origins: tuple[str, ...],
    token_file: Path | None,
    no_auth: bool,
) -> int:
    """Decrypt payloads for Temporal's UI and command line, until SIGINT or SIGTERM.

    The Temporal UI takes its URL under the glasses icon, Temporal's command line by --codec-endpoint and --codec-auth.
    It has no TLS of its own: put it behind something that has, unless it listens for this machine alone.

    \b
    Examples:
      perdure codec --keys keys.txt --no-auth --allow-origin http://localhost:8233
      perdure codec --keys keys.txt --host 0.0.0.0 --token-file tokens.txt
      temporal workflow show -w travel/user/trip-1 --codec-endpoint http://localhost:8888
    """
    if (token_file is None) is not no_auth:
        raise click.UsageError("give --token-file FILE, or --no-auth; not both")
    connection = Connection(
        address=None, namespace=None, profile=None, config_file=None, payload_codec=payload_codec, encryption_keys=keys
    )
    found = connection.codec()
    if found is None:
        raise click.UsageError("give the keys: --keys FILE, or PERDURE_ENCRYPTION_KEYS")
    try:
        from perdure.encryption.codec_server import CodecServerConfig, create_codec_app, read_tokens
    except ImportError as error:
        raise click.UsageError("the codec endpoint needs more packages: pip install 'perdure[api]'") from error
    try:
        tokens = read_tokens(token_file) if token_file is not None else ()
        config = CodecServerConfig(tokens=tokens, origins=tuple(url.rstrip("/") for url in origins), host=host)
    except DefinitionError as error:
        raise click.UsageError(str(error)) from error
    from perdure.serving.event_loop import run_serving

    app = create_codec_app(found, config)
    with listening(host, port, "the codec endpoint") as listener:
        say(f"perdure: decrypting at {url_of(listener)}", err=True)
        run_serving(_serve(app, listener))
    return ExitCode.FINISHED


async def _serve(app: FastAPI, listener: socket.socket) -> None:
    from perdure.serving.http_server import serve

    await serve(app, listener, stop_on_signal())
