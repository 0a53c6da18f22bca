"""Paths: the names of agent runs in the journal."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from perdure.journal.compact_json import unsaid

_RUN = "[^/@#]+(@[0-9]{1,9})?(#[0-9]{1,9})?"

MAX_RUN_PATH = 10_000
"""Characters of a path at the most."""
MAX_RUNS = 150
"""Agent runs within each other at the most that a path tells of."""

RunPath = Annotated[
    str, Field(exclude_if=unsaid, pattern=rf"^({_RUN}(/{_RUN}){{0,{MAX_RUNS}}})?$", max_length=MAX_RUN_PATH)
]
"""The agent run that an entry is of: `parent/agent@2#3`, its third since its parent's second checkpoint.

Empty where no agent of the plan logged it, and in a log from elsewhere until it is pinned to a plan
(`trajectories/run_names.py`)."""


def agent_in(path: str) -> str:
    """Return the agent whose run a path names; empty if it is."""
    return path.rpartition("/")[2].partition("#")[0].partition("@")[0]
