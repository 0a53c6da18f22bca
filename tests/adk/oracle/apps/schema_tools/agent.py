"""An agent with tools that has to end in a typed answer."""

from google.adk.agents import LlmAgent
from ledger import note
from pydantic import BaseModel
from scripted_llm import ScriptedLlm, after, call, on, otherwise, says


class Forecast(BaseModel):
    city: str
    degrees: int
    advice: list[str] = []


def measure(city: str) -> dict:
    """Measure the temperature of a city."""
    note("measure", city=city)
    return {"degrees": 3}


def forecast(seen) -> dict:
    return call("set_model_response", city="Oslo", degrees=seen.result("measure")["degrees"], advice=["take a coat"])(
        seen
    )


RULES = [
    after("measure", forecast),
    after("set_model_response", says("not reached")),
    on("Oslo", call("measure", city="Oslo")),
    otherwise(call("set_model_response", city="nowhere", degrees=0)),
]

root_agent = LlmAgent(
    name="schema_tools",
    model=ScriptedLlm(model="schema_tools", rules=RULES),
    instruction="Give a forecast.",
    tools=[measure],
    output_schema=Forecast,
    output_key="forecast",
)
