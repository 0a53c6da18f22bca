"""`Talk`: what the command line says of a conversation."""

from __future__ import annotations

from dataclasses import dataclass

from temporalio.client import Client

from perdure.cli.options import Connection, SessionName
from perdure.cli.talk.conversation import Sending
from perdure.cli.turns.served import check_served
from perdure.config import connect


@dataclass(frozen=True, kw_only=True)
class Talk:
    """What the command line says of a conversation."""

    name: SessionName
    connection: Connection
    sending: Sending
    stream: bool
    stream_from: tuple[str, ...]
    wait_for_worker: bool
    as_json: bool

    async def connect(self) -> Client:
        """Return a connected client, of an app that is served."""
        client = await connect(self.connection.config())
        if not self.wait_for_worker:
            await check_served(client, self.name.app)
        return client
