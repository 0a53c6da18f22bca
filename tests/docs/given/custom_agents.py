"""What docs/custom-agents.md takes for granted."""

from perdure import BaseAgent as BaseAgent
from perdure import BaseAgentState


class PipelineState(BaseAgentState):
    step: int = 0
