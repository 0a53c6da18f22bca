"""`session`: one session, to create, look at, change and delete; and `apps`."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import click

from perdure.cli.exits import ExitCode
from perdure.cli.options import Connection, SessionName, connection_options, json_option, parse_pairs, session_options
from perdure.cli.output import call_text, clock, confirm, say, say_json, show_json

if TYPE_CHECKING:
    from perdure.messages.session import InvocationView, SessionView


@click.command()
@json_option
@connection_options
def apps(as_json: bool, connection: Connection) -> int:
    """List the apps that have sessions, as far as they have run once.

    \b
    Example:
      perdure apps
    """

    async def read() -> int:
        from temporalio.service import RPCError

        from perdure.config import connect
        from perdure.sessions.listing import list_apps

        try:
            names = await list_apps(await connect(connection.config()))
        except RPCError as error:
            raise click.UsageError("this namespace lacks Perdure's search attributes") from error
        for name in names:
            if as_json:
                show_json({"app_name": name})
            else:
                say(name)
        return ExitCode.FINISHED

    return asyncio.run(read())


@click.group()
def session() -> None:
    """Create, look at, change or delete one session."""


@session.command()
@session_options(required=False)
@click.option("--state", multiple=True, metavar="KEY=JSON", help="The session's first state; repeatable.")
@click.option("--wait-for-worker", is_flag=True, help="Create it though nobody serves APP.")
@json_option
@connection_options
def create(
    name: SessionName, state: tuple[str, ...], wait_for_worker: bool, as_json: bool, connection: Connection
) -> int:
    """Create a session of APP, with a fresh id unless --session gives one, and print its id.

    Nothing is made if no worker serves APP, unless --wait-for-worker says so.

    \b
    Examples:
      perdure session create travel
      perdure session create travel --session trip-1 --state city='"Oslo"'
    """
    first = parse_pairs(state, "--state")

    async def make() -> int:
        from perdure.cli.turns.served import check_served
        from perdure.client import Runner
        from perdure.config import connect

        client = await connect(connection.config())
        if not wait_for_worker:
            await check_served(client, name.app, undone="no session was made", meant="make it all the same")
        runner = Runner(name.app, client)
        view = await runner.create_session(user_id=name.user, session_id=name.session, state=first)
        if as_json:
            show_json(view)
        else:
            say(view.id)
        return ExitCode.FINISHED

    return asyncio.run(make())


@session.command()
@session_options(required=True)
@click.option("--invocation", metavar="ID", help="Only this invocation.")
@click.option("--plan", is_flag=True, help="The plan that the invocation is pinned to, instead.")
@json_option
@connection_options
def show(name: SessionName, invocation: str | None, plan: bool, as_json: bool, connection: Connection) -> int:
    """Print a session of APP: its state, its status, and its invocations with theirs.

    `perdure events` prints its log, `perdure effects` what its tools did, `perdure explain` what it awaits.

    \b
    Examples:
      perdure session show travel --session trip-1
      perdure session show travel --session trip-1 --invocation e-5f1c… --plan
    """
    if plan and invocation is None:
        raise click.UsageError("--plan needs --invocation ID")
    keys = name.key().arguments

    async def read() -> int:
        from perdure.client import Runner

        runner = await Runner.connect(name.app, connection.config())
        if invocation is None:
            _show_session(await runner.get_session(**keys), as_json=as_json)
            return ExitCode.FINISHED
        if plan:
            return _show_plan(await runner.plan(**keys, invocation_id=invocation), as_json=as_json)
        view = await runner.invocation(**keys, invocation_id=invocation)
        if as_json:
            show_json(view)
        else:
            _show_invocation(view)
        return ExitCode.FINISHED

    return asyncio.run(read())


@session.command("state")
@session_options(required=True)
@click.argument("pairs", nargs=-1, required=True, metavar="KEY=JSON...")
@json_option
@connection_options
def change_state(name: SessionName, pairs: tuple[str, ...], as_json: bool, connection: Connection) -> int:
    """Write keys into a session's state, whatever its invocations do; null stays a value.

    \b
    Example:
      perdure session state travel --session trip-1 city='"Bergen"' nights=3
    """
    delta = parse_pairs(pairs, "KEY=JSON")

    async def write() -> int:
        from perdure.client import Runner

        runner = await Runner.connect(name.app, connection.config())
        event = await runner.change_state(**name.key().arguments, state_delta=delta)
        if as_json:
            say_json(event.to_json())
        else:
            say(f"written: {', '.join(event.actions.state_delta)}")
        return ExitCode.FINISHED

    return asyncio.run(write())


@session.command()
@session_options(required=True)
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
@connection_options
def delete(name: SessionName, yes: bool, as_json: bool, connection: Connection) -> int:
    """Delete a session, its log and its workflow's history. One that does not exist is no error.

    \b
    Example:
      perdure session delete travel --session trip-1 --yes
    """
    key = name.key()
    if not yes:
        confirm(f"Delete session {key.session} of user {key.user} in app {key.app}?")

    async def remove() -> int:
        from perdure.client import Runner

        runner = await Runner.connect(name.app, connection.config())
        await runner.delete_session(**key.arguments)
        if as_json:
            show_json({"app_name": key.app, **key.arguments, "deleted": True})
        return ExitCode.FINISHED

    return asyncio.run(remove())


def _show_session(view: SessionView, *, as_json: bool) -> None:
    if as_json:
        show_json(view)
        return
    say(f"session {view.id} of user {view.user_id} in app {view.app_name} is {view.status}")
    say(f"{view.event_count} events, the last one {clock(view.last_update_time or None)} UTC")
    for key, value in view.state.items():
        say(f"  {key} = {value!r}")
    for invocation in view.invocations:
        _show_invocation(invocation)


def _show_invocation(view: InvocationView) -> None:
    say(f"invocation {view.id} is {view.status}" + (f" ({view.reason})" if view.reason else ""))
    for failure in view.failures:
        say(f"  agent {failure.agent!r} failed in {failure.step!r}: {failure.cause}")
    for call in view.pending:
        say(f"  waits for {call_text(call)} of {call.agent}: {call.id}")


def _show_plan(found: object, *, as_json: bool) -> int:
    from perdure.plan.diff import describe_plan
    from perdure.plan.nodes import Plan

    if not isinstance(found, Plan):
        say("the invocation is pinned to no plan yet; it takes the newest when it starts", err=True)
        return ExitCode.FINISHED
    if as_json:
        show_json({"digest": found.digest, "plan": found})
    else:
        for line in describe_plan(found):
            say(line)
    return ExitCode.FINISHED
