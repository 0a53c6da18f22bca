"""What docs/streaming.md takes for granted."""

from perdure import App, LlmAgent, ScriptedModel
from perdure import Runner as Runner
from perdure import create_workers as create_workers

app = App(name="travel", root_agent=LlmAgent(name="booker", model=ScriptedModel([{"text": "Done."}])))
