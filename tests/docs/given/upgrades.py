"""What docs/upgrades.md takes for granted."""

from pathlib import Path as Path

from perdure import App, LlmAgent, ScriptedModel

app = App(name="travel", root_agent=LlmAgent(name="booker", model=ScriptedModel([{"text": "Done."}])))
