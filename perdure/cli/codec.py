"""`codec`: the endpoint that decrypts payloads for Temporal's UI and command line."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from perdure.cli.api import listening, url_of
from perdure.cli.exits import ExitCode
from perdure.cli.options import Connection, stop_on_signal
from perdure.cli.output import say
from perdure.errors import DefinitionError

if TYPE_CHECKING:
    import socket

    from fastapi import FastAPI


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
