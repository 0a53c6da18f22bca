"""Workflows in workflows: a sequence of a loop of a sequence, and a transfer to a sub-agent from within."""

from google.adk.agents import LlmAgent, LoopAgent, SequentialAgent
from google.adk.tools import ToolContext
from ledger import note
from scripted_llm import ScriptedLlm, after, call, heard, on, otherwise, says


def grade(points: int, tool_context: ToolContext) -> dict:
    """Grade the work; good work ends the loop."""
    note("grade", points=points)
    tool_context.state["points"] = points
    if points >= 8:
        tool_context.actions.escalate = True
    return {"points": points}


checker = LlmAgent(
    name="spell_checker",
    model=ScriptedLlm(model="spell_checker", rules=[otherwise(says("No mistakes."))]),
    description="Checks spelling.",
    instruction="Check.",
    disallow_transfer_to_parent=True,
    disallow_transfer_to_peers=True,
)
student = LlmAgent(
    name="student",
    model=ScriptedLlm(
        model="student",
        rules=[
            on("spelling", call("transfer_to_agent", agent_name="spell_checker"), turns=0),
            otherwise(says(lambda seen: f"Try {seen.turns + 1}.")),
        ],
    ),
    instruction="Do the work.",
    sub_agents=[checker],
    output_key="work",
)
teacher = LlmAgent(
    name="teacher",
    model=ScriptedLlm(
        model="teacher",
        rules=[
            after("grade", says("Graded.")),
            otherwise(call("grade", points=lambda seen: 4 * (1 + seen.turns // 2))),
        ],
    ),
    instruction="Grade: {work?}",
    tools=[grade],
)
lesson = LoopAgent(
    name="lesson", sub_agents=[SequentialAgent(name="round", sub_agents=[student, teacher])], max_iterations=3
)
reporter = LlmAgent(
    name="reporter",
    model=ScriptedLlm(model="reporter", rules=[heard("teacher", says("The lesson is over."))]),
    instruction="Points: {points}",
)
root_agent = SequentialAgent(name="nested_flow", sub_agents=[lesson, reporter])
