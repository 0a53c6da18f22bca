"""`resume`: run one invocation on, or all that failed of late."""

from __future__ import annotations

import asyncio
import re
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from perdure.cli.exits import ExitCode
from perdure.cli.options import Connection, SessionName, connection_options, json_option, session_options
from perdure.cli.output import age, confirm, say, show_json
from perdure.cli.plans import note_other_code
from perdure.cli.streaming import stream_options
from perdure.cli.turns.following import follow_to_end, streams_of
from perdure.errors import PerdureError
from perdure.messages.keys import SessionKey

if TYPE_CHECKING:
    from perdure.client import Runner
    from perdure.messages.session import InvocationView

_UNITS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
_SHORT = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|min|h|d)")
_NUMBER = re.compile(r"[\d\s.,+-]+")

_PACE = 5.0
"""Resumes a second, unless said otherwise: what failed together would else call its provider together."""


def parse_duration(text: str) -> timedelta | None:
    """Return a duration that is longer than nothing: `90s`, `30min`, `2h`, `7d`, or ISO 8601; `None` if it is none.

    A bare number is none: who forgets the `h` would be told that nothing happened in two seconds.
    """
    from pydantic import TypeAdapter, ValidationError

    short = _SHORT.fullmatch(text.strip())
    try:
        if short is not None:
            found = timedelta(seconds=float(short[1]) * _UNITS[short[2]])
        elif _NUMBER.fullmatch(text):
            return None
        else:
            found = TypeAdapter(timedelta).validate_python(text)
    except (ValidationError, OverflowError):
        return None
    return found if found > timedelta(0) else None


class _Since(click.ParamType[object]):
    name = "duration"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> object:
        found = parse_duration(str(value))
        if found is None:
            self.fail(f"{value!r} is no duration; write 90s, 30min, 2h, 7d, or PT2H", param, ctx)
        return found


@click.command()
@session_options(required=False)
@click.argument("invocation_id", required=False)
@click.option("--no-wait", is_flag=True, help="Set it going, and do not follow it.")
@click.option(
    "--fresh", is_flag=True, help="End the session's workflow and bring it back from its log, with today's code."
)
@click.option("--request-id", help="A second resume with the same id runs nothing on, and follows the first one.")
@click.option("--max-llm-calls", type=int, help="Model calls from here on.  [default: as the message or the app says]")
@click.option("--failed", is_flag=True, help="All invocations that failed, instead of one: of APP, or of --user.")
@click.option("--since", type=_Since(), help="With --failed: only those that failed within this time (2h, 30min, P1D).")
@click.option("--dry-run", is_flag=True, help="With --failed: print them, and resume none.")
@click.option("--yes", is_flag=True, help="With --failed: resume them without asking.")
@click.option(
    "--pace",
    type=click.FloatRange(min=0, min_open=True),
    default=_PACE,
    show_default=True,
    help="With --failed: resumes a second.",
)
@stream_options
@json_option
@connection_options
@click.pass_context
def resume(
    context: click.Context,
    name: SessionName,
    invocation_id: str | None,
    no_wait: bool,
    fresh: bool,
    request_id: str | None,
    max_llm_calls: int | None,
    failed: bool,
    since: timedelta | None,
    dry_run: bool,
    yes: bool,
    pace: float,
    stream: bool,
    stream_from: tuple[str, ...],
    as_json: bool,
    connection: Connection,
) -> int:
    """Run a stopped or failed invocation on from where it was, and print the events until it ends or waits.

    One that has made as many model calls as it may (max_llm_calls) goes on, too. With --fresh it also helps a session
    that is stuck, as behind a way back to an older Perdure: what completed is kept, and its agents are entered again.

    With --failed, after an outage: prints all invocations of APP that failed, asks, and resumes them at a pace. One
    that cannot be resumed is told of and holds up no other; the exit code is 1 then.

    \b
    Examples:
      perdure resume travel --session trip-1 e-5f1c…
      perdure resume travel --session trip-1 e-5f1c… --fresh
      perdure resume travel --failed --since 2h --dry-run
      perdure resume travel --failed --since 2h --yes --pace 2
    """
    if failed:
        if invocation_id is not None or fresh or request_id is not None or stream:
            raise click.UsageError("--failed goes without INVOCATION_ID, --fresh, --request-id and --stream")
        given = context.get_parameter_source("user") is ParameterSource.COMMANDLINE
        chosen = _Chosen(name.app, name.user if given else None, name.session, since)
        how = _How(dry_run=dry_run, yes=yes, pace=pace, max_llm_calls=max_llm_calls, as_json=as_json)
        return asyncio.run(_resume_failed(chosen, how, connection))
    if since is not None or dry_run or yes:
        raise click.UsageError("--since, --dry-run and --yes go with --failed")
    if invocation_id is None or name.session is None:
        raise click.UsageError("give --session ID and INVOCATION_ID, or --failed")
    key, one = name.key(), invocation_id

    async def go_on() -> int:
        from perdure.client import Runner
        from perdure.config import connect

        async with streams_of(connection, stream_from, on=stream) as streams:
            client = await connect(connection.config())
            await note_other_code(client, name.app)
            runner = Runner(name.app, client, streams=streams)
            runner.expect_tokens(**key.arguments)
            result = await runner.resume(
                **key.arguments,
                invocation_id=one,
                fresh=fresh,
                request_id=request_id,
                max_llm_calls=max_llm_calls,
            )
            return await follow_to_end(runner, key, result, connection, as_json=as_json, wait=not no_wait)

    return asyncio.run(go_on())


@dataclass(frozen=True)
class _Chosen:
    app: str
    user: str | None
    session: str | None
    since: timedelta | None

    def takes(self, invocation: InvocationView) -> bool:
        """Return whether an invocation failed, within the time; when, is not told of what came from elsewhere."""
        if invocation.status != "failed" or self.since is None:
            return invocation.status == "failed"
        return invocation.settled is not None and invocation.settled >= time.time() - self.since.total_seconds()


@dataclass(frozen=True)
class _How:
    dry_run: bool
    yes: bool
    pace: float
    max_llm_calls: int | None
    as_json: bool


@dataclass(frozen=True)
class _Failed:
    key: SessionKey
    invocation: InvocationView

    def told(self, became: str, why: str | None = None) -> dict[str, object]:
        """Return a line of JSON."""
        found = {"app_name": self.key.app, **self.key.arguments}
        return {**found, "invocation": self.invocation, "became": became, "why": why}

    @property
    def words(self) -> str:
        """What failed, for people."""
        why = "; ".join(f"{failure.agent}: {failure.step}: {failure.cause}" for failure in self.invocation.failures)
        when = age(self.invocation.settled) if self.invocation.settled is not None else "at an unknown time"
        return f"user {self.key.user} session {self.key.session} {self.invocation.id} failed {when}: {why}"


async def _resume_failed(chosen: _Chosen, how: _How, connection: Connection) -> int:
    from perdure.client import Runner

    runner = await Runner.connect(chosen.app, connection.config())
    found: list[_Failed] = []
    left_out = 0
    async for one in _failed(runner, chosen):
        if isinstance(one, str):
            left_out += 1
            say(one, err=True)
            continue
        found.append(one)
        if not how.as_json:
            say(one.words.replace("\n", " "))
        elif how.dry_run:
            show_json(one.told("would be resumed" if one.invocation.resumable else "cannot be resumed"))
    if how.dry_run or not found:
        say(f"{len(found)} failed invocations; none was resumed", err=True)
        return ExitCode.FAILED if left_out else ExitCode.FINISHED
    if not how.yes:
        if not sys.stdin.isatty():
            raise click.UsageError("nobody can be asked here; give --yes, or --dry-run to see what would be resumed")
        confirm(f"resume {len(found)} invocations?")
    resumed = await _resume_all(runner, found, how)
    say(f"{resumed} of {len(found)} resumed", err=True)
    return ExitCode.FINISHED if resumed == len(found) and not left_out else ExitCode.FAILED


async def _failed(runner: Runner, chosen: _Chosen) -> AsyncIterator[_Failed | str]:
    """Yield what failed, oldest sessions first; a text is about a session that could not be asked."""
    from temporalio.client import WorkflowQueryFailedError
    from temporalio.service import RPCError

    # A session at work may have failed invocations, too.
    sessions = await runner.list_sessions(user_id=chosen.user, status=("failed", "running"))
    for session in reversed(sessions):
        if chosen.session not in (None, session.id):
            continue
        try:
            async with asyncio.timeout(10):
                view = await runner.get_session(**session.key.arguments)
        except (PerdureError, RPCError, WorkflowQueryFailedError, TimeoutError) as error:
            yield f"session {session.id} of user {session.user_id} does not answer: {error or type(error).__name__}"
            continue
        for invocation in filter(chosen.takes, view.invocations):
            yield _Failed(session.key, invocation)


async def _resume_all(runner: Runner, found: list[_Failed], how: _How) -> int:
    """Resume at the pace that is wanted; returns how many went on."""
    from temporalio.service import RPCError

    began, resumed = time.monotonic(), 0
    for number, one in enumerate(found):
        await asyncio.sleep(max(0.0, began + number / how.pace - time.monotonic()))
        why = None
        try:
            async with asyncio.timeout(30):
                await runner.resume(
                    **one.key.arguments,
                    invocation_id=one.invocation.id,
                    max_llm_calls=how.max_llm_calls,
                )
        except (PerdureError, RPCError, TimeoutError) as error:
            why = str(error) or type(error).__name__
            say(f"not resumed: {one.invocation.id} of session {one.key.session}: {why}", err=True)
        resumed += why is None
        if how.as_json:
            show_json(one.told("resumed" if why is None else "not resumed", why))
    return resumed
