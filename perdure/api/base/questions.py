"""Reads what an invocation waits for, with the schemas of its plan."""

from __future__ import annotations

from perdure.api.base.backend import Backend
from perdure.messages.keys import SessionKey
from perdure.messages.session import InvocationView
from perdure.views.forms.asked import Question, question_of


async def questions_of(view: InvocationView, key: SessionKey, backend: Backend) -> list[Question]:
    """Return what an invocation waits for, oldest first.

    Args:
        view: The invocation.
        key: Its session.
        backend: The backend of the request.
    """
    if not view.pending:
        return []
    plan = await backend.plan(key, view.id, digest=view.plan)
    return [question_of(call, plan) for call in sorted(view.pending, key=lambda call: call.since)]
