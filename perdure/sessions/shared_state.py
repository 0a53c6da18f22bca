"""Reads and writes the `user:` and `app:` keys that sessions share: one small workflow per user and one per app."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from temporalio.client import Client
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.service import RPCError, RPCStatusCode

from perdure.errors import SharedStateFull
from perdure.journal.compact_json import payload_size
from perdure.journal.entries import Entry, EventLogged, LogImported, MessageAccepted
from perdure.journal.events import Event
from perdure.journal.fold import fold_journal
from perdure.journal.projection import shared_part
from perdure.messages.keys import SessionKey
from perdure.messages.shared_state import (
    SET_STATE,
    STATE,
    STATE_WORKFLOW,
    ShareStateInput,
    StateInput,
    StateView,
    StateWrite,
    state_workflow_id,
)

_MAX_BYTES = 800_000
"""What an app's keys, and each user's, may have: both are read together as an invocation starts."""


async def read_state(client: Client, app: str, user_id: str | None) -> dict[str, Any]:
    """Return the keys that a user's sessions, or without a user all of the app's, share."""
    handle = client.get_workflow_handle(state_workflow_id(app, user_id))
    try:
        return (await handle.query(STATE, result_type=StateView)).state
    except RPCError as error:
        if error.status == RPCStatusCode.NOT_FOUND:
            return {}
        raise


async def share_state(client: Client, app: str, request: ShareStateInput) -> None:
    """Write `user:` and `app:` keys of one user of an app; keys with other prefixes are left out.

    Raises:
        SharedStateFull: The keys would no longer fit into what a session takes at the start of an invocation.
    """
    for prefix, user_id in (("app:", None), ("user:", request.user_id)):
        delta = {key: value for key, value in request.delta.items() if key.startswith(prefix)}
        if delta:
            size = payload_size(StateView(state=await read_state(client, app, user_id) | delta))
            if size > _MAX_BYTES:
                raise SharedStateFull(
                    f"the {prefix} keys would have {size / 1e6:.1f} MB, and {_MAX_BYTES / 1e6:.1f} MB is the most;"
                    " store the data elsewhere and keep a reference to it"
                )
            await _write_state(client, app, user_id, request.write_id, delta)


async def share_again(client: Client, key: SessionKey, entries: Iterable[Entry], shared: Collection[str] = ()) -> None:
    """Write again what a session that was cut off may not have shared; what had arrived is not written twice.

    Args:
        client: Any client.
        key: Which session.
        entries: The session's journal.
        shared: Ids of events that are known to be shared.
    """
    for event in unconfirmed(entries):
        delta = shared_part(event.actions.state_delta)
        if delta and event.id not in shared:
            with contextlib.suppress(SharedStateFull):
                # The session would have told; it goes on without, as it would on a resume.
                await share_state(client, key.app, ShareStateInput(user_id=key.user, write_id=event.id, delta=delta))


def unconfirmed(entries: Iterable[Entry]) -> list[Event]:
    """Return the last events of running invocations whose writes a journal does not show to have arrived.

    A branch goes on once its write has arrived, so that all of its events but the last one are known to be shared. What
    stands in an imported log was never this session's to share.
    """
    entries = list(entries)
    found: list[Event] = []
    imported = max((number for number, entry in enumerate(entries, 1) if isinstance(entry, LogImported)), default=0)
    foreign = {entry.event.id for entry in entries[:imported] if isinstance(entry, EventLogged | MessageAccepted)}
    for invocation in fold_journal(entries).invocations.values():
        if invocation.status != "running":
            continue
        ends = [invocation.message]
        for entry in invocation.entries:
            if isinstance(entry, EventLogged):
                branch = f"{entry.event.branch or ''}."
                ends = [end for end in ends if end.branch and not branch.startswith(f"{end.branch}.")]
                ends.append(entry.event)
        found += (end for end in ends if end.id not in foreign)
    return found


async def _write_state(client: Client, app: str, user_id: str | None, write_id: str, delta: Mapping[str, Any]) -> None:
    await client.start_workflow(
        STATE_WORKFLOW,
        StateInput(),
        id=state_workflow_id(app, user_id),
        task_queue=app,
        id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
        start_signal=SET_STATE,
        start_signal_args=[StateWrite(write_id=write_id, delta=dict(delta))],
    )
