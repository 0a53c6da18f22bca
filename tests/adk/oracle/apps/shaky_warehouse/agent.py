"""A warehouse whose tools and model fail at times; callbacks turn errors into answers."""

from typing import Any, Optional

from google.adk.agents import Agent
from google.adk.agents.callback_context import CallbackContext
from google.adk.models import LlmRequest, LlmResponse
from google.adk.tools import BaseTool, ToolContext
from google.genai import types
from ledger import note
from scripted_llm import ScriptedLlm, after, call, error, fails, on, otherwise, says


def count_items(shelf: str) -> dict:
    """Count the items of a shelf."""
    note("count_items", shelf=shelf)
    if shelf == "Z":
        raise LookupError("there is no shelf Z")
    if shelf == "Q":
        raise PermissionError("shelf Q is locked")
    return {"shelf": shelf, "items": 12}


def when_a_tool_fails(
    tool: BaseTool, args: dict[str, Any], tool_context: ToolContext, error: Exception
) -> Optional[dict]:
    if isinstance(error, PermissionError):
        return None
    tool_context.state["tool_errors"] = tool_context.state.get("tool_errors", 0) + 1
    return {"error": str(error), "shelf": args["shelf"]}


def when_the_model_fails(
    callback_context: CallbackContext, llm_request: LlmRequest, error: Exception
) -> Optional[LlmResponse]:
    if "overloaded" not in str(error):
        return None
    callback_context.state["model_errors"] = callback_context.state.get("model_errors", 0) + 1
    return LlmResponse(content=types.Content(role="model", parts=[types.Part(text="Please ask again later.")]))


RULES = [
    on("overloaded", fails("the model is overloaded")),
    on("broken", fails("the model is broken")),
    on("blocked", error("SAFETY", "the answer was blocked")),
    on(r"shelf (\w)", call("count_items", shelf=lambda seen: seen.user.split("shelf ")[1][0])),
    after(
        "count_items",
        says(lambda seen: str(seen.result("count_items").get("items", seen.result("count_items").get("error")))),
    ),
    otherwise(says("Which shelf?")),
]

root_agent = Agent(
    name="shaky_warehouse",
    model=ScriptedLlm(model="shaky_warehouse", rules=RULES),
    instruction="You know the warehouse.",
    tools=[count_items],
    on_tool_error_callback=when_a_tool_fails,
    on_model_error_callback=when_the_model_fails,
)
