"""Keeps google-genai's clients that are collected out of workflows.

Such a client, when it is collected, begins a task on the loop that happens to run: in a thread that activates a
workflow that is the workflow's, where the task would be one of the run's, and of no replay's.
https://github.com/googleapis/python-genai/issues/2995
"""

from __future__ import annotations

import functools
from typing import Any

from google.genai import _api_client, client
from temporalio import workflow

__all__ = ["keep_clients_out"]

_CLOSING: tuple[Any, ...] = (
    _api_client.BaseApiClient,
    # Not in every version.
    getattr(_api_client, "AsyncHttpxClient", None),
    client.AsyncClient,
)


def keep_clients_out() -> None:
    """Let clients that are collected within workflows leave their connections to Python; done once in a process."""
    for kind in _CLOSING:
        collected: Any = getattr(kind, "__del__", None)
        if collected is not None and not hasattr(collected, "__wrapped__"):
            setattr(kind, "__del__", _sparing_workflows(collected))  # noqa: B010 -- pyright


def _sparing_workflows(collected: Any) -> Any:
    @functools.wraps(collected)
    def spared(self: object) -> None:
        if not workflow.in_workflow():
            collected(self)

    return spared
