"""A tool that runs an agent by itself."""

from google.adk.agents import LlmAgent
from google.adk.runners import InMemoryRunner
from google.genai import types

from . import store

judge = LlmAgent(name="judge", model="gemini-2.5-flash")


async def is_safe(text: str) -> str:
    """Say whether a text is safe."""
    runner = InMemoryRunner(judge, app_name="judging")
    session = await runner.session_service.create_session(app_name="judging", user_id="tool")
    events = runner.run_async(
        user_id="tool", session_id=session.id, new_message=types.Content(role="user", parts=[types.Part(text=text)])
    )
    return store.judged(text, str([event.content async for event in events]))


root_agent = LlmAgent(name="safety", model="gemini-2.5-flash", tools=[is_safe])
