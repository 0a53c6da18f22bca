"""`export` and `import`: sessions out of and into files."""

from __future__ import annotations

import asyncio
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from perdure.cli.exits import ExitCode
from perdure.cli.options import Connection, SessionName, connection_options, json_option, session_options
from perdure.cli.output import say, say_line_of_file, session_flags, show_json
from perdure.messages.keys import SessionKey

if TYPE_CHECKING:
    from perdure.sessions.transfers import ImportedSession


@click.command()
@session_options(required=True)
@click.option("--journal", is_flag=True, help="Add Perdure's own entries, so that an import resumes exactly.")
@connection_options
def export(name: SessionName, journal: bool, connection: Connection) -> int:
    """Write a session to standard output: a header line, then one ADK event a line.

    \b
    Examples:
      perdure export travel --session trip-1 > trip-1.jsonl
      perdure export travel --session trip-1 --journal > trip-1.jsonl
    """

    async def write() -> int:
        from perdure.client import Runner

        runner = await Runner.connect(name.app, connection.config())
        async for line in runner.export_session(**name.key().arguments, journal=journal):
            say_line_of_file(line)
        return ExitCode.FINISHED

    return asyncio.run(write())


@click.command("import")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path))
@click.option("--app", help="App.  [default: the file's]")
@click.option("-u", "--user", help="User id.  [default: the file's]")
@click.option("-s", "--session", help="Session id.  [default: the file's]")
@click.option("--replace", is_flag=True, help="Take the place of a session of this id; its log is kept under another.")
@click.option("--allow-pending-calls", is_flag=True, help="Let calls without a response run. Only for files you trust.")
@click.option("--damaged", is_flag=True, help="Take the events that are left of an export that was cut or changed.")
@json_option
@connection_options
def import_(
    file: Path,
    app: str | None,
    user: str | None,
    session: str | None,
    replace: bool,
    allow_pending_calls: bool,
    damaged: bool,
    as_json: bool,
    connection: Connection,
) -> int:
    """Make a session of a FILE, or of standard input if FILE is `-`. Nothing in it is set going.

    FILE is an export; or a session of ADK as JSON, as its server answers it and `adk run --save_session` writes it; or
    ADK's events, one a line.

    \b
    Examples:
      perdure import trip-1.jsonl
      perdure import trip-1.jsonl --app travel --session copy --allow-pending-calls
      perdure import trip-1.session.json --app travel
    """

    async def read(text: bytes) -> int:
        from perdure.client import Runner
        from perdure.errors import InvalidMessage
        from perdure.trajectories.given_logs import read_given

        log = await asyncio.to_thread(read_given, text, damaged=damaged)
        if (name := app or log.app) is None:
            raise InvalidMessage("the log names no app; give --app")
        runner = await Runner.connect(name, connection.config())
        imported = await runner.import_session(
            log, user_id=user, session_id=session, replace=replace, allow_pending_calls=allow_pending_calls
        )
        if as_json:
            show_json(imported)
        else:
            _tell(imported, connection)
        return ExitCode.FINISHED

    with click.open_file(str(file), "rb") as stream:
        from perdure.trajectories.checks import MAX_IMPORT_BYTES

        # One byte more than an import may have, so that a file without an end is refused and not read.
        text = stream.read(MAX_IMPORT_BYTES + 1)
    return asyncio.run(read(text))


def _tell(imported: ImportedSession, connection: Connection) -> None:
    say(
        f"session {imported.session_id} of user {imported.user_id} in app {imported.app_name}:"
        f" {imported.event_count} events"
    )
    for note in imported.notes:
        say(f"  note: {note}", err=True)
    if imported.replaced is not None:
        say(f"  the log that it replaces is kept as session {imported.replaced}", err=True)
    flags = session_flags(SessionKey(imported.app_name, imported.user_id, imported.session_id)) + connection.flags
    for invocation in imported.invocations:
        if invocation.resumable:
            say(f"  resume it:  perdure resume {flags} {shlex.quote(invocation.id)}", err=True)
    if any(invocation.pending for invocation in imported.invocations):
        say(f"  what waits:  perdure pending {shlex.quote(imported.app_name)}{connection.flags}", err=True)
