"""Opens sockets that listen, for servers of this process or of another one, and words their addresses."""

from __future__ import annotations

import errno
import socket
import time
from ipaddress import ip_address

_IN_USE_SECONDS = 1.5
"""For how long an address may be in use: what listens there may be ending, as the child of a killed process does."""

_PAUSE = 0.1


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens; port 0 is any free one.

    Raises:
        OSError: The address cannot be had.
    """
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, _, _, _, address = found[0]
    until = time.monotonic() + _IN_USE_SECONDS
    while True:
        try:
            listener = socket.create_server((str(address[0]), port), family=family)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or time.monotonic() > until:
                raise
            time.sleep(_PAUSE)
        else:
            break
    # Its connections inherit it. Else the second half of a small response waits some 40 ms for the client's word.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def url_of(listener: socket.socket) -> str:
    """Return the URL of a listening address, for a browser."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def is_loopback(host: str) -> bool:
    """Return whether a host's name or address is that of this machine alone."""
    try:
        return host == "localhost" or ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
