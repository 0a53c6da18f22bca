"""Replays recorded histories by this version of Perdure, without a server: what a worker would do with an open session.

No code of an app runs in it. For tests of one's own before an upgrade of Perdure.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from temporalio.client import WorkflowHistory
from temporalio.converter import DataConverter
from temporalio.worker import Replayer, UnsandboxedWorkflowRunner, WorkflowRunner
from temporalio.workflow import NondeterminismError

from perdure.errors import HistoryDiffers, LogError
from perdure.temporal.payloads import data_converter as default_converter
from perdure.workflows.claims import ClaimsWorkflow
from perdure.workflows.session import SessionWorkflow
from perdure.workflows.shared_state import SharedStateWorkflow

__all__ = ["read_history", "replay_history"]


def read_history(path: Path, workflow_id: str | None = None) -> WorkflowHistory:
    """Return a history from a file, in the JSON that Temporal's command line and UI export.

    Args:
        path: The file.
        workflow_id: Its workflow's id. Default: what the history itself says.

    Raises:
        LogError: It is no history, or does not say of which workflow.
    """
    try:
        document: Any = json.loads(path.read_text())
        history = WorkflowHistory.from_json("", document)
    except (OSError, ValueError) as error:
        raise LogError(f"{str(path)!r} is no history in Temporal's JSON: {error}") from error
    if not history.events:
        raise LogError(f"{str(path)!r} holds no history events")
    known = workflow_id or history.events[0].workflow_execution_started_event_attributes.workflow_id
    if not known:
        raise LogError(f"{str(path)!r} does not say of which workflow it is; name it: APP/USER/SESSION")
    return WorkflowHistory(known, history.events)


async def replay_history(
    history: WorkflowHistory,
    *,
    data_converter: DataConverter = default_converter,
    runner: WorkflowRunner | None = None,
) -> None:
    """Replay a session's history; returns if the Perdure of today would do the same.

    Args:
        history: One run of a session's workflow, from a file or fetched from a server.
        data_converter: The client's, where payloads are encrypted.
        runner: What runs the workflow. Default: nothing around it.

    Raises:
        HistoryDiffers: It would do something else, or fails.
    """
    if not any(event.HasField("workflow_task_scheduled_event_attributes") for event in history.events):
        # A run that has just begun: no code has run yet, and the SDK's replayer would wait for it without an end.
        return
    replayer = Replayer(
        workflows=[SessionWorkflow, SharedStateWorkflow, ClaimsWorkflow],
        data_converter=data_converter,
        workflow_runner=runner or UnsandboxedWorkflowRunner(),
        # Else Temporal hashes the code of every module that is loaded, which takes seconds.
        build_id="replay",
        # Without a deadlock detector: nobody waits for a workflow task, and on a busy machine one may take seconds.
        debug_mode=True,
    )
    try:
        await replayer.replay_workflow(history)
    except NondeterminismError as error:
        raise HistoryDiffers(
            f"the history of {history.workflow_id!r} does not replay: {error}. This version of Perdure does not do what"
            " the one did that left the history, so a worker of it could not go on with the session. Deploy with worker"
            " versioning, or run the session on from its log: `perdure resume --fresh`"
        ) from error
    except RuntimeError as error:
        raise HistoryDiffers(
            f"the history of {history.workflow_id!r} does not replay: {error}. If its payloads are encrypted, give the"
            " keys (--encryption-keys FILE) or the payload codec (--payload-codec MODULE:NAME)"
        ) from error
