"""Timeouts of workflow tasks, after which the server takes the worker for dead (decision 119)."""

from __future__ import annotations

from datetime import timedelta

SHORT = timedelta(seconds=4)
"""For a run with local tools, which hands over before its replay takes long."""

LONG = timedelta(seconds=10)
"""Temporal's own default: for a run whose history may get as long as Temporal wants it."""
