"""A mail server on this machine that is told, and keeps what it gets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from email import message_from_bytes, policy
from email.message import EmailMessage
from typing import Any

from aiosmtpd.smtp import SMTP


class Mailbox:
    """A mail server's address, what it got, and what it is to answer."""

    def __init__(self) -> None:
        self.url = ""
        self.got: list[EmailMessage] = []
        self.receivers: list[list[str]] = []
        self.answer = "250 OK"

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:
        if self.answer.startswith("250"):
            self.got.append(message_from_bytes(envelope.content, policy=policy.default))
            self.receivers.append(list(envelope.rcpt_tos))
        return self.answer


@asynccontextmanager
async def mailbox() -> AsyncGenerator[Mailbox]:
    box = Mailbox()
    server = await asyncio.get_running_loop().create_server(lambda: SMTP(box, hostname="here"), "127.0.0.1", 0)
    async with server:
        box.url = f"smtp://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        yield box
