"""AG-UI's interrupts: what an invocation waits for, and what a client answers to it. Pure.

https://docs.ag-ui.com/concepts/interrupts
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from ag_ui import core

from perdure.errors import InvalidMessage
from perdure.messages.session import InvocationView
from perdure.views.forms.asked import Kind, Question

_REASONS: Mapping[Kind, str] = {
    "answer": "tool_call",
    "approval": "tool_call",
    "input": "input_required",
    "credential": "perdure:credential",
    "verdict": "perdure:reconcile",
}

_MESSAGE, _RESUME = "message:", "resume:"
"""How the ids begin of interrupts that are no open calls: the invocation waits for the user's next message, or
for leave to go on."""

Json = dict[str, Any]


def interrupt_of(question: Question) -> core.Interrupt:
    """Return an open call as an interrupt; its id is the call's."""
    call = question.call
    about: Json = {"tool": call.name, "args": call.args, "agent": call.agent, "invocationId": call.invocation_id}
    if question.link is not None:
        about["link"] = question.link
    return core.Interrupt(
        id=call.id,
        reason=_REASONS[question.kind],
        message=question.message,
        tool_call_id=question.about,
        response_schema=dict(question.schema) if question.schema is not None else None,
        expires_at=datetime.fromtimestamp(call.deadline, UTC).isoformat() if call.deadline is not None else None,
        metadata={"perdure": about},
    )


def other_interrupt(view: InvocationView, *, listens: bool) -> core.Interrupt:
    """Return the interrupt of an invocation that waits, and not for an answer to a call.

    Args:
        view: The invocation.
        listens: Whether it waits for the user's next message. Else it has made as many model calls as it may.
    """
    if listens:
        message = view.reason or "The agent waits for your message."
        schema: Json = {"type": "string", "minLength": 1}
        return core.Interrupt(
            id=f"{_MESSAGE}{view.id}", reason="input_required", message=message, response_schema=schema
        )
    return core.Interrupt(id=f"{_RESUME}{view.id}", reason="confirmation", message=view.reason)


@dataclass
class Resumption:
    """What a client's entries do."""

    answers: Json = field(default_factory=dict[str, Any])
    """Responses, by the ids of open calls."""
    stops: list[str] = field(default_factory=list[str])
    """Invocations that are stopped, since their question is not answered."""
    resumes: list[str] = field(default_factory=list[str])
    """Invocations that may go on."""
    message: str | None = None
    """The user's next message."""
    unknown: list[str] = field(default_factory=list[str])
    """Ids of what does not wait in the session, if it ever did."""

    @classmethod
    def of(cls, entries: Sequence[core.ResumeEntry], asked: Mapping[str, Question]) -> Resumption:
        """Read entries.

        Args:
            entries: The client's.
            asked: What waits, by the ids of the calls.

        Raises:
            InvalidMessage: An answer does not fit, or one is answered twice.
        """
        if len({entry.interrupt_id for entry in entries}) < len(entries):
            raise InvalidMessage("an interrupt is answered twice in one resume; give one entry for each")
        found = cls()
        for entry in entries:
            question = asked.get(entry.interrupt_id)
            if question is not None:
                found._answer(entry, question)
            else:
                found._go_on(entry)
        return found

    def _answer(self, entry: core.ResumeEntry, question: Question) -> None:
        if entry.status == "resolved":
            try:
                self.answers[entry.interrupt_id] = question.read(entry.payload)
            except ValueError as error:
                raise InvalidMessage(str(error)) from None
        elif (refusal := question.refusal()) is not None:
            self.answers[entry.interrupt_id] = refusal
        else:
            self.stops.append(question.call.invocation_id)

    def _go_on(self, entry: core.ResumeEntry) -> None:
        kind, colon, invocation_id = entry.interrupt_id.partition(":")
        if f"{kind}{colon}" not in (_MESSAGE, _RESUME):
            self.unknown.append(entry.interrupt_id)
        elif entry.status == "cancelled":
            self.stops.append(invocation_id)
        elif f"{kind}{colon}" == _RESUME:
            self.resumes.append(invocation_id)
        elif isinstance(entry.payload, str) and entry.payload:
            self.message = entry.payload
        else:
            raise InvalidMessage("the agent waits for a message; give a text as the payload")


def request_id(*parts: Any) -> str:
    """Return the id by which a session knows a request that comes again."""
    text = json.dumps(parts, sort_keys=True, ensure_ascii=False, default=str)
    return f"ag-ui:{hashlib.sha256(text.encode()).hexdigest()[:32]}"


def resume_id(entries: Iterable[core.ResumeEntry]) -> str:
    """Return the request id of entries: equal for those that say the same."""
    return request_id(sorted((entry.interrupt_id, entry.status, json.dumps(entry.payload)) for entry in entries))
