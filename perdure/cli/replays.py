"""`replay`: checks that this version of Perdure goes on with a session of an earlier one."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import click

from perdure.cli.exits import ExitCode
from perdure.cli.options import Connection, connection_options, json_option
from perdure.cli.output import say, show_json

if TYPE_CHECKING:
    from temporalio.client import WorkflowHistory


@click.command()
@click.argument("history", metavar="FILE|WORKFLOW_ID")
@click.option("--run-id", help="Run of the workflow.  [default: the newest]")
@click.option("--workflow-id", help="Workflow id of a history in a FILE that does not say it.")
@json_option
@connection_options
def replay(
    history: str,
    run_id: str | None,
    workflow_id: str | None,
    as_json: bool,
    connection: Connection,
) -> int:
    """Replay a recorded history by this version of Perdure, and say whether it would do the same.

    The history is a FILE as Temporal's command line or UI exports it, or is fetched of a session's WORKFLOW_ID
    (APP/USER/SESSION). Nothing is changed, and no code of an app runs. The exit code is 1 if the history does not
    replay.

    \b
    Examples:
      perdure replay trip-1.json
      perdure replay travel/ada/trip-1
    """
    from perdure.errors import HistoryDiffers
    from perdure.prove.replay import read_history, replay_history

    path = Path(history)
    from_file = read_history(path, workflow_id) if path.is_file() else None

    async def check() -> int:
        found = from_file or await _fetch(history, run_id, connection)
        reason: str | None = None
        try:
            await replay_history(found, data_converter=connection.config().data_converter)
        except HistoryDiffers as error:
            reason = str(error)
        if as_json:
            show_json(
                {"workflow_id": found.workflow_id, "events": len(found.events), "replays": reason is None}
                | ({"reason": reason} if reason else {})
            )
        elif reason is None:
            say(f"{found.workflow_id}: the history of {len(found.events)} events replays")
        else:
            say(f"perdure: {reason}", err=True)
        return ExitCode.FINISHED if reason is None else ExitCode.FAILED

    return asyncio.run(check())


async def _fetch(workflow_id: str, run_id: str | None, connection: Connection) -> WorkflowHistory:
    from temporalio.service import RPCError, RPCStatusCode

    from perdure.config import connect
    from perdure.errors import SessionNotFound

    client = await connect(connection.config())
    try:
        return await client.get_workflow_handle(workflow_id, run_id=run_id).fetch_history()
    except RPCError as error:
        if error.status not in (RPCStatusCode.NOT_FOUND, RPCStatusCode.INVALID_ARGUMENT):
            raise
        raise SessionNotFound(f"{workflow_id!r} is neither a file nor a workflow: {error.message}") from error
