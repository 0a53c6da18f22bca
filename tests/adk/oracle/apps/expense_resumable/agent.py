"""A resumable app: a clerk below a front agent asks a manager, who takes days, and pays when he says yes."""

from google.adk.agents import Agent
from google.adk.apps import App, ResumabilityConfig
from google.adk.tools import LongRunningFunctionTool
from ledger import note
from scripted_llm import ScriptedLlm, after, call, on, otherwise, says


def ask_manager(amount: int) -> dict:
    """Ask the manager."""
    note("ask_manager", amount=amount)
    return {"status": "pending", "ticket": f"T-{amount}"}


def look_up_account(name: str) -> dict:
    """Look an account up."""
    note("look_up_account", name=name)
    return {"iban": "NO93"}


def pay(iban: str, amount: int) -> dict:
    """Pay."""
    note("pay", iban=iban, amount=amount)
    return {"paid": amount}


def status(seen, tool: str) -> str | None:
    return seen.result(tool).get("status")


clerk = Agent(
    name="clerk",
    model=ScriptedLlm(
        model="clerk",
        rules=[
            after("pay", says("Paid.")),
            after(
                "ask_manager",
                call("pay", iban="NO93", amount=900),
                where=lambda seen: status(seen, "ask_manager") == "approved",
            ),
            after("ask_manager", says("Not approved."), where=lambda seen: status(seen, "ask_manager") == "rejected"),
            after("ask_manager", says("I wait for the manager.")),
            on("both", call("look_up_account", name="Fay"), call("ask_manager", amount=900)),
            otherwise(call("ask_manager", amount=900)),
        ],
    ),
    description="Handles expenses.",
    instruction="Handle the expense.",
    tools=[look_up_account, LongRunningFunctionTool(func=ask_manager), pay],
)
front = Agent(
    name="front",
    model=ScriptedLlm(
        model="front", rules=[on("trip", call("transfer_to_agent", agent_name="clerk")), otherwise(says("Hello."))]
    ),
    instruction="Hand expenses to the clerk.",
    sub_agents=[clerk],
)

app = App(name="expense_resumable", root_agent=front, resumability_config=ResumabilityConfig(is_resumable=True))
