"""Options of token streaming: what a worker tells, what an API or a command hears; and the printing of tokens."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractContextManager, asynccontextmanager
from typing import TYPE_CHECKING

import click

from perdure.cli.addresses import taking
from perdure.cli.options import Command, with_options
from perdure.cli.output import say, show_event

if TYPE_CHECKING:
    import socket

    from temporalio.converter import PayloadCodec

    from perdure.config import ConnectionConfig
    from perdure.journal.events import Event
    from perdure.streams.hub import TokenHub

_KEY = "PERDURE_STREAM_KEY"
_MIN_KEY = 16
_PATIENCE_SECONDS = 1.0
_DEV_PORT = 2000
"""Above Temporal's: where `perdure dev` lets commands hear what its models write."""

listen_option = click.option(
    "--stream-listen",
    envvar="PERDURE_STREAM_LISTEN",
    metavar="HOST:PORT",
    help=f"Let others hear here what models write; asks for the key in {_KEY}.  [default: nobody]",
)
from_option = click.option(
    "--stream-from",
    "stream_from",
    envvar="PERDURE_STREAM_FROM",
    multiple=True,
    metavar="HOST:PORT",
    help="Where workers let others hear what models write; may be repeated, or be one name of many workers.",
)


def stream_options(command: Command) -> Command:
    """Give a command that follows an invocation the options of streaming: `stream` and `stream_from`."""
    options: list[Callable[[Command], Command]] = [
        click.option("--stream", is_flag=True, help="Print what models write as they write it."),
        from_option,
    ]
    return with_options(command, options)


def stream_key() -> str:
    """Return the key that workers and their listeners share; empty if there is none.

    Raises:
        click.UsageError: It is too short.
    """
    key = os.environ.get(_KEY, "")
    if key and len(key) < _MIN_KEY:
        raise click.UsageError(f"{_KEY} has {len(key)} characters; give it {_MIN_KEY} at least")
    return key


def check_listen(address: str | None) -> None:
    """Check where a worker is to listen.

    Raises:
        click.UsageError: It is no address, or others could reach it, and there is no key.
    """
    key = stream_key()
    if address is not None and not _is_here(_split(address, "--stream-listen")[0]) and not key:
        raise click.UsageError(
            f"--stream-listen {address}: others than this machine could hear what models write; set {_KEY} to a secret"
            " that the API knows too, or listen on 127.0.0.1"
        )


def stream_listener(address: str) -> socket.socket:
    """Return a socket that listens where clients are told what models write.

    Raises:
        click.ClickException: The address cannot be had.
    """
    from perdure.serving.sockets import listen

    with _offering(address):
        return listen(*_split(address, "--stream-listen"))


def _offering(address: str) -> AbstractContextManager[None]:
    return taking(f"token streams cannot be offered at {address}", "name another by --stream-listen")


@asynccontextmanager
async def told(address: str | None, codec: PayloadCodec | None) -> AsyncGenerator[TokenHub | None]:
    """Listen for clients, if there is an address; yield the hub for workers.

    Raises:
        click.ClickException: The address cannot be had.
    """
    if address is None:
        yield None
        return
    from perdure.streams.hub import TokenHub
    from perdure.streams.server import StreamServer

    hub = TokenHub()
    server = StreamServer(hub, *_split(address, "--stream-listen"), key=stream_key(), codec=codec)
    with _offering(address):
        await server.__aenter__()
    try:
        yield hub
    finally:
        await server.__aexit__(None, None, None)


@asynccontextmanager
async def heard(
    addresses: Sequence[str], codec: PayloadCodec | None, *, wait: bool = False
) -> AsyncGenerator[TokenHub | None]:
    """Connect to workers, if any are named; yield the hub for runners.

    Args:
        addresses: Where workers tell.
        codec: What encrypts histories.
        wait: Wait a second for a worker, and say so if there is none.
    """
    if not addresses:
        yield None
        return
    from perdure.streams.hub import TokenHub
    from perdure.streams.remote import StreamClient

    for address in addresses:
        _split(address, "--stream-from")
    hub = TokenHub()
    async with StreamClient(hub, addresses, key=stream_key(), codec=codec) as client:
        if wait and not await client.connects(_PATIENCE_SECONDS):
            say(f"perdure: no worker tells at {', '.join(addresses)} what models write; see --stream-from", err=True)
        yield hub


def dev_addresses(config: ConnectionConfig) -> tuple[str, ...]:
    """Return where `perdure dev` tells what its models write: one address, or none if there is no such port."""
    from perdure.config import DEFAULT_ADDRESS

    port = (config.address or DEFAULT_ADDRESS).rpartition(":")[2]
    number = int(port) + _DEV_PORT if port.isdigit() else 0
    return (f"127.0.0.1:{number}",) if 0 < number <= 65535 else ()


def _split(address: str, option: str) -> tuple[str, int]:
    from perdure.streams.remote import split_address

    try:
        return split_address(address)
    except ValueError as error:
        raise click.UsageError(f"{option}: {error}") from error


def _is_here(host: str) -> bool:
    from ipaddress import ip_address

    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


class Printer:
    """Prints events, and those that are partial as they come: a line for each answer, which its words extend."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._open: tuple[str, object] | None = None
        """Event id and attempt of the answer whose line is being written."""
        self._said = ""
        """What stands in that line."""

    def show(self, event: Event) -> None:
        """Print one event."""
        if self._as_json:
            show_event(event, as_json=True)
        elif event.partial:
            self._extend(event)
        else:
            self._finish(event)

    def close(self) -> None:
        """End the line that is being written, if any."""
        if self._open is not None:
            say()
        self._open, self._said = None, ""

    def _extend(self, event: Event) -> None:
        from perdure.streams.partials import ATTEMPT

        text = event.text
        if not text:
            return
        answer = (event.id, (event.custom_metadata or {}).get(ATTEMPT))
        if answer != self._open:
            self.close()
            self._open = answer
            say(f"[{event.author}] ", end="")
        say(text, lines=True, end="")
        self._said += text

    def _finish(self, event: Event) -> None:
        text = event.text or ""
        if self._open is not None and self._open[0] == event.id and text.startswith(self._said):
            say(text.removeprefix(self._said), lines=True, end="")
            event = _without_text(event)
        self.close()
        show_event(event, as_json=False)


def _without_text(event: Event) -> Event:
    """Return an event without the text that is printed already."""
    parts = [part for part in event.parts if part.text is None]
    content = event.content.model_copy(update={"parts": parts}) if event.content is not None else None
    return event.model_copy(update={"content": content})
