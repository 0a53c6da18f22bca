"""What docs/a2a.md takes for granted."""

from perdure import LlmAgent, ScriptedModel

root_agent = LlmAgent(name="booker", model=ScriptedModel([{"text": "Done."}]))
