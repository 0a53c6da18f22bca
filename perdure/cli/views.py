"""`events`, `sessions`, `pending`: the commands that only look."""

from __future__ import annotations

import asyncio

import click

from perdure.cli.exits import ExitCode
from perdure.cli.options import Connection, SessionName, connection_options, json_option, session_options
from perdure.cli.output import show_event, show_json, show_pending, show_sessions


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
@click.argument("app")
@click.option("-u", "--user", help="Only this user's.")
@json_option
@connection_options
def sessions(app: str, user: str | None, as_json: bool, connection: Connection) -> int:
    """List the sessions of APP.

    \b
    Example:
      perdure sessions travel --json
    """

    async def read() -> int:
        from perdure.client import Runner

        runner = await Runner.connect(app, connection.config())
        views = list(await runner.list_sessions(user_id=user))
        if as_json:
            for view in views:
                show_json(view)
        else:
            show_sessions(views)
        return ExitCode.FINISHED

    return asyncio.run(read())


@click.command()
@click.argument("app")
@click.option("-u", "--user", help="Only this user's.")
@click.option("-s", "--session", help="Only this session's; needs --user.")
@json_option
@connection_options
def pending(app: str, user: str | None, session: str | None, as_json: bool, connection: Connection) -> int:
    """List the calls that wait for an answer, over all sessions of APP.

    \b
    Example:
      perdure pending travel
    """
    if session is not None and user is None:
        raise click.UsageError("--session needs --user: two users may have sessions of one id")

    async def read() -> int:
        from perdure.client import Runner

        runner = await Runner.connect(app, connection.config())
        calls = list(await runner.pending(user_id=user, session_id=session))
        if as_json:
            for view, call in calls:
                show_json({"user_id": view.user_id, "session_id": view.id, "call": call})
        else:
            show_pending(calls)
        return ExitCode.FINISHED

    return asyncio.run(read())
