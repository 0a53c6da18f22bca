"""Records the histories of scenarios, to be replayed against every later version: `python -m tests.replay.record`.

Run it once for each released version. Recorded files are never changed or removed: a user's runs of that version are
still open.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from packaging.version import Version
from temporalio.client import Client

from perdure import __version__
from perdure.config import ConnectionConfig, connect
from perdure.serving.dev_server import DevServer
from tests.conformance.runner import Mode, play
from tests.conformance.scenario import load

HISTORIES = Path(__file__).parent / "histories"
RELEASE = HISTORIES / Version(__version__).base_version
"""Where what is recorded now goes: under the version that this checkout is on the way to."""
SCENARIOS = Path(__file__).parents[1] / "conformance" / "scenarios"

RECORDED: tuple[tuple[str, Mode], ...] = (
    ("confirm_approved", "live"),
    ("custom_agent_failure_step_two", "live"),
    ("loop_exit_loop", "live"),
    ("lro_loop_second_iteration", "re-enter"),
    ("lro_not_resumable", "live"),
    ("lro_parallel_both_branches", "live"),
    ("lro_sub_agent_transfers_back", "re-enter"),
    ("lro_sub_agent_two_in_a_row", "live"),
    ("message_while_pending", "live"),
    ("parallel_failure_one_branch", "live"),
    ("state_and_output_key", "live"),
    ("tool_failure_in_parallel_calls", "live"),
    ("transfer_two_levels", "live"),
)


async def record(client: Client, name: str, mode: Mode, folder: Path) -> None:
    """Play a scenario and keep its workflow's history, and the name under which its app ran."""
    scenario = load(SCENARIOS / f"{name}.json")
    await play(scenario, client, mode=mode)
    newest: Any = None
    async for execution in client.list_workflows():
        if execution.id.endswith("/u/s") and (newest is None or execution.start_time > newest.start_time):
            newest = execution
    history = await client.get_workflow_handle(newest.id, run_id=newest.run_id).fetch_history()
    document = {"scenario": name, "workflow_id": newest.id, "history": scrub(json.loads(history.to_json()))}
    (folder / f"{name}.json").write_text(json.dumps(document, separators=(",", ":")) + "\n")


def scrub(value: Any) -> Any:
    """Leave out what tells of the machine: paths in stack traces, process ids and host names."""
    if isinstance(value, list):
        return [scrub(item) for item in value]  # pyright: ignore[reportUnknownVariableType] -- JSON
    if not isinstance(value, dict):
        return value
    private = ("stackTrace", "identity", "stickyTaskQueue", "workerVersion", "binaryChecksum")
    return {key: scrub(item) for key, item in value.items() if key not in private}  # pyright: ignore[reportUnknownVariableType] -- JSON


async def main() -> None:
    """Record every scenario of the list."""
    folder = RELEASE
    folder.mkdir(parents=True, exist_ok=True)
    async with DevServer() as server:
        client = await connect(ConnectionConfig(address=server.address, namespace="default", tls=False))
        for name, mode in RECORDED:
            await record(client, name, mode, folder)
            print(name)


if __name__ == "__main__":
    asyncio.run(main())
