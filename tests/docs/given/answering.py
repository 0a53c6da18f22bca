"""What docs/answering.md takes for granted."""

from perdure import LlmAgent as LlmAgent
from perdure import LongRunningFunctionTool as LongRunningFunctionTool
