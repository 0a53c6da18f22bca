"""An agent over an MCP server that it starts itself; one of the server's tools is filtered out."""

import os
import sys
from pathlib import Path

from google.adk.agents import LlmAgent
from google.adk.tools.mcp_tool import McpToolset, StdioConnectionParams
from mcp import StdioServerParameters
from scripted_llm import ScriptedLlm, after, call, on, otherwise, says

notes = McpToolset(
    connection_params=StdioConnectionParams(
        server_params=StdioServerParameters(
            command=sys.executable,
            args=[str(Path(__file__).parent / "notes_server.py")],
            env={"LEDGER": os.environ.get("LEDGER", "")},
        ),
        timeout=30,
    ),
    tool_filter=["read_note", "list_notes"],
)

RULES = [
    on("boats", call("read_note", title="boats")),
    on("all", call("list_notes")),
    on("milk", call("read_note", title="todo")),
    after("list_notes", says("Those are all.")),
    after("read_note", says("That is what it says.")),
    otherwise(says(lambda seen: "I can use " + ", ".join(seen.tools))),
]

root_agent = LlmAgent(
    name="files_mcp", model=ScriptedLlm(model="files_mcp", rules=RULES), instruction="You keep notes.", tools=[notes]
)
