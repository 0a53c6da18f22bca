"""`Turn`: what became of a message, an answer or a resume, until the invocation came to rest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from perdure.journal.events import Event
from perdure.journal.open_calls import InvocationStatus, PendingCall
from perdure.messages.session import InvocationView
from perdure.views.pages import QUESTION_WORDS, awaited_tool, example_answer
from perdure.views.words import arguments_text, describe_event, short_json

__all__ = ["Turn", "call_text", "transcript"]


@dataclass(frozen=True)
class Turn:
    """A stretch of an invocation at work, from what set it going to its end, its failure or its next wait."""

    events: tuple[Event, ...]
    """What was logged, the user's message or answers included, oldest first."""
    invocation: InvocationView
    """How the invocation stands now."""

    @property
    def status(self) -> InvocationStatus:
        """`finished`, `waiting` or `stopped`; one that failed raises instead."""
        return self.invocation.status

    @property
    def pending(self) -> tuple[PendingCall, ...]:
        """The open calls of the invocation, which wait for the user's answer."""
        return self.invocation.pending

    @property
    def texts(self) -> list[str]:
        """What agents said, one text for each event that has one."""
        return [event.text for event in self.events if not event.is_users and event.text]

    @property
    def text(self) -> str:
        """The last thing that an agent said; empty if none said anything.

        Raises:
            AssertionError: The invocation has not finished, so this is not its answer: it waits for one of the user's.
        """
        __tracebackhide__ = True
        if self.status != "finished" or (self.pending and not self.texts):
            raise AssertionError(f"the invocation has no final text yet: {why_not_finished(self.invocation)}")
        return next(reversed(self.texts), "")


def why_not_finished(invocation: InvocationView) -> str:
    """Return in words what an invocation needs to go on."""
    if not invocation.pending:
        return f"it is {invocation.status}" + (f" ({invocation.reason})" if invocation.reason else "")
    calls = "; ".join(f"{call_text(call)} of agent {call.agent}" for call in invocation.pending)
    answer = ", ".join(f"{awaited_tool(call)!r}: {short_json(example_answer(call))}" for call in invocation.pending)
    return f"it waits for the user's answer to {calls}; answer it as in: await ….respond({{{answer}}})"


def call_text(call: PendingCall) -> str:
    """Return an open call in words."""
    asked = QUESTION_WORDS.get(call.name)
    return f"the {asked} {awaited_tool(call)}" if asked else f"{call.name}({arguments_text(call.args)})"


def transcript(events: Sequence[Event]) -> Iterator[str]:
    """Yield what happened, a line for each thing; checkpoints and ends of agents are left out."""
    for event in events:
        actions = event.actions.model_copy(update={"agent_state": None, "end_of_agent": None})
        yield from describe_event(event.model_copy(update={"actions": actions}))
