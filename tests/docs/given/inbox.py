"""What docs/inbox.md takes for granted."""

from pydantic import BaseModel as BaseModel
from pydantic import Field as Field

from perdure import LongRunningFunctionTool as LongRunningFunctionTool


def ask_manager(flight: str) -> None:
    return None
