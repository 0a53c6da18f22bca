"""Builds the metadata that says who answered, when and why. Pure."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

ATTRIBUTION = "perdure:answer"
"""The key in `customMetadata` under which this stands. The HTTP API takes it from no client."""


def attribution(who: str | None, why: str | None, when: datetime) -> dict[str, Any]:
    """Return the metadata that says who answered.

    Args:
        who: The subject whose credential it was; `None` where nobody has to say who they are.
        why: The reason that was given.
        when: When, with its time zone.
    """
    said = {"who": who, "when": when.astimezone(UTC).isoformat(timespec="milliseconds"), "why": why}
    return {ATTRIBUTION: said}
