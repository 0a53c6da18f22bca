"""What the query guard says; apart from the guard, which needs Temporal's worker."""

from __future__ import annotations

BETWEEN_STEPS = "the session is about to take a step"
"""Why a query is refused that would have gone ahead of a workflow task; to be asked again, unless the run is closed."""
