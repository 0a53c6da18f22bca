"""What README.md takes for granted."""

from google.adk.agents import LlmAgent

orchestrator = LlmAgent(name="orchestrator", model="gemini-2.5-flash")
