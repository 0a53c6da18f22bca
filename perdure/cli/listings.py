"""`events`, `effects`, `sessions`, `pending`: the commands that only read."""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import click

from perdure.cli.exits import ExitCode
from perdure.cli.options import Connection, SessionName, connection_options, json_option, session_options
from perdure.cli.output import say, show_effects, show_event, show_json, show_pending, show_sessions

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from datetime import timedelta

    from perdure.client import Runner
    from perdure.journal.open_calls import PendingCall, SessionStatus
    from perdure.sessions.listing import ListedSession
    from perdure.sessions.pending import WaitingPage, Wanted


@click.command()
@session_options(required=True)
@click.option("--since", type=click.IntRange(min=0), default=0, show_default=True, help="Events to pass over.")
@click.option("--limit", type=click.IntRange(min=1), help="Events to print at the most.  [default: all]")
@click.option("--follow", "-f", is_flag=True, help="Go on as events come, until Ctrl-C.")
@json_option
@connection_options
def events(
    name: SessionName, since: int, limit: int | None, follow: bool, as_json: bool, connection: Connection
) -> int:
    """Print a session's event log.

    Where an activity takes several steps, what it keeps comes behind the log, or with --follow at once; with --json,
    where lines are counted, only with --follow.

    \b
    Examples:
      perdure events travel --session trip-1 --follow
      perdure events travel --session trip-1 --since 12 --json
    """

    async def read() -> int:
        from perdure.client import Runner

        runner = await Runner.connect(name.app, connection.config())
        left, shown = limit, set[str]()
        kept = () if follow or as_json else (await runner.get_session(**name.key().arguments)).kept
        async with aclosing(runner.events(**name.key().arguments, since=since, follow=follow)) as found:
            async for event in found:
                show_event(event, as_json=as_json)
                shown.add(event.id)
                left = left - 1 if left is not None else None
                if left == 0:
                    return ExitCode.FINISHED
        for event in [event for event in kept if event.id not in shown][:left]:
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
        ledger = await runner.effects(**name.key().arguments)
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
@click.option(
    "--status",
    "statuses",
    multiple=True,
    type=click.Choice(("running", "failed", "waiting", "stopped", "idle")),
    help="Only sessions of this status; repeatable.",
)
@json_option
@connection_options
def sessions(
    app: str | None, user: str | None, statuses: tuple[SessionStatus, ...], as_json: bool, connection: Connection
) -> int:
    """List the sessions of APP, or of all apps.

    \b
    Examples:
      perdure sessions travel --json
      perdure sessions travel --status failed --status waiting
    """

    async def read() -> int:
        views = [
            view
            for runner in await _runners(app, connection)
            for view in await runner.list_sessions(user_id=user, status=statuses)
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
@click.option("--tool", help="Only calls of this tool, or about one of it.")
@click.option("--older-than", metavar="DURATION", help="Only calls that wait for so long: seconds, or PT1H, P2D.")
@json_option
@connection_options
def pending(
    app: str | None,
    user: str | None,
    session: str | None,
    tool: str | None,
    older_than: str | None,
    as_json: bool,
    connection: Connection,
) -> int:
    """List the calls that wait for an answer, over all sessions of APP, or of all apps.

    With --json they come session by session, else the oldest first. Sessions that cannot be read in time are counted.

    \b
    Examples:
      perdure pending
      perdure pending travel --tool ask_manager --older-than PT1H
    """
    if session is not None and (user is None or app is None):
        raise click.UsageError("--session needs APP and --user: two users may have sessions of one id")

    async def read() -> int:
        from perdure.sessions.pending import Wanted

        wanted = Wanted(app=app, user_id=user, tool=tool, older_than=_duration(older_than))
        found: list[tuple[ListedSession, PendingCall]] = []
        unanswered = 0
        async for page in _waiting(wanted, session, connection):
            unanswered += len(page.unanswered)
            for view, call in page.calls if as_json else ():
                show_json({"app_name": view.app_name, **view.key.arguments, "call": call})
            found += page.calls
        if not as_json:
            show_pending(sorted(found, key=lambda pair: pair[1].since))
        await _tell_at_limit(app, user, connection)
        if unanswered:
            say(f"{unanswered} sessions cannot be read, or not in time, so their calls are missing", err=True)
        return ExitCode.FINISHED

    return asyncio.run(read())


async def _tell_at_limit(app: str | None, user: str | None, connection: Connection) -> None:
    """Say which sessions wait for no answer, but for a resume, as far as listings tell."""
    from perdure.rules.model_calls import LIMIT

    for runner in await _runners(app, connection) if app is not None else ():
        listed = await runner.list_sessions(user_id=user)
        for view in listed:
            if LIMIT in (view.pending_tools or ()):
                words = (
                    f"session {view.id} of user {view.user_id} has made as many model calls as it may, and waits for a"
                )
                say(f"{words} resume; see `perdure explain {view.app_name} {view.id}`", err=True)


async def _waiting(wanted: Wanted, session: str | None, connection: Connection) -> AsyncGenerator[WaitingPage, None]:
    from perdure.client import Runner
    from perdure.config import connect
    from perdure.sessions.pending import WaitingPage, all_waiting

    client = await connect(connection.config())
    if session is None:
        async for page in all_waiting(client, wanted):
            yield page
        return
    found = await Runner(wanted.app or "", client).pending(user_id=wanted.user_id, session_id=session)
    now = time.time()
    yield WaitingPage(tuple(pair for pair in found if wanted.takes(pair[1], now)))


def _duration(text: str | None) -> timedelta | None:
    """Return a duration: seconds, or ISO 8601.

    Raises:
        click.BadParameter: The text is none.
    """
    from pydantic import TypeAdapter, ValidationError

    from perdure.sessions.pending import Duration

    if text is None:
        return None
    try:
        found: timedelta = TypeAdapter[Any](Duration).validate_python(text)
    except ValidationError as error:
        problem = f"{text!r} is no duration; write seconds, or PT1H, P2D"
        raise click.BadParameter(problem, param_hint="--older-than") from error
    return found


async def _runners(app: str | None, connection: Connection) -> list[Runner]:
    """Return a runner for the app, or for each app that has sessions."""
    from temporalio.service import RPCError

    from perdure.client import Runner
    from perdure.config import connect
    from perdure.sessions.listing import list_apps

    client = await connect(connection.config())
    try:
        apps = [app] if app is not None else await list_apps(client)
    except RPCError as error:
        raise click.UsageError("this namespace lacks Perdure's search attributes; name an APP") from error
    return [Runner(name, client) for name in apps]
