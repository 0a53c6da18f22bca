"""`doctor`: checks that this machine, its Temporal and an app's workers have what agents need."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

import click

from perdure.cli.exits import ExitCode
from perdure.cli.options import Connection, connection_options, json_option
from perdure.cli.output import say, say_labelled, show_json
from perdure.errors import PerdureError
from perdure.plan.only_shown import only_show

if TYPE_CHECKING:
    from perdure.doctor.checks import Check
    from perdure.plan.nodes import Plan

_COLOURS = {"ok": "green", "warning": "yellow", "failure": "red", "skipped": None}


@click.command()
@click.argument("target", required=False, metavar="[TARGET]")
@click.option("--app", help="Look for workers of this app, whose code is not at hand.")
@json_option
@connection_options
def doctor(target: str | None, app: str | None, as_json: bool, connection: Connection) -> int:
    """Check what agents need: versions, credentials, the Temporal server, and with a TARGET the app and its workers.

    A TARGET is MODULE:APP, a .py file, or a folder. Each check is a line: ok, warning, failure or skipped, with the
    remedy. Credentials are looked for as the models read them, in this process's environment; they are never shown.
    The exit code is 1 if a check fails.

    \b
    Examples:
      perdure doctor
      perdure doctor travel.agent:app --profile production
      perdure doctor --app travel --json
    """
    if target is not None and app is not None:
        raise click.UsageError("TARGET and --app both name the app; give one")
    if target is None and click.get_current_context().obj is not None:
        # The process is the command's own, and no app's code comes into it.
        only_show()

    async def check() -> int:
        from perdure.doctor.checks import check_keys, check_machine
        from perdure.doctor.server import check_server

        checks: list[Check] = []

        def show(found: Check) -> None:
            checks.append(found)
            _show(found, as_json=as_json)

        plan, compiled = _compile(target)
        for found in check_machine(os.environ, plan):
            show(found)
        if compiled is not None:
            show(compiled)
        if connection.encryption_keys is not None:
            show(check_keys(connection.encryption_keys))
        async for found in check_server(connection.config(), plan.app if plan is not None else app, plan):
            show(found)
        failed = any(found.verdict == "failure" for found in checks)
        return ExitCode.FAILED if failed else ExitCode.FINISHED

    return asyncio.run(check())


def _compile(target: str | None) -> tuple[Plan | None, Check | None]:
    """Return the target's plan, and whether it compiles."""
    if target is None:
        return None, None
    from perdure.compiler.loading import load_app
    from perdure.compiler.registry import register
    from perdure.doctor.checks import Check

    try:
        plan = register(load_app(target)).plan
    except PerdureError as error:
        return None, Check(name="app", verdict="failure", words=str(error))
    if plan.resumable:
        return plan, Check(name="app", verdict="ok", words=f"{plan.app!r} compiles: {len(plan.nodes)} agents")
    return plan, Check(
        name="app",
        verdict="warning",
        words=f"{plan.app!r} compiles, but is not resumable: nothing pauses, and what failed is lost",
        remedy="App(…, resumability_config=ResumabilityConfig(is_resumable=True))",
    )


def _show(check: Check, *, as_json: bool) -> None:
    if as_json:
        show_json(check)
        return
    say_labelled(f"{check.verdict:<8}", _COLOURS[check.verdict], f"{check.name:<18} {check.words}")
    if check.remedy is not None:
        say(f"{'':<27} remedy: {check.remedy}")
