"""The agent tree of https://github.com/google/adk-python/issues/5349: both tools of a sub-agent wait for a person.

`adk web examples/agents` serves it; `perdure dev examples/agents` makes it durable.
"""

from google.adk.agents import LlmAgent
from google.adk.apps.app import App, ResumabilityConfig
from google.adk.tools.long_running_tool import LongRunningFunctionTool

from .script import model_or_script


def select_item(items: list[str]) -> None:
    """Show items to the customer, who selects one of them: that is the result, whenever it comes."""


def confirm_choice(item: str) -> None:
    """Ask the customer to confirm the choice of an item."""


picker = LlmAgent(
    name="picker",
    description="Lets the customer pick an item of the shop.",
    model=model_or_script(
        {"call": "select_item", "args": {"items": ["blue notebook", "red notebook"]}},
        {"call": "confirm_choice", "args": {"item": "red notebook"}, "seconds": 2.0},
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
    model=model_or_script({"call": "transfer_to_agent", "args": {"agent_name": "picker"}}),
    instruction="You greet the customers of a shop. Transfer everybody who wants an item to the picker at once.",
    sub_agents=[picker],
)

app = App(name="picker", root_agent=orchestrator, resumability_config=ResumabilityConfig(is_resumable=True))
