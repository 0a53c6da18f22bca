"""A team that is built by functions, over a Gemini object with retries and safety settings."""

from google.adk.agents import LlmAgent
from google.adk.models import Gemini
from google.genai import types

from trip_gemini.tools import TOOLS

SAFETY = [types.SafetySetting(category="HARM_CATEGORY_HARASSMENT", threshold="BLOCK_ONLY_HIGH")]
CONFIG = types.GenerateContentConfig(temperature=0.1, top_k=5, safety_settings=SAFETY)


def gemini(model: str) -> Gemini:
    return Gemini(model=model, retry_options=types.HttpRetryOptions(attempts=2, initial_delay=0.01))


def build_member(name: str, model: str) -> LlmAgent:
    return LlmAgent(
        name=f"trip_{name}",
        model=gemini(model),
        description=f"Knows {name}.",
        instruction=f"Answer on {name}.",
        tools=TOOLS[name],
        generate_content_config=CONFIG,
        output_key=name,
    )


def build_team(model: str) -> LlmAgent:
    members = [build_member(name, model) for name in sorted(TOOLS)]
    return LlmAgent(
        name="trip_gemini",
        model=gemini(model),
        instruction="Hand over.",
        sub_agents=members,
        generate_content_config=CONFIG,
    )
