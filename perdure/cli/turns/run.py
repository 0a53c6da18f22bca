"""`run` and `stop`."""

from __future__ import annotations

import asyncio
import sys

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
from perdure.cli.output import say, show_outcome
from perdure.cli.streaming import stream_options
from perdure.cli.turns.following import follow_to_end, open_session, streams_of
from perdure.cli.turns.served import check_served


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
        from perdure.cli.talk.conversation import Sending
        from perdure.cli.talk.given import Talk
        from perdure.cli.talk.start import talk

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
