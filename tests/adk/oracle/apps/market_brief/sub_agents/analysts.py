"""Two analysts that work at once."""

from google.adk.agents import LlmAgent
from scripted_llm import ScriptedLlm, after, call, otherwise, says

from ..tools import fetch_prices


def analyst(side: str) -> LlmAgent:
    name = f"{side}_analyst"
    rules = [
        after(
            "fetch_prices", says(lambda seen: f"{side.title()}: the price is {seen.result('fetch_prices')['price']}.")
        ),
        otherwise(call("fetch_prices", series=side)),
    ]
    return LlmAgent(
        name=name,
        model=ScriptedLlm(model=name, rules=rules),
        instruction=f"You look at the market from the side of {side}. Write one line.",
        tools=[fetch_prices],
        output_key=f"{side}_note",
    )


supply_analyst = analyst("supply")
demand_analyst = analyst("demand")
