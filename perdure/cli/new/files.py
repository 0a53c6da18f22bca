"""The files of a new folder: texts for the reader to change, so they are short, and whole in each case."""

from __future__ import annotations

from dataclasses import dataclass

from perdure.cli.new import pieces


@dataclass(frozen=True)
class Wanted:
    """What somebody asked for."""

    name: str
    adk: bool = False
    """Of google.adk's classes."""
    tree: bool = False
    """Two agents."""
    human: bool = False
    """A tool waits for a person."""


def files_of(wanted: Wanted) -> dict[str, str]:
    """Return the texts of all files, by name."""
    return {
        "__init__.py": "from . import agent as agent\n",
        "agent.py": _agent(wanted),
        "offline.py": pieces.OFFLINE_ADK if wanted.adk else pieces.OFFLINE,
        "test_agent.py": _test(wanted),
        ".env.example": pieces.ENV,
        "README.md": _readme(wanted),
    }


def question_of(wanted: Wanted) -> str:
    """Return a message for the agents."""
    return "Can I have my money back for order 17?" if wanted.human else "Where is order 17?"


def _agent(wanted: Wanted) -> str:
    tools = "[look_up_order, LongRunningFunctionTool(approve_refund)]" if wanted.human else "[look_up_order]"
    approval = pieces.APPROVE_REFUND_ADK if wanted.adk else pieces.APPROVE_REFUND
    return "".join(
        (
            pieces.AGENT_HEAD.format(name=wanted.name),
            _imports(wanted),
            pieces.MODEL_AND_TOOL,
            approval if wanted.human else "",
            "\n\n",
            pieces.ORDERS.format(
                instruction=pieces.HUMAN_INSTRUCTION if wanted.human else pieces.INSTRUCTION,
                after=pieces.HUMAN_AFTER if wanted.human else pieces.AFTER,
                tools=tools,
            ),
            pieces.DESK if wanted.tree else "",
            pieces.APP.format(name=wanted.name, root="desk" if wanted.tree else "orders"),
        )
    )


def _imports(wanted: Wanted) -> str:
    if not wanted.adk:
        names = ["App", "LlmAgent", *(["LongRunningFunctionTool"] if wanted.human else []), "ResumabilityConfig"]
        return f"from perdure import {', '.join(names)}\n"
    lines = ["from google.adk.agents import LlmAgent", "from google.adk.apps.app import App, ResumabilityConfig"]
    if wanted.human:
        lines.append("from google.adk.tools.long_running_tool import LongRunningFunctionTool")
    return "\n".join(lines) + "\n"


def _test(wanted: Wanted) -> str:
    orders = pieces.SCRIPT_ORDERS_HUMAN if wanted.human else pieces.SCRIPT_ORDERS
    scripts = (pieces.SCRIPT_DESK if wanted.tree else "") + orders
    body = pieces.TEST_WAITS if wanted.human else pieces.TEST_ANSWERS
    return pieces.TEST_HEAD.format(scripts=scripts) + body.format(question=question_of(wanted))


def _readme(wanted: Wanted) -> str:
    extras = "adk,api,dev-server,testing" if wanted.adk else "api,dev-server,testing"
    return pieces.README.format(
        name=wanted.name,
        extras=extras,
        question=question_of(wanted),
        answered=pieces.README_HUMAN.format(name=wanted.name) if wanted.human else "",
        adk="`adk web .` serves it as well, without Temporal: run it in the folder above.\n\n" if wanted.adk else "",
    )
