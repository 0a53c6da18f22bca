"""A web page of somebody else's, whose name resolves to this machine, gets nothing from `perdure dev`'s Temporal."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from perdure.serving.dev_server import DevServer, DevServerConfig
from perdure.serving.ui_guard import names_this_machine

pytestmark = pytest.mark.server

FOREIGN = [
    "evil.example",
    "evil.example:{port}",
    "127.0.0.1.evil.example",
    "localhost.evil.example:{port}",
    "10.0.0.1",
    "",
]
OWN = ["localhost:{port}", "127.0.0.1:{port}", "LocalHost", "[::1]:{port}", "127.0.0.1"]


@pytest.fixture(scope="module")
async def server() -> AsyncGenerator[DevServer]:
    async with DevServer(DevServerConfig()) as found:
        port = port_of(found)
        # The UI looks for its server in its own time.
        for _ in range(100):
            if (await ask(port, f"Host: localhost:{port}")).startswith("HTTP/1.1 200 "):
                break
            await asyncio.sleep(0.1)
        yield found


async def ask(port: int, *head: str, path: str = "/api/v1/namespaces", body: str = "") -> str:
    """Send a request as it stands; returns all that comes back."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write("\r\n".join([f"GET {path} HTTP/1.1", *head, "", body]).encode())
    async with asyncio.timeout(10):
        answer = await reader.read()
    writer.close()
    return answer.decode(errors="replace")


def port_of(server: DevServer) -> int:
    assert server.ui_url is not None
    return int(server.ui_url.rpartition(":")[2])


@pytest.mark.parametrize("host", FOREIGN)
async def test_the_ui_refuses_a_foreign_host(server: DevServer, host: str) -> None:
    """Neither a page nor the API behind it."""
    port = port_of(server)
    for path in ("/", "/api/v1/namespaces"):
        answer = await ask(port, f"Host: {host.format(port=port)}", path=path)
        assert answer.startswith("HTTP/1.1 403 ")
        assert "namespace" not in answer.lower()


@pytest.mark.parametrize("host", OWN)
async def test_the_ui_answers_this_machine(server: DevServer, host: str) -> None:
    """By each of its names."""
    port = port_of(server)
    answer = await ask(port, f"Host: {host.format(port=port)}")
    assert answer.startswith("HTTP/1.1 200 ")
    assert "namespaces" in answer


async def test_nothing_gets_past_behind_a_good_host(server: DevServer) -> None:
    """Neither a second `Host`, nor a folded one, nor a second request in the same connection."""
    port = port_of(server)
    good = f"Host: localhost:{port}"
    for head in ([good, "Host: evil.example"], ["Host: evil.example", good], [good, " evil.example"], []):
        assert (await ask(port, *head)).startswith("HTTP/1.1 403 ")
    second = "GET /api/v1/namespaces HTTP/1.1\r\nHost: evil.example\r\n\r\n"
    answer = await ask(port, good, "Connection: keep-alive", body=second)
    assert len(re.findall(r"HTTP/1\.1 \d{3}", answer)) == 1


async def test_a_head_without_an_end_is_not_kept(server: DevServer) -> None:
    """More than 64 kB of it ends the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port_of(server))
    writer.write(b"GET / HTTP/1.1\r\nX: " + b"x" * 200_000)
    async with asyncio.timeout(10):
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
    writer.close()


async def test_no_port_of_the_server_answers_a_foreign_host(server: DevServer) -> None:
    """Its HTTP API has a port of its own, which a page could look for; gRPC is not what a browser speaks."""
    ports = listening_on_loopback()
    assert port_of(server) in ports
    told = 0
    for port in ports:
        try:
            answer = await ask(port, f"Host: evil.example:{port}", "Connection: close")
        except (OSError, TimeoutError):
            continue
        assert "namespaceInfo" not in answer
        told += "403" in answer
    assert told >= 2


def listening_on_loopback() -> set[int]:
    """Return the ports that this process and its children listen at on 127.0.0.1."""
    processes = Path("/proc/self/task").glob("*/children")
    pids = ["self", *(pid for children in processes for pid in children.read_text().split())]
    sockets = {str(link.readlink()) for pid in pids for link in Path(f"/proc/{pid}/fd").iterdir() if link.is_symlink()}
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return {
        int(parts[1][9:], 16)
        for parts in lines
        if parts[3] == "0A" and parts[1].startswith("0100007F:") and f"socket:[{parts[9]}]" in sockets
    }


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1", "127.9.9.9:80", "[::1]:80", "[::1]", "::1"])
def test_names_of_this_machine(host: str) -> None:
    """With and without a port."""
    assert names_this_machine(host)


@pytest.mark.parametrize("host", ["", ":80", "10.0.0.1", "localhost.", "localhost:x", "2130706433", "a:1:2"])
def test_names_of_others(host: str) -> None:
    """And what is none."""
    assert not names_this_machine(host)
