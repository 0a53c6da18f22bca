"""An app with a plugin."""

from google.adk.agents import Agent
from google.adk.apps import App
from ledger import note
from scripted_llm import ScriptedLlm, after, call, fails, on, otherwise, says

from .plugin import Tracer


def tell_time(zone: str = "") -> dict:
    """Tell the time."""
    note("tell_time", zone=zone)
    if zone == "Mars":
        raise ValueError("no time on Mars")
    return {"time": "12:00"}


RULES = [
    after("tell_time", says("Now.")),
    on("Mars", call("tell_time", zone="Mars")),
    on("time", call("tell_time")),
    on("crash", fails("the model is gone")),
    otherwise(says(lambda seen: f"You said: {seen.user}")),
]

app = App(
    name="hooked_app",
    root_agent=Agent(
        name="clock",
        model=ScriptedLlm(model="clock", rules=RULES),
        instruction="You know the time.",
        tools=[tell_time],
        before_agent_callback=lambda callback_context: callback_context.state.update({"own_callback": True}),
    ),
    plugins=[Tracer()],
)
