"""The agent tree of https://github.com/google/adk-python/issues/5349: both tools of a sub-agent wait for a person.

Try it: `perdure dev examples/picker`, then `perdure run picker "I need a notebook"`. `make demo` plays it through.
"""

from __future__ import annotations

from examples.models import model_or_script
from perdure import App, LlmAgent, LongRunningFunctionTool, ResumabilityConfig

THINKING = 2.0
"""Seconds that the scripted model takes between the two questions; the demo kills the worker meanwhile."""


def select_item(items: list[str]) -> dict[str, str]:
    """Show items to the customer, who selects one of them.

    Args:
        items: What there is to choose from.
    """
    return {"status": "pending", "shown": f"{len(items)} items"}


def confirm_choice(item: str) -> dict[str, str]:
    """Ask the customer to confirm the choice of an item.

    Args:
        item: The item that was selected.
    """
    return {"status": "pending", "asked": f"Is it to be the {item}?"}


picker = LlmAgent(
    name="picker",
    description="Lets the customer pick an item of the shop.",
    model=model_or_script(
        {"calls": [{"name": "select_item", "args": {"items": ["blue notebook", "red notebook"]}}]},
        {"calls": [{"name": "confirm_choice", "args": {"item": "red notebook"}}], "delay": THINKING},
        {"text": "The red notebook is yours."},
    ),
    instruction=(
        "The shop has a blue notebook and a red notebook. Call select_item with both, and wait for the customer's "
        "selection. Then call confirm_choice with the selected item. Once it is confirmed, say in one sentence what "
        "the customer gets."
    ),
    tools=[LongRunningFunctionTool(select_item), LongRunningFunctionTool(confirm_choice)],
    disallow_transfer_to_parent=True,
)

orchestrator = LlmAgent(
    name="orchestrator",
    model=model_or_script({"calls": [{"name": "transfer_to_agent", "args": {"agent_name": "picker"}}]}),
    instruction="You greet the customers of a shop. Transfer everybody who wants an item to the picker at once.",
    sub_agents=[picker],
)

app = App(name="picker", root_agent=orchestrator, resumability_config=ResumabilityConfig(is_resumable=True))
