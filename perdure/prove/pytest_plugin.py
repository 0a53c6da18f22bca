"""A fixture for users' own suites: `pytest_plugins = ["perdure.prove.pytest_plugin"]` in the root's conftest.py.

Example:
    ```python
    async def test_my_agent(prove: Prove) -> None:
        report = await prove("travel.agent:app", Path("tests/booking.json"), modes=["kill"])
        assert report.ok, str(report)
    ```
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import pytest

from perdure.config import ConnectionConfig, connect
from perdure.prove.modes import Mode
from perdure.prove.proof import ALL_MODES, ProofConfig, proof_server
from perdure.prove.proof import prove as run_proof
from perdure.prove.report import Report
from perdure.prove.scenario import ProofScenario

__all__ = ["Prove", "proof_address", "prove"]


class Prove(Protocol):
    """The fixture `prove`: `perdure.prove.proof.prove` on a server that the test run shares."""

    async def __call__(
        self,
        app: object,
        scenario: ProofScenario | Path | Mapping[str, Any],
        modes: Sequence[Mode] = ALL_MODES,
        config: ProofConfig | None = None,
    ) -> Report:
        """Prove a scenario; `assert report.ok, str(report)` shows the first difference."""
        ...


@pytest.fixture(scope="session")
def proof_address() -> Generator[str]:
    """The address of a Temporal server for proofs, which ends with the test run."""
    started = threading.Event()
    address: list[str] = []
    failure: list[BaseException] = []
    loop = asyncio.new_event_loop()
    over = asyncio.Event()

    async def serve() -> None:
        try:
            async with proof_server() as client:
                address.append(client.service_client.config.target_host)
                started.set()
                await over.wait()
        except BaseException as error:
            failure.append(error)
            raise
        finally:
            started.set()

    # On a loop of its own: which loop the tests run on, and how long that lasts, is their affair.
    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()), name="proof-server")
    thread.start()
    started.wait()
    try:
        if failure:
            raise failure[0]
        yield address[0]
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join()
        loop.close()


@pytest.fixture
def prove(proof_address: str) -> Prove:
    """Prove scenarios: an async function, for tests of any asyncio plugin, or for `asyncio.run`."""

    async def run(
        app: object,
        scenario: ProofScenario | Path | Mapping[str, Any],
        modes: Sequence[Mode] = ALL_MODES,
        config: ProofConfig | None = None,
    ) -> Report:
        client = await connect(ConnectionConfig(address=proof_address, namespace="default", tls=False))
        return await run_proof(app, scenario, modes, client=client, config=config)

    return run
