"""A concierge that asks two experts, each an agent used as a tool."""

from google.adk.agents import Agent
from google.adk.tools.agent_tool import AgentTool
from scripted_llm import ScriptedLlm, after, call, on, otherwise, says

from .sub_agents import food_expert, hotel_expert

RULES = [
    on(
        "and food",
        call("hotel_expert", request="Find a hotel in Lima"),
        call("food_expert", request="What to eat in Lima"),
    ),
    on("hotel", call("hotel_expert", request="Find a hotel in Oslo")),
    after(
        "hotel_expert+food_expert",
        says(lambda seen: f"{seen.result('hotel_expert')['result']} {seen.result('food_expert')['result']}"),
    ),
    after("hotel_expert", says("I found you a hotel.")),
    otherwise(says("Where do you want to go?")),
]

root_agent = Agent(
    name="travel_concierge",
    model=ScriptedLlm(model="travel_concierge", rules=RULES),
    instruction="Ask the experts; you know nothing yourself. So far: {hotel?}",
    tools=[AgentTool(agent=hotel_expert), AgentTool(agent=food_expert, skip_summarization=False)],
)
