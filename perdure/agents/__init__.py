"""The classes that users write with: agents, tools, contexts, and the app around them.

Here belongs what has ADK's names; checks of a whole tree stand in `compiler`.
"""

from perdure.agents.agent_tool import AgentTool
from perdure.agents.artifacts import load_artifacts
from perdure.agents.context import ReadonlyContext, State, ToolContext
from perdure.agents.custom import BaseAgent, BaseAgentState, InvocationContext
from perdure.agents.definitions import (
    Agent,
    App,
    LlmAgent,
    LoopAgent,
    ParallelAgent,
    ResumabilityConfig,
    SequentialAgent,
)
from perdure.agents.tools import FunctionTool, LongRunningFunctionTool, exit_loop, transfer_to_agent

__all__ = [
    "Agent",
    "AgentTool",
    "App",
    "BaseAgent",
    "BaseAgentState",
    "FunctionTool",
    "InvocationContext",
    "LlmAgent",
    "LongRunningFunctionTool",
    "LoopAgent",
    "ParallelAgent",
    "ReadonlyContext",
    "ResumabilityConfig",
    "SequentialAgent",
    "State",
    "ToolContext",
    "exit_loop",
    "load_artifacts",
    "transfer_to_agent",
]
