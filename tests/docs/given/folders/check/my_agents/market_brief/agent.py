"""Durable as it is."""

from google.adk.agents import LlmAgent, ParallelAgent, SequentialAgent


def fetch(topic: str) -> str:
    """Fetch the news of a topic."""
    return topic


news_agent = LlmAgent(name="news_agent", model="gemini-2.5-flash", tools=[fetch])
gatherers = ParallelAgent(name="gatherers", sub_agents=[news_agent])
editor = LlmAgent(name="editor", model="gemini-2.5-flash")
root_agent = SequentialAgent(name="market_brief", sub_agents=[gatherers, editor])
