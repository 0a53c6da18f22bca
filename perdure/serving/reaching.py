"""Reaches the Temporal server that an address names, or starts one for development in its place."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

from temporalio.client import Client

from perdure.config import DEFAULT_ADDRESS, DEFAULT_NAMESPACE, ConnectionConfig, connect
from perdure.errors import ConnectionFailed
from perdure.serving.dev_server import DEFAULT_DATA_FILE, DevServer, DevServerConfig

_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1", "[::1]"})


async def reach(
    config: ConnectionConfig, stack: AsyncExitStack, *, ui_port: int | None = None, data: Path | None = None
) -> tuple[Client, DevServer | None]:
    """Return a client of the server at the address, started on `stack` if none answers and it would be on this machine.

    Args:
        config: The connection.
        stack: Ends a server that is started.
        ui_port: Port of its UI. Default: the server's + 1000.
        data: Its data file. Default: `.perdure/temporal.db`.

    Raises:
        ConnectionFailed: No server answers, and none can be started.
    """
    try:
        return await connect(config), None
    except ConnectionFailed:
        host, _, port = (config.address or DEFAULT_ADDRESS).rpartition(":")
        if host not in _LOOPBACK or not port.isdigit() or config.tls:
            raise
    data_file = data or DEFAULT_DATA_FILE
    server = await stack.enter_async_context(
        DevServer(
            DevServerConfig(
                port=int(port),
                ui_port=ui_port or int(port) + 1000,
                namespace=config.namespace or DEFAULT_NAMESPACE,
                data_file=data_file,
                log_file=data_file.with_suffix(".log"),
            )
        )
    )
    return await connect(replace(config, address=server.address)), server
