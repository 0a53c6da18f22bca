"""Workers in a program's own process, with what they keep beside the program, as `perdure dev` does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import TypedDict

from temporalio.client import Client

from perdure.agents.adk_app import AnyApp
from perdure.artifacts import ArtifactService, FileArtifactService
from perdure.config import WorkerConfig
from perdure.credentials import CredentialStore, FileCredentialStore
from perdure.serving.dev_server import DEFAULT_DATA_FILE
from perdure.streams.hub import TokenHub
from perdure.worker import run_workers

__all__ = ["FOLDER", "Storage", "storage", "working"]

FOLDER = DEFAULT_DATA_FILE.parent
"""Where, in the folder that the program is started in, stands what no history holds."""

_GRACE = timedelta(seconds=1)
"""What steps that are at work get as the program ends; what they leave undone another start of it does again."""


class Storage(TypedDict):
    """Where artifacts are, and the secrets of credentials: fields of a worker's settings, and of the API's."""

    artifacts: ArtifactService
    credentials: CredentialStore


def storage() -> Storage:
    """Return what keeps them in `FOLDER`."""
    return {
        "artifacts": FileArtifactService(str(FOLDER / "artifacts")),
        "credentials": FileCredentialStore(str(FOLDER / "credentials")),
    }


@asynccontextmanager
async def working(client: Client, apps: Sequence[AnyApp], kept: Storage, streams: TokenHub) -> AsyncGenerator[None]:
    """Serve apps while the block runs, from when it begins.

    Raises:
        DefinitionError: An app is defined wrongly.
    """
    stop, started = asyncio.Event(), asyncio.Event()
    config = WorkerConfig(**kept, graceful_shutdown_timeout=_GRACE)
    running = asyncio.create_task(run_workers(client, apps, config, stop=stop, started=started, streams=streams))
    begun = asyncio.create_task(started.wait())
    await asyncio.wait({begun, running}, return_when=asyncio.FIRST_COMPLETED)
    if running.done():
        begun.cancel()
        running.result()
    try:
        yield
    finally:
        stop.set()
        await running
