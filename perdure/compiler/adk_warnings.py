"""Keeps google.adk from warning of what Perdure asks its users for."""

from __future__ import annotations

import warnings

_ASKED_FOR = r"\[EXPERIMENTAL\] ResumabilityConfig:"
"""It has been experimental since ADK 1.16, and without it no app is durable."""


def keep_quiet() -> None:
    """Let this process pass over google.adk's warnings that its resumability may change; all others are shown."""
    warnings.filterwarnings("ignore", _ASKED_FOR, UserWarning)
