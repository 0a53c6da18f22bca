"""`prove`: runs scenarios of one's own agents at every cut point."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from perdure.cli.exits import ExitCode
from perdure.cli.options import json_option
from perdure.cli.output import say

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perdure.prove.modes import Mode

_MODES = ("prefix", "kill", "continue-as-new", "replay")


@click.command()
@click.argument("target")
@click.option(
    "--scenario",
    "scenarios",
    type=click.Path(path_type=Path),
    multiple=True,
    required=True,
    metavar="FILE",
    help="What the user does (JSON); may be given more than once.",
)
@click.option("--mode", "modes", type=click.Choice(_MODES), multiple=True, help="How to cut.  [default: all ways]")
@click.option("--at-once", type=click.IntRange(min=1), default=6, show_default=True, help="Runs at a time.")
@click.option(
    "--steps-per-activity",
    "steps",
    type=click.IntRange(min=1, max=100),
    help="Steps of an agent that one activity may take.  [default: as the app says]",
)
@json_option
def prove(
    target: str,
    scenarios: tuple[Path, ...],
    modes: tuple[Mode, ...],
    at_once: int,
    steps: int | None,
    as_json: bool,
) -> int:
    """Prove that an app's runs can be cut anywhere: same log, same state, no tool run twice without need.

    A TARGET is MODULE:APP, a .py file, or a folder that holds an `app` or a `root_agent`. Each scenario runs once
    uninterrupted, then once for every cut point, on a Temporal server and workers of its own. Models must be
    deterministic: give the agents a `script` in the scenario.

    \b
    Example:
      perdure prove travel.agent:app --scenario tests/booking.json --mode kill
    """
    return asyncio.run(_prove(target, scenarios, modes or _MODES, at_once, steps, as_json=as_json))


async def _prove(
    target: str, paths: Sequence[Path], modes: Sequence[Mode], at_once: int, steps: int | None, *, as_json: bool
) -> int:
    from perdure.compiler.loading import load_app
    from perdure.compiler.registry import register
    from perdure.prove.proof import ProofConfig, Prover, proof_server
    from perdure.prove.report import Report, Verdict
    from perdure.prove.scenario import load_scenario
    from perdure.prove.target import TargetSource, unscripted

    app = load_app(target)
    register(app)
    scenarios = [load_scenario(path) for path in paths]
    for scenario in scenarios:
        for agent in unscripted(app, scenario.script):
            say(
                f"perdure: scenario {scenario.name!r} has no script for agent {agent!r}, whose model may answer"
                " differently each time; then the runs differ, too",
                err=True,
            )
    verdicts: list[Verdict] = []
    async with proof_server() as client:
        prover = Prover(client, ProofConfig(at_once=at_once, steps_per_activity=steps))
        for scenario in scenarios:
            report = await prover.prove(TargetSource.of(target, app, scenario.script), scenario, modes)
            for verdict in report.verdicts:
                lines = [json.dumps(verdict.as_json(), ensure_ascii=False)] if as_json else verdict.lines()
                say("\n".join(lines), lines=True)
            verdicts += report.verdicts
    report = Report(tuple(verdicts))
    if not as_json:
        say(report.summary)
    return ExitCode.FINISHED if report.ok else ExitCode.FAILED
