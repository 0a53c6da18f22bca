"""Reads what activities of several steps keep that are still at work: entries of the journal that history lacks."""

from __future__ import annotations

from collections.abc import Iterable

from temporalio.client import WorkflowExecutionDescription
from temporalio.converter import DataConverter

from perdure.journal.entries import Entry, EventLogged
from perdure.journal.events import Event
from perdure.logs import get_logger
from perdure.messages.session import CALL_MODEL
from perdure.messages.stretches import Stretch

_logger = get_logger("perdure.client")


async def kept_entries(described: WorkflowExecutionDescription, converter: DataConverter) -> tuple[Entry, ...]:
    """Return what the heartbeats of a run's activities hold, the entries of each activity in their order.

    They enter the journal when their activity ends, behind what comes in until then. Of one that cannot be read there
    are none: its activity goes on by them, and is the one to fail.
    """
    entries: list[Entry] = []
    for pending in described.raw_description.pending_activities:
        details = pending.heartbeat_details.payloads
        if pending.activity_type.name != CALL_MODEL or not details:
            continue
        try:
            kept: list[Stretch] = await converter.decode(details, [Stretch] * len(details))
        except (RuntimeError, ValueError) as error:
            _logger.debug("what an activity keeps cannot be read", workflow=described.id, reason=str(error)[:300])
            continue
        entries += (entry for part in kept for entry in part.entries)
    return tuple(entries)


def events_of(entries: Iterable[Entry]) -> tuple[Event, ...]:
    """Return the events that entries log."""
    return tuple(entry.event for entry in entries if isinstance(entry, EventLogged))
