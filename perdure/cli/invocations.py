"""`run` and `stop`, and what all share that follow an invocation to its end."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from difflib import get_close_matches
from typing import TYPE_CHECKING

import click

from perdure.cli.exits import ExitCode
from perdure.cli.options import (
    Connection,
    SessionName,
    connection_options,
    json_option,
    parse_pairs,
    session_options,
)
from perdure.cli.output import say, session_flags, show_outcome
from perdure.cli.streaming import Printer, dev_addresses, heard, stream_options
from perdure.errors import InvocationFailed, SessionExists
from perdure.messages.keys import SessionKey

if TYPE_CHECKING:
    from temporalio.client import Client

    from perdure.client import Runner
    from perdure.journal.open_calls import PendingCall
    from perdure.messages.session import InvocationResult, InvocationView
    from perdure.plan.nodes import Plan
    from perdure.streams.hub import TokenHub

_PATIENCE = 2.0
"""Seconds for which a worker is waited for that has just been started."""

_PATIENCE_ALONE = 8.0
"""The same where no app is served: then it is more likely to be about to be than to be misspelled."""

_NAMED = 20
"""Apps that are served which an error names."""


@click.command()
@session_options(required=False)
@click.argument("message", required=False)
@click.option("--state", multiple=True, metavar="KEY=JSON", help="Session state to write with the message; repeatable.")
@click.option("--request-id", help="A second run with the same id starts nothing, and follows the first one.")
@click.option("--max-llm-calls", type=int, help="Model calls of the invocation.  [default: as the app says]")
@stream_options
@click.option("--no-wait", is_flag=True, help="Start it, and do not follow it.")
@click.option(
    "--wait-for-worker", is_flag=True, help="Send it though nobody serves APP; it begins when a worker is up."
)
@json_option
@connection_options
def run(
    name: SessionName,
    message: str | None,
    state: tuple[str, ...],
    request_id: str | None,
    max_llm_calls: int | None,
    no_wait: bool,
    wait_for_worker: bool,
    stream: bool,
    stream_from: tuple[str, ...],
    as_json: bool,
    connection: Connection,
) -> int:
    """Send MESSAGE to APP and print the events until the invocation ends or waits; without MESSAGE, talk.

    A conversation shows what is written as it is written, and asks for what waits; /help says more. Where standard
    input is no terminal, its lines are the messages.

    Without --session a new session is made and its id printed; a --session that does not exist is made. Nothing is made
    if no worker serves APP, unless --wait-for-worker says so. A MESSAGE of `-` is read from standard input. With --json
    each line is an event as ADK writes it, and the last line is `{"user_id", "session_id", "invocation"}`.

    \b
    Examples:
      perdure run travel "Book me a flight to Oslo"
      perdure run travel --session trip-1 "And a hotel" --stream
      perdure run travel --session trip-1
    """
    delta = parse_pairs(state, "--state")
    if message is None:
        if no_wait or request_id is not None:
            raise click.UsageError("--no-wait and --request-id go with a MESSAGE")
        from perdure.cli.talk.start import Sending, Talk, talk

        return talk(
            Talk(
                name=name,
                connection=connection,
                sending=Sending(state_delta=delta, max_llm_calls=max_llm_calls),
                stream=stream,
                stream_from=stream_from,
                wait_for_worker=wait_for_worker,
                as_json=as_json,
            )
        )
    text = sys.stdin.read() if message == "-" else message

    async def send() -> int:
        from perdure.client import Runner
        from perdure.config import connect

        async with streams_of(connection, stream_from, on=stream) as streams:
            client = await connect(connection.config())
            if not wait_for_worker:
                await check_served(client, name.app)
            runner = Runner(name.app, client, streams=streams)
            key = await open_session(runner, name)
            if not as_json and name.session is None:
                say(f"session {key.session} of user {key.user}", err=True)
            runner.expect_tokens(**key.arguments)
            result = await runner.send_message(
                **key.arguments,
                message=text,
                state_delta=delta or None,
                request_id=request_id,
                max_llm_calls=max_llm_calls,
            )
            return await follow_to_end(runner, key, result, connection, as_json=as_json, wait=not no_wait)

    return asyncio.run(send())


@click.command()
@session_options(required=True)
@click.argument("invocation_id")
@click.option("--reason", help="Why; readable in the invocation's status.")
@json_option
@connection_options
def stop(name: SessionName, invocation_id: str, reason: str | None, as_json: bool, connection: Connection) -> int:
    """Stop a running or waiting invocation; what it has done stays, and `perdure resume` runs it on.

    \b
    Example:
      perdure stop travel --session trip-1 e-5f1c…
    """
    key = name.key()

    async def end() -> int:
        from perdure.client import Runner

        runner = await Runner.connect(name.app, connection.config())
        result = await runner.stop(**key.arguments, invocation_id=invocation_id, reason=reason)
        show_outcome(key, result.invocation, connection, as_json=as_json)
        return ExitCode.FINISHED

    return asyncio.run(end())


def streams_of(
    connection: Connection, stream_from: tuple[str, ...], *, on: bool, wait: bool = True
) -> AbstractAsyncContextManager[TokenHub | None]:
    """Hear what models write, if that is wanted: of the workers that are named, or of `perdure dev` on this machine.

    Args:
        connection: Where Temporal is.
        stream_from: Where workers tell.
        on: It is wanted.
        wait: Wait a second for a worker, and say so if there is none.
    """
    if not on:
        return heard((), None)
    config = connection.config().resolve()
    return heard(stream_from or dev_addresses(config), config.payload_codec, wait=wait)


async def check_served(client: Client, app: str) -> None:
    """Check that a worker serves an app: a message to a name that is misspelled would wait for ever.

    Raises:
        click.ClickException: None does.
    """
    from perdure.sessions.served import is_served, served_apps

    if await is_served(client, app, _PATIENCE):
        return
    apps = await served_apps(client, app)
    if not apps and await is_served(client, app, _PATIENCE_ALONE):
        return
    near = get_close_matches(app, apps, n=1)
    where = client.service_client.config.target_host
    names = ", ".join(apps[:_NAMED]) + (f" and {len(apps) - _NAMED} more" if len(apps) > _NAMED else "")
    served = f"served at {where}: {names}" if apps else f"no app is served at {where}"
    meant = f" Did you mean {near[0]!r}?" if near else ""
    raise click.ClickException(
        f"no worker serves app {app!r}, so nothing was sent; {served}.{meant} Start a worker by `perdure dev PATH`, or"
        " say --wait-for-worker to have the message wait for one"
    )


async def open_session(runner: Runner, name: SessionName) -> SessionKey:
    """Return the session that the command line names, made if it is not there."""
    try:
        view = await runner.create_session(user_id=name.user, session_id=name.session)
    except SessionExists:
        return name.key()
    return name.key(view.id)


async def follow_to_end(
    runner: Runner,
    key: SessionKey,
    result: InvocationResult,
    connection: Connection,
    *,
    as_json: bool,
    wait: bool = True,
) -> ExitCode:
    """Print the events of an invocation and how it stands then; return the exit code."""
    invocation = result.invocation
    failed: InvocationFailed | None = None
    if wait:
        printer = Printer(as_json=as_json)
        try:
            async for event in runner.follow(
                **key.arguments, invocation_id=result.invocation.id, since=result.offset, streaming=True
            ):
                printer.show(event)
        except InvocationFailed as error:
            failed = error
        except asyncio.CancelledError:
            flags = session_flags(key) + connection.flags
            say(f"invocation {invocation.id} goes on; see `perdure events {flags} --follow`", err=True)
            raise
        finally:
            printer.close()
        invocation = await runner.invocation(**key.arguments, invocation_id=invocation.id)
    plan = await plan_for_answers(runner, key, invocation.pending) if wait and not as_json else None
    show_outcome(key, invocation, connection, as_json=as_json, plan=plan)
    if failed is not None and not invocation.failures:
        # Not a step of its own failed, which the outcome would name, but the session's workflow was closed.
        raise failed
    return exit_code(invocation) if wait else ExitCode.FINISHED


def exit_code(invocation: InvocationView) -> ExitCode:
    """Return the exit code of a command that followed an invocation to how it stands."""
    if invocation.status in ("failed", "stopped"):
        return ExitCode.FAILED
    # An app that is not resumable finishes with its calls open; they still wait for an answer.
    waits = bool(invocation.pending) or invocation.status == "waiting"
    return ExitCode.WAITING if waits else ExitCode.FINISHED


async def plan_for_answers(runner: Runner, key: SessionKey, calls: Sequence[PendingCall]) -> Plan | None:
    """Return the plan that says of what types the answers to one invocation's calls are; `None` where none need it."""
    from perdure.journal.events import QUESTIONS, REQUEST_INPUT

    tool = next((call for call in calls if call.name not in QUESTIONS | {REQUEST_INPUT}), None)
    return await runner.plan(**key.arguments, invocation_id=tool.invocation_id) if tool is not None else None
