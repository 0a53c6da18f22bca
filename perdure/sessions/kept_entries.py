"""Reads what activities of several steps keep that are still at work: entries of the journal that history lacks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.client import WorkflowExecutionDescription
from temporalio.converter import DataConverter

from perdure.journal.entries import Entry, EventLogged
from perdure.journal.events import Event
from perdure.journal.projection import Projection
from perdure.logs import get_logger
from perdure.messages.session import CALL_MODEL
from perdure.messages.stretches import Stretch

_logger = get_logger("perdure.client")

_SOON = 0.1
_BEGINS = 0.3
"""Seconds to the next look at activities that keep steps, and at those that keep none yet."""


class Looked(NamedTuple):
    """What was seen of a session."""

    answer: Any
    kept: tuple[Entry, ...] = ()
    """What activities keep which are at work."""
    within: float | None = None
    """Seconds, about, in which they may keep more, of which history does not tell; `None` if they do not."""


async def kept_entries(described: WorkflowExecutionDescription, converter: DataConverter) -> tuple[Entry, ...]:
    """Return what the heartbeats of a run's activities hold: those of each activity in their order, the oldest first.

    They enter the journal when their activity ends, behind what comes in until then. Of one that cannot be read there
    are none: its activity goes on by them, and is the one to fail.
    """
    entries: list[Entry] = []
    for pending in _model_calls(described):
        details = pending.heartbeat_details.payloads
        try:
            kept: list[Stretch] = await converter.decode(details, [Stretch] * len(details))
        except Exception as error:
            # A codec of the user's may raise anything.
            _logger.debug("what an activity keeps cannot be read", workflow=described.id, reason=str(error)[:300])
            continue
        entries += (entry for part in kept for entry in part.entries)
    return tuple(entries)


def keeps_more_within(described: WorkflowExecutionDescription, projection: Projection) -> float | None:
    """Return in how many seconds, about, a run's activities may keep more steps; `None` if they keep none."""
    calls = _model_calls(described)
    if not calls:
        return None
    running = [found for found in projection.invocations.values() if found.status == "running"]
    plans = [plan for found in running if (plan := projection.plan_of(found)) is not None]
    if not any(plan.steps_per_activity > 1 and not (plan.adk and plan.adk.watches) for plan in plans):
        return None
    return _SOON if any(call.heartbeat_details.payloads for call in calls) else _BEGINS


def _model_calls(described: WorkflowExecutionDescription) -> list[PendingActivityInfo]:
    found = [one for one in described.raw_description.pending_activities if one.activity_type.name == CALL_MODEL]
    # The server tells of them in any order.
    return sorted(found, key=lambda one: (one.scheduled_time.ToNanoseconds(), one.activity_id))


def events_of(entries: Iterable[Entry]) -> tuple[Event, ...]:
    """Return the events that entries log."""
    return tuple(entry.event for entry in entries if isinstance(entry, EventLogged))
