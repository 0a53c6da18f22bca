"""Specialists that the concierge asks as tools."""

from google.adk.agents import Agent
from google.adk.tools import ToolContext
from ledger import note
from scripted_llm import ScriptedLlm, after, call, otherwise, says


def find_hotel(city: str, tool_context: ToolContext) -> dict:
    """Find a hotel in a city."""
    note("find_hotel", city=city)
    tool_context.state["hotels_seen"] = tool_context.state.get("hotels_seen", 0) + 1
    return {"hotel": f"Grand {city}", "budget": tool_context.state.get("budget")}


hotel_expert = Agent(
    name="hotel_expert",
    model=ScriptedLlm(
        model="hotel_expert",
        rules=[
            after(
                "find_hotel",
                says(
                    lambda seen: (
                        f"{seen.result('find_hotel')['hotel']} fits a budget of {seen.result('find_hotel')['budget']}."
                    )
                ),
            ),
            otherwise(call("find_hotel", city=lambda seen: seen.user.split()[-1])),
        ],
    ),
    description="Knows hotels.",
    instruction="Name one hotel. The guest's budget is {budget}.",
    tools=[find_hotel],
    output_key="hotel",
)

food_expert = Agent(
    name="food_expert",
    model=ScriptedLlm(model="food_expert", rules=[otherwise(says("Try the fish."))]),
    description="Knows restaurants.",
    instruction="Name one dish.",
    output_key="dish",
)
