"""Publishes a session's search attributes, and the Markdown of its page in the Temporal UI."""

from __future__ import annotations

from typing import Any

from temporalio import workflow
from temporalio.common import SearchAttributeUpdate

from perdure.journal.projection import Projection
from perdure.messages.keys import SessionKey
from perdure.messages.search_attributes import APP, PENDING_TOOLS, STATUS, USER_ID
from perdure.rules.model_calls import LIMIT, is_at_limit
from perdure.views.pages import awaited_tool, details, session_status


class Visibility:
    """Publishes a session's status whenever it has changed."""

    def __init__(self, key: SessionKey, *, enabled: bool) -> None:
        self._key = key
        self.enabled = enabled
        """The search attributes exist on this server; upserting one that does not would fail the workflow task."""
        self._shown: tuple[str, tuple[str, ...]] | None = None

    def publish(self, projection: Projection) -> None:
        """Show the session as it stands."""
        workflow.set_current_details(details(projection))
        if not self.enabled:
            return
        awaited = {awaited_tool(call) for call in projection.open_calls()}
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
