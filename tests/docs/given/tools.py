"""What docs/tools.md takes for granted."""

from datetime import timedelta as timedelta

from pydantic import BaseModel as BaseModel
from temporalio.common import RetryPolicy as RetryPolicy

from perdure import FunctionTool as FunctionTool
from perdure import ToolContext as ToolContext


def book(flight: str) -> str:
    return flight


def transfer_money(amount: int) -> int:
    return amount


def search_web(query: str) -> str:
    return query


def ask_manager(flight: str) -> None:
    return None
