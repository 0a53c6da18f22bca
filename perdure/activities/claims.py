"""Claims the start of an at-most-once call, before its function is started."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from hashlib import sha256
from typing import Any

from pydantic_core import to_json
from temporalio import activity
from temporalio.client import (
    Client,
    WithStartWorkflowOperation,
    WorkflowUpdateFailedError,
    WorkflowUpdateRPCTimeoutOrCancelledError,
)
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from perdure.activities.journal_cache import JournalCache
from perdure.journal.entries import ToolStarted, innermost
from perdure.messages.claims import CLAIM, CLAIMS_WORKFLOW, Claim, ClaimInput, ClaimResult, ClaimsInput, claims_id
from perdure.messages.session import JournalSlice, ToolInput
from perdure.rules.in_doubt import ALREADY_STARTED, LOST_START, NOT_CLAIMED

__all__ = ["ClaimDesk"]

_PAUSE_SECONDS = 0.5

_FINAL = frozenset(
    {
        RPCStatusCode.INVALID_ARGUMENT,
        RPCStatusCode.PERMISSION_DENIED,
        RPCStatusCode.UNAUTHENTICATED,
        RPCStatusCode.UNIMPLEMENTED,
    }
)
"""Codes of refusals that the same request gets again."""

_NEXT_RUN = "AcceptedUpdateCompletedWorkflow"
"""Type of the error of an update whose run ended before the update did."""


def _start(call: ToolInput) -> str:
    """Return which start of a call this is: a person's word may let it start again."""
    words = ("approved" if call.confirmation is not None else "", "authorized" if call.authorized else "", call.again)
    return "/".join(filter(None, words))


class ClaimDesk:
    """Asks a session's claims workflow, which it starts where there is none."""

    def __init__(self, client: Client, journals: JournalCache) -> None:
        """Make a desk that asks by a client; journals say which starts a session's own history knows."""
        self._client = client
        self._journals = journals

    async def claim(self, call: ToolInput) -> None:
        """Return if the tool may start, as no other attempt may from now on. For activities.

        Raises:
            ApplicationError: It was started before, in this history or in one that was reset; or the server takes no
                claim. Not retried.
        """
        info = activity.info()
        claim = Claim(
            key=call.idempotency_key,
            start=_start(call),
            again=call.again is not None,
            tool=call.tool,
            args=_digest(call),
            at=round(time.time(), 3),
            token=uuid.uuid4().hex,
        )
        request = ClaimInput(claim=claim, run_id=info.workflow_run_id or "")
        result = await self._ask(claims_id(info.workflow_id or ""), info.task_queue, request)
        if result.verdict == "unknown_run":
            request = request.model_copy(update={"known": await self._known(call.known or 0)})
            result = await self._ask(claims_id(info.workflow_id or ""), info.task_queue, request)
        _check(call, result)

    async def _known(self, length: int) -> tuple[str, ...]:
        """Return the keys of the at-most-once calls that the session's journal tells to be started."""
        info = activity.info()
        part = JournalSlice(offset=length)
        snapshot = await self._journals.at(info.workflow_id or "", info.workflow_run_id or "", part)
        entries = map(innermost, snapshot.projection.entries)
        return tuple(dict.fromkeys(entry.idempotency_key for entry in entries if isinstance(entry, ToolStarted)))

    async def _ask(self, workflow_id: str, task_queue: str, request: ClaimInput) -> ClaimResult:
        # Where the server gave no answer it may have taken the claim; the token tells that this is the same one.
        while True:
            try:
                return await self._update(workflow_id, task_queue, request)
            except (RPCError, WorkflowUpdateRPCTimeoutOrCancelledError) as error:
                if isinstance(error, RPCError) and error.status in _FINAL:
                    raise _refused(error) from error
                await asyncio.sleep(_PAUSE_SECONDS)
            except WorkflowUpdateFailedError as error:
                # The workflow went on in a new run meanwhile.
                if getattr(error.cause, "type", None) != _NEXT_RUN:
                    raise

    async def _update(self, workflow_id: str, task_queue: str, request: ClaimInput) -> ClaimResult:
        handle = self._client.get_workflow_handle(workflow_id)
        try:
            return await handle.execute_update(CLAIM, request, result_type=ClaimResult)  # pyright: ignore[reportUnknownMemberType] -- the SDK's overloads
        except RPCError as error:
            if error.status != RPCStatusCode.NOT_FOUND:
                raise
        start: WithStartWorkflowOperation[Any, Any] = WithStartWorkflowOperation(
            CLAIMS_WORKFLOW,
            ClaimsInput(),
            id=workflow_id,
            task_queue=task_queue,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            static_summary="claims of at-most-once calls",
        )
        return await self._client.execute_update_with_start_workflow(  # pyright: ignore[reportUnknownMemberType] -- the SDK's overloads
            CLAIM, request, result_type=ClaimResult, start_workflow_operation=start
        )


def _digest(call: ToolInput) -> str:
    plain = json.dumps(json.loads(to_json(call.args)), sort_keys=True)
    return sha256(plain.encode()).hexdigest()[:16]


def _refused(error: RPCError) -> ApplicationError:
    return ApplicationError(
        "the tool was not started, since Temporal refuses to note its start in the workflow of the session's claims"
        f" ({error.status.name}: {error.message}); let the worker start and update workflows, then resume",
        type=NOT_CLAIMED,
        non_retryable=True,
    )


def _check(call: ToolInput, result: ClaimResult) -> None:
    if result.verdict == "first":
        return
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(result.at))
    if result.verdict == "lost":
        raise ApplicationError(
            f"before a reset this tool was started with the key {result.key}, at {when} UTC",
            type=LOST_START,
            non_retryable=True,
        )
    raise ApplicationError(
        f"the call was started before, at {when} UTC, in a history that was reset",
        type=ALREADY_STARTED,
        non_retryable=True,
    )
