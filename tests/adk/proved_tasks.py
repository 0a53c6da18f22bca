"""An app whose agents do tasks, one in talk with the user and one in a single turn, for proofs that it can be cut."""

from __future__ import annotations

from typing import Any

from google.adk.agents import LlmAgent
from google.adk.apps.app import App
from pydantic import BaseModel


class Booking(BaseModel):
    day: str
    people: int


def reserve(day: str, people: int) -> dict[str, Any]:
    """Reserve a table."""
    return {"table": people, "day": day}


booker = LlmAgent(
    name="booker", model="gemini-2.5-flash", mode="task", output_schema=Booking, tools=[reserve], output_key="booked"
)
adviser = LlmAgent(name="adviser", model="gemini-2.5-flash", mode="single_turn", output_key="advice")
desk = LlmAgent(name="desk", model="gemini-2.5-flash", sub_agents=[booker, adviser])
app = App(name="desk", root_agent=desk)

SCENARIO: dict[str, Any] = {
    "name": "table",
    "script": {
        "desk": [
            {
                "calls": [
                    {"name": "adviser", "args": {"request": "fish?"}},
                    {"name": "booker", "args": {"request": "x"}},
                ]
            },
            {"text": "Booked."},
            {"text": "Bye."},
        ],
        "adviser": [{"text": "Yes, fish."}],
        "booker": [
            {"text": "How many?"},
            {"calls": [{"name": "finish_task", "args": {"day": "Friday"}}]},
            {"calls": [{"name": "reserve", "args": {"day": "Friday", "people": 2}}]},
            {"calls": [{"name": "finish_task", "args": {"day": "Friday", "people": 2}}]},
        ],
    },
    "turns": [{"message": "A table, please"}, {"message": "Two of us"}, {"message": "Thanks"}],
}
