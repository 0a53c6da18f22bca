"""Perdure's search attributes, by which sessions are found in the Temporal UI and by clients."""

from __future__ import annotations

from temporalio.common import SearchAttributeKey

APP = SearchAttributeKey.for_keyword("PerdureApp")
USER_ID = SearchAttributeKey.for_keyword("PerdureUser")
STATUS = SearchAttributeKey.for_keyword("PerdureStatus")
PENDING_TOOLS = SearchAttributeKey.for_keyword_list("PerdurePendingTools")

KEYS = (APP, USER_ID, STATUS, PENDING_TOOLS)
"""All of them; a worker registers those that a namespace lacks, where it may."""
