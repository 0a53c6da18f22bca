"""What the commands share that follow an invocation: tokens, its end, its exit code, and what answers are like."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING

from perdure.cli.exits import ExitCode
from perdure.cli.options import Connection, SessionName
from perdure.cli.output import say, session_flags, show_outcome
from perdure.cli.streaming import Printer, dev_addresses, heard
from perdure.errors import InvocationFailed, SessionExists
from perdure.messages.keys import SessionKey

if TYPE_CHECKING:
    from perdure.client import Runner
    from perdure.journal.open_calls import PendingCall
    from perdure.messages.session import InvocationResult, InvocationView
    from perdure.plan.nodes import Plan
    from perdure.streams.hub import TokenHub


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
