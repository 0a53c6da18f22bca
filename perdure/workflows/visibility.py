"""Publishes a session's search attributes, and the Markdown of its page in the Temporal UI."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from temporalio import workflow
from temporalio.common import SearchAttributeUpdate

from perdure.journal.compact_json import payload_size
from perdure.journal.open_calls import PendingCall
from perdure.journal.projection import Projection
from perdure.messages.keys import SessionKey
from perdure.messages.search_attributes import APP, PENDING_TOOLS, STATUS, USER_ID
from perdure.messages.waiting import MOST_WAITING_BYTES, WaitingCalls
from perdure.rules.model_calls import LIMIT, is_at_limit
from perdure.views.pages import awaited_tool, details, pending_view, session_status


class Visibility:
    """Publishes a session's status whenever it has changed."""

    def __init__(self, key: SessionKey, *, enabled: bool) -> None:
        self._key = key
        self.enabled = enabled
        """The search attributes exist on this server; upserting one that does not would fail the workflow task."""
        self._shown: tuple[str, tuple[str, ...]] | None = None
        self._waiting: tuple[tuple[str, float | None], ...] = ()
        """The calls that the memo has: their ids and deadlines."""
        self.memo_listener: Callable[[WaitingCalls | None], None] | None = None
        """Told what the memo is to have of what waits: `None` if that is too much."""

    def publish(self, projection: Projection) -> None:
        """Show the session as it stands."""
        workflow.set_current_details(details(projection))
        if not self.enabled:
            return
        calls = projection.open_calls()
        self._tell_waiting(projection, calls)
        awaited = {awaited_tool(call) for call in calls}
        if any(map(is_at_limit, projection.invocations.values())):
            awaited.add(LIMIT)
        shown = (session_status(projection), tuple(sorted(awaited)))
        if shown == self._shown:
            return
        first, self._shown = self._shown is None, shown
        updates: list[SearchAttributeUpdate[Any]] = [
            STATUS.value_set(shown[0]),
            PENDING_TOOLS.value_set(list(shown[1])),
        ]
        if first:
            updates += [APP.value_set(self._key.app), USER_ID.value_set(self._key.user)]
        workflow.upsert_search_attributes(updates)  # pyright: ignore[reportUnknownMemberType] -- SDK

    def _tell_waiting(self, projection: Projection, calls: Sequence[PendingCall]) -> None:
        """Have the memo tell what waits. Where nothing does, the search attributes say so."""
        waiting = tuple((call.id, call.deadline) for call in calls)
        if not waiting or waiting == self._waiting or self.memo_listener is None:
            return
        self._waiting = waiting
        found = WaitingCalls(calls=pending_view(projection).calls)
        self.memo_listener(found if payload_size(found) <= MOST_WAITING_BYTES else None)
