"""With Temporal's external payload storage large payloads leave references in the history; nothing else changes."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.converter import (
    ExternalStorage,
    StorageDriver,
    StorageDriverClaim,
    StorageDriverRetrieveContext,
    StorageDriverStoreContext,
)

from perdure.config import ConnectionConfig, connect
from tests.workflows.support import Counted, agent, calls, long_running, make_app, serving, text
from tests.workflows.test_continue_as_new import ROUNDS
from tests.workflows.test_large_journals import noise

pytestmark = pytest.mark.server


class Folder(StorageDriver):
    """Keeps payloads as files, by what they hold."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def name(self) -> str:
        return "folder"

    async def store(self, context: StorageDriverStoreContext, payloads: Sequence[Payload]) -> list[StorageDriverClaim]:
        claims: list[StorageDriverClaim] = []
        for payload in payloads:
            data = payload.SerializeToString()
            key = hashlib.sha256(data).hexdigest()
            (self.path / key).write_bytes(data)
            claims.append(StorageDriverClaim({"key": key}))
        return claims

    async def retrieve(
        self, context: StorageDriverRetrieveContext, claims: Sequence[StorageDriverClaim]
    ) -> list[Payload]:
        return [Payload.FromString((self.path / claim.claim_data["key"]).read_bytes()) for claim in claims]


def stored(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


@pytest.mark.usefixtures("small_client")  # It leaves no room for search attributes, before any worker adds some.
@pytest.mark.parametrize("cached", [0, 100])
async def test_large_payloads_stay_out_of_the_history(
    small_server: str, app_name: str, tmp_path: Path, cached: int
) -> None:
    storage = ExternalStorage([Folder(tmp_path)], payload_size_threshold=2_000)
    config = ConnectionConfig(address=small_server, namespace="default", tls=False, external_storage=storage)
    tool = Counted("tool", noise(20_000))
    script = [*[calls("tool")] * ROUNDS, calls("pick"), text("done")]
    app = make_app(app_name, agent("clerk", script, [tool.fn, long_running("pick")]))
    async with serving(await connect(config), app, cached=cached) as user:
        await user.create()
        waiting = await user.run("a")
        await user.workflow.terminate("a test")
        assert (await user.answered({waiting.pending[0].id: {}})).status == "finished"
        assert len(tool.keys) == ROUNDS
        description = await user.workflow.describe()
        assert description.raw_description.workflow_execution_info.history_size_bytes < 40_000
        assert stored(tmp_path) > ROUNDS * 20_000
