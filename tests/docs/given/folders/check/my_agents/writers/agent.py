"""A task where nobody can give one."""

from google.adk.agents import LlmAgent, SequentialAgent

draft = LlmAgent(name="draft", model="gemini-2.5-flash", mode="task")
root_agent = SequentialAgent(name="root", sub_agents=[draft])
