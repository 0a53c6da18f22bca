"""Proves scenarios: runs each once uninterrupted, then in every mode at every cut point."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, get_args

from temporalio.client import Client

from perdure.compiler.loading import load_app
from perdure.config import ConnectionConfig, connect
from perdure.errors import PerdureError, error_text
from perdure.prove.modes import MODES, Mode, Stage
from perdure.prove.outcome import Check, differences
from perdure.prove.process import Source
from perdure.prove.report import Report, Verdict
from perdure.prove.scenario import ProofScenario, load_scenario, parse_scenario
from perdure.prove.target import TargetSource, target_of
from perdure.prove.watched_models import refused_requests
from perdure.serving.dev_server import DevServer, DevServerConfig

ALL_MODES: tuple[Mode, ...] = get_args(Mode)

_NO_PAUSE = {"history.workflowIdReuseMinimalInterval": "1ms"}
"""Else a run that is younger than a second may not continue as new."""


@dataclass(frozen=True, kw_only=True)
class ProofConfig:
    """Settings of a proof."""

    at_once: int = 6
    """Runs at a time; most of a run is waiting. Default: 6."""
    timeout: timedelta = timedelta(seconds=90)
    """How long one run may take; one that hangs has failed. Default: 90 s."""
    dead_after: timedelta = timedelta(seconds=1.5)
    """How soon the server notices that a worker was killed. Default: 1.5 s."""
    most_cuts: int | None = None
    """Cut points of a mode that are tried, spread evenly over the run. Default: all."""
    steps_per_activity: int | None = None
    """How many steps of an agent one activity may take, from 1 to 100. Default: as the app says."""


@asynccontextmanager
async def proof_server() -> AsyncGenerator[Client]:
    """Start a Temporal server for proofs, its data in memory, and yield a client of it.

    Raises:
        ConnectionFailed: There is no `temporal` program, or the server does not start.
    """
    async with DevServer(DevServerConfig(headless=True, dynamic_config=_NO_PAUSE)) as server:
        yield await connect(ConnectionConfig(address=server.address, namespace="default", tls=False))


class Prover:
    """Proves scenarios on one server."""

    def __init__(self, client: Client, config: ProofConfig | None = None) -> None:
        self._client = client
        self._config = config or ProofConfig()
        self._slots = asyncio.Semaphore(self._config.at_once)

    async def prove(
        self,
        source: Source,
        scenario: ProofScenario,
        modes: Sequence[Mode] = ALL_MODES,
        *,
        check: Check | None = None,
    ) -> Report:
        """Prove one scenario.

        Args:
            source: Builds the app in the worker processes.
            scenario: What the user does.
            modes: How to cut.
            check: Says what else is wrong with a whole run.
        """
        with tempfile.TemporaryDirectory(prefix="perdure-proof-") as folder:
            stage = Stage(
                client=self._client,
                source=source,
                scenario=scenario,
                folder=Path(folder),
                slots=self._slots,
                timeout=self._config.timeout.total_seconds(),
                dead_after=self._config.dead_after.total_seconds(),
                most_cuts=self._config.most_cuts,
                steps=self._config.steps_per_activity,
                check=check,
            )
            error = await self._reference(stage)
            verdicts = [
                Verdict(scenario.name, mode, (), error) if error else await self._mode(stage, mode) for mode in modes
            ]
            if any(verdict.error is None and not verdict.ok for verdict in verdicts) and await self._differs(stage):
                verdicts = [replace(verdict, by_itself=not verdict.ok) for verdict in verdicts]
            if refused := refused_requests(stage.folder):
                verdicts = [replace(verdict, error="\n  ".join(refused)) for verdict in verdicts]
        return Report(tuple(verdicts))

    async def _differs(self, stage: Stage) -> bool:
        """Return whether two uninterrupted runs differ, so that no cut is to blame."""
        again = await stage.run()
        return not again.problems and bool(differences(stage.reference, again, stage.order))

    async def _reference(self, stage: Stage) -> str | None:
        """Run the scenario uninterrupted; returns why that is no reference, if so."""
        stage.reference = reference = await stage.run()
        problems = reference.problems + (stage.check(reference) if stage.check is not None else [])
        return "the uninterrupted run: " + "\n  ".join(problems) if problems else None

    async def _mode(self, stage: Stage, mode: Mode) -> Verdict:
        try:
            return Verdict(stage.scenario.name, mode, tuple(await MODES[mode](stage)))
        except PerdureError as error:
            return Verdict(stage.scenario.name, mode, (), error_text(error))


async def prove(
    app: object,
    scenario: ProofScenario | Path | Mapping[str, Any],
    modes: Sequence[Mode] = ALL_MODES,
    *,
    client: Client,
    config: ProofConfig | None = None,
) -> Report:
    """Prove that an app's runs can be cut: every cut must leave what the uninterrupted run leaves.

    Args:
        app: `MODULE:APP`, a file or a folder, or an app that stands in a module: worker processes load it. An app is
            Perdure's or google.adk's, or an agent.
        scenario: What the user does; or the file, or the JSON, that says so.
        modes: How to cut. Default: all ways.
        client: Of a server for proofs (`proof_server`).
        config: Limits and timeouts.

    Raises:
        DefinitionError: The scenario is none, or the app stands in no module.
    """
    if isinstance(scenario, Path):
        scenario = load_scenario(scenario)
    elif not isinstance(scenario, ProofScenario):
        scenario = parse_scenario(scenario)
    target = app if isinstance(app, str) else target_of(app)
    source = TargetSource.of(target, load_app(target), scenario.script)
    return await Prover(client, config).prove(source, scenario, modes)
