"""`python -m tests.conformance [--mode MODE] FILE_OR_FOLDER…`: runs or proves scenarios, exit code 1 if any failed."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError
from temporalio.client import Client

from perdure.errors import DefinitionError
from perdure.prove.proof import ALL_MODES, ProofConfig, Prover, proof_server
from tests.conformance import scenario
from tests.conformance.build import ScenarioError, taking
from tests.conformance.proofs import prove_scenario
from tests.conformance.runner import run_scenario

_AT_ONCE = 8


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description="Runs scenarios of FORMAT.md.")
    parser.add_argument("paths", nargs="+", type=Path, metavar="FILE_OR_FOLDER", help="scenario files, or folders")
    parser.add_argument(
        "--mode",
        choices=["live", "re-enter", *ALL_MODES],
        default="live",
        help="live: agents await their answers; re-enter: each pause drops them, to be re-entered; the others prove"
        " the scenario: cut off at every journal entry, worker killed at every step, continued as new after every"
        " step, or replayed at every workflow task (default: live)",
    )
    parser.add_argument("--no-cache", action="store_true", help="replay the whole history at every workflow task")
    parser.add_argument("--at-once", type=int, default=_AT_ONCE, help=f"scenarios at a time (default: {_AT_ONCE})")
    parser.add_argument("--steps", type=int, default=1, help="steps an activity may take (default: 1)")
    return parser.parse_args(arguments)


async def _run(options: argparse.Namespace) -> bool:
    """Run all scenarios, print a line for each in order, and return whether all passed."""
    try:
        paths = scenario.find(options.paths)
    except FileNotFoundError as error:
        sys.exit(f"python -m tests.conformance: {error}")
    slots = asyncio.Semaphore(options.at_once)
    failed = 0
    async with proof_server() as client:
        prover = Prover(client, ProofConfig(at_once=options.at_once))
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(_judge(path, client, prover, slots, options)) for path in paths]
            for task in tasks:
                ok, lines = await task
                print(*lines, sep="\n", flush=True)
                failed += not ok
    print(f"{len(paths) - failed} passed, {failed} failed")
    return not failed


async def _judge(
    path: Path, client: Client, prover: Prover, slots: asyncio.Semaphore, options: argparse.Namespace
) -> tuple[bool, list[str]]:
    """Return whether a scenario passed, and what to print of it."""
    try:
        spec = scenario.load(path)
    except (ValidationError, OSError) as error:
        return False, [f"FAIL {path.stem}", f"  {path} is no scenario: {error}"]
    notes = [f"note {spec.name}: unknown field {field}" for field in scenario.unknown_fields(spec)]
    async with slots:
        try:
            if options.mode in ALL_MODES:
                report = await prove_scenario(prover, spec, [options.mode])
                return report.ok, [*notes, *(line for verdict in report.verdicts for line in verdict.lines())]
            lines = await run_scenario(spec, client, mode=options.mode, cached=not options.no_cache)
        except (ScenarioError, DefinitionError) as error:
            lines = [f"cannot be built: {error}"]
        except Exception as error:  # one scenario's surprise must not hide the others' results
            lines = [f"{type(error).__name__}: {error}"]
    return not lines, [*notes, f"FAIL {spec.name}" if lines else f"ok {spec.name}", *(f"  {line}" for line in lines)]


def main() -> None:
    """Run the command."""
    # Failing activities are what many scenarios are about.
    logging.getLogger("temporalio.activity").setLevel(logging.CRITICAL)
    options = _parse(sys.argv[1:])
    with taking(options.steps):
        passed = asyncio.run(_run(options))
    sys.stdout.flush()
    sys.stderr.flush()
    # A process that used temporalio may abort at interpreter exit: https://github.com/temporalio/sdk-python/issues/300
    os._exit(0 if passed else 1)


if __name__ == "__main__":
    main()
