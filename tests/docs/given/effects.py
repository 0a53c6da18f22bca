"""What docs/effects.md takes for granted."""

from datetime import timedelta as timedelta

from perdure import AnswerWith as AnswerWith
from perdure import FunctionTool as FunctionTool
from perdure import LongRunningFunctionTool as LongRunningFunctionTool
from perdure import Reconciled as Reconciled
from perdure import ToolContext as ToolContext


def pay(order: str, tool_context: ToolContext) -> str:
    return tool_context.idempotency_key


def ask_manager(flight: str) -> None:
    return None


def send_mail(flight: str) -> None:
    return None
