"""Runs a program of google.adk's, unchanged, with its runners made durable."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import google.adk
from fastapi import FastAPI
from google.adk import runners
from google.adk.cli import fast_api

from perdure import adk
from perdure.programs.runner import InMemoryRunner, Runner

__all__ = ["execute"]


def execute(program: str, args: Sequence[str], *, module: bool = False) -> None:
    """Run a program as `python PROGRAM ARGS` does, or as `python -m PROGRAM ARGS`.

    Args:
        program: A file, or a module's name.
        args: The program's own arguments.
        module: It is a module's name.

    Raises:
        Exception: Whatever the program raises.
    """
    for place in (runners, google.adk):
        setattr(place, "Runner", Runner)  # noqa: B010 -- what the program imports
    setattr(runners, "InMemoryRunner", InMemoryRunner)  # noqa: B010
    setattr(fast_api, "get_fast_api_app", _get_fast_api_app)  # noqa: B010
    sys.argv = [program, *args]
    sys.path.insert(0, str(Path.cwd() if module else Path(program).resolve().parent))
    if module:
        runpy.run_module(program, run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(program, run_name="__main__")


def _get_fast_api_app(**fields: Any) -> FastAPI:
    # Loaded by who calls it: it needs the extra `api`.
    return adk.get_fast_api_app(**fields)
