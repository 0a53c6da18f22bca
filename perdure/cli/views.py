"""`events`, `effects`, `sessions`, `pending`: the commands that only look."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import click

from perdure.cli.exits import ExitCode
from perdure.cli.options import Connection, SessionName, connection_options, json_option, session_options
from perdure.cli.output import show_effects, show_event, show_json, show_pending, show_sessions

if TYPE_CHECKING:
    from perdure.client import Runner


@click.command()
@session_options(required=True)
@click.option("--since", type=click.IntRange(min=0), default=0, show_default=True, help="Events to pass over.")
@click.option("--follow", "-f", is_flag=True, help="Go on as events come, until Ctrl-C.")
@json_option
@connection_options
def events(name: SessionName, since: int, follow: bool, as_json: bool, connection: Connection) -> int:
    """Print a session's event log.

    \b
    Examples:
      perdure events travel --session trip-1 --follow
      perdure events travel --session trip-1 --since 12 --json
    """

    async def read() -> int:
        from perdure.client import Runner

        runner = await Runner.connect(name.app, connection.config())
        async for event in runner.events(**name.keys(name.session or ""), since=since, follow=follow):
            show_event(event, as_json=as_json)
        return ExitCode.FINISHED

    return asyncio.run(read())


@click.command()
@session_options(required=True)
@json_option
@connection_options
def effects(name: SessionName, as_json: bool, connection: Connection) -> int:
    """Print what a session's tools did: each call with its attempts, times, outcome and idempotency key.

    \b
    Example:
      perdure effects travel --session trip-1
    """

    async def read() -> int:
        from perdure.client import Runner

        runner = await Runner.connect(name.app, connection.config())
        ledger = await runner.effects(**name.keys(name.session or ""))
        if as_json:
            for effect in ledger:
                show_json(effect)
        else:
            show_effects(ledger)
        return ExitCode.FINISHED

    return asyncio.run(read())


@click.command()
@click.argument("app", required=False)
@click.option("-u", "--user", help="Only this user's.")
@json_option
@connection_options
def sessions(app: str | None, user: str | None, as_json: bool, connection: Connection) -> int:
    """List the sessions of APP, or of all apps.

    \b
    Example:
      perdure sessions travel --json
    """

    async def read() -> int:
        views = [
            view for runner in await _runners(app, connection) for view in await runner.list_sessions(user_id=user)
        ]
        if as_json:
            for view in views:
                show_json(view)
        else:
            show_sessions(views)
        return ExitCode.FINISHED

    return asyncio.run(read())


@click.command()
@click.argument("app", required=False)
@click.option("-u", "--user", help="Only this user's.")
@click.option("-s", "--session", help="Only this session's; needs APP and --user.")
@json_option
@connection_options
def pending(app: str | None, user: str | None, session: str | None, as_json: bool, connection: Connection) -> int:
    """List the calls that wait for an answer, over all sessions of APP, or of all apps.

    \b
    Example:
      perdure pending travel
    """
    if session is not None and (user is None or app is None):
        raise click.UsageError("--session needs APP and --user: two users may have sessions of one id")

    async def read() -> int:
        runners = await _runners(app, connection)
        found = await asyncio.gather(*(runner.pending(user_id=user, session_id=session) for runner in runners))
        calls = [call for calls in found for call in calls]
        if as_json:
            for view, call in calls:
                show_json({"app_name": view.app_name, "user_id": view.user_id, "session_id": view.id, "call": call})
        else:
            show_pending(calls)
        return ExitCode.FINISHED

    return asyncio.run(read())


async def _runners(app: str | None, connection: Connection) -> list[Runner]:
    """Return a runner for the app, or for each app that has sessions."""
    from temporalio.service import RPCError

    from perdure.client import Runner
    from perdure.config import connect
    from perdure.sessions import list_apps

    client = await connect(connection.config())
    try:
        apps = [app] if app is not None else await list_apps(client)
    except RPCError as error:
        raise click.UsageError("this namespace lacks Perdure's search attributes; name an APP") from error
    return [Runner(name, client) for name in apps]
