"""Which checkpoints readers of a log do not see."""

from __future__ import annotations

from perdure.journal.events import Event
from perdure.journal.runs import is_state
from perdure.plan.nodes import Plan

__all__ = ["is_hidden"]


def is_hidden(plan: Plan, event: Event) -> bool:
    """Return whether an event that an agent's code has logged is a checkpoint, or an end, which nobody is shown.

    In an app that is not resumable, as in ADK, where its agents' code is not to yield one; an agent of Perdure's may.
    """
    return plan.adk is None and not plan.resumable and is_state(event) and not event.parts
