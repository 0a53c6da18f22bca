"""What stands in a history's events is given out again to who reads on where another one has given up."""

from __future__ import annotations

from temporalio.api.common.v1 import Payloads
from temporalio.api.history.v1 import HistoryEvent

from perdure.journal.entries import SessionCreated
from perdure.journal.packing import pack
from perdure.messages.session import EXTEND_JOURNAL, JournalPage
from perdure.recovery.slices import SliceReader
from perdure.temporal.payloads import data_converter


async def test_a_page_that_a_client_sent_is_given_out_until_it_is_settled() -> None:
    entries = (SessionCreated(state={"a": 1}),)
    reader = SliceReader(data_converter)
    accepted, completed = HistoryEvent(event_id=1), HistoryEvent(event_id=2)
    request = accepted.workflow_execution_update_accepted_event_attributes.accepted_request.input
    request.name = EXTEND_JOURNAL
    request.args.CopyFrom(Payloads(payloads=await data_converter.encode([JournalPage(packed=pack(entries), total=1)])))
    done = completed.workflow_execution_update_completed_event_attributes
    done.accepted_event_id = 1
    done.outcome.success.SetInParent()
    assert await reader.part(accepted) is None
    for _ in range(2):
        assert await reader.part(completed) == (0, entries)
    reader.forget()
    assert await reader.part(completed) is None
