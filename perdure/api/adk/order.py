"""The order in which ADK has stored what it showed in another one."""

from __future__ import annotations

from collections.abc import Sequence

from perdure.journal.events import USER, Event
from perdure.journal.questions import is_confirmation_request


def stored_order(events: Sequence[Event]) -> tuple[Event, ...]:
    """Return a log as ADK returns a session's: it stores a response before the confirmation that it asks for.

    While a turn runs, it shows them the other way round, as the log has them.
    """
    stored = list(events)
    for index in range(len(stored) - 1):
        asking, response = stored[index : index + 2]
        if (
            is_confirmation_request(asking)
            and response.author != USER
            and response.actions.requested_tool_confirmations
        ):
            stored[index : index + 2] = [response, asking]
    return tuple(stored)
