"""Timeouts of workflow tasks, after which the server takes the worker for dead (decision 008)."""

from __future__ import annotations

from datetime import timedelta

SHORT = timedelta(seconds=4)
"""For a run with local tools, which hands over before its replay takes long."""

LONG = timedelta(seconds=10)
"""Temporal's own default: for a run whose history may get as long as Temporal wants it.

A replay of all of it has to fit into one task: some 4,100 history events take 3 s of processor time."""
