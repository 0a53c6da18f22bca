"""The argument of the activity that keeps a large result, and its name. Its result is a `ToolOutput`."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from perdure.journal.entries import ToolOutput

KEEP_RESULT = "perdure:keep_result"


class KeepResultInput(BaseModel):
    """Activity `perdure:keep_result`: a result that is too large together with those of other calls."""

    model_config = ConfigDict(frozen=True)

    tool: str
    idempotency_key: str
    """Of the call."""
    output: ToolOutput
    """What the tool gave."""
    length: int
    """Characters of the result that the model is to get."""
