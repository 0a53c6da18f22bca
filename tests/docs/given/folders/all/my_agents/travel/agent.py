"""The app of docs/start.md, with google.adk's classes and a model that answers from a script."""

from collections.abc import AsyncGenerator

from google.adk.agents import LlmAgent
from google.adk.apps.app import App, ResumabilityConfig
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.tools.long_running_tool import LongRunningFunctionTool
from google.genai import types

STEPS = (
    types.Part.from_function_call(name="find_flight", args={"city": "Oslo"}),
    types.Part.from_function_call(name="ask_manager", args={"flight": "SK 4035", "price": 240}),
    types.Part(text="SK 4035 is booked."),
)


class Script(BaseLlm):
    """Gives its answers one after the other."""

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        asked = sum(content.role == "model" for content in llm_request.contents)
        yield LlmResponse(content=types.Content(role="model", parts=[STEPS[asked]]))


def find_flight(city: str) -> dict[str, str | int]:
    """Find the next flight to a city."""
    return {"flight": "SK 4035", "city": city, "price": 240}


def ask_manager(flight: str, price: int) -> None:
    """Ask the manager to approve a flight."""


booker = LlmAgent(
    name="booker",
    model=Script(model="script"),
    instruction="Find a flight, have the manager approve it, and tell the user.",
    tools=[find_flight, LongRunningFunctionTool(ask_manager)],
)
app = App(name="travel", root_agent=booker, resumability_config=ResumabilityConfig(is_resumable=True))
