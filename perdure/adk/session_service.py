"""The session that one step's code sees: as the log had it when the step began, with what the step adds."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

from google.adk.agents.base_agent import BaseAgent
from google.adk.events.event import Event as AdkEvent
from google.adk.sessions.base_session_service import BaseSessionService, GetSessionConfig, ListSessionsResponse
from google.adk.sessions.session import Session as AdkSession

from perdure.adk.events import AdkEvents, from_adk, plain_state
from perdure.journal.entries import RunBegan
from perdure.journal.events import Event
from perdure.journal.projection import Projection
from perdure.messages.keys import SessionKey

_REFUSED = (
    "a step cannot {what}: it belongs to one session of a workflow; use Perdure's client, or the HTTP API, outside of"
    " the agents"
)


_NOTHING = object()
"""The value of a key that is not there."""


@dataclass
class SharedState:
    """The state that steps see which run at the same time: each what the others have written, as in ADK."""

    state: dict[str, Any]
    """What it is now."""
    expected: dict[str, Any]
    """What it was, with what deltas tell of since."""
    at_work: int = 0
    """Steps that have begun, and have not ended."""
    steps: set[object] = field(default_factory=set[object])
    """What tells these steps apart."""

    @classmethod
    def of(cls, state: dict[str, Any], *steps: object) -> SharedState:
        """Return the state of steps that are to begin."""
        return cls(copy.deepcopy(state), copy.deepcopy(state), steps=set(steps))

    def join(self, step: object, state: dict[str, Any]) -> bool:
        """Let another step see it, and take what the log has by now, but where these steps have written since.

        Returns:
            Whether it did: not if the step has seen it before, whose writes are not to be seen as it is taken again.
        """
        if step in self.steps:
            return False
        self.steps.add(step)
        for key, value in state.items():
            known = self.expected.get(key, _NOTHING)
            if known != value:
                self.expected[key] = copy.deepcopy(value)
                if self.state.get(key, _NOTHING) == known:
                    self.state[key] = copy.deepcopy(value)
        return True


class StepSession(BaseSessionService):
    """Serves one step its session, and gathers what the step logs. Nothing else is there to be read or changed."""

    def __init__(self, key: SessionKey, projection: Projection, shared: SharedState, events: AdkEvents) -> None:
        """Take the session as an invocation's code sees it, with the state that it sees."""
        self.session = AdkSession(
            id=key.session,
            app_name=key.app,
            user_id=key.user,
            events=events.of(projection.own_events, f"{key.app}/{key.user}/{key.session}"),
            last_update_time=projection.events[-1].timestamp if projection.events else 0.0,
        )
        self.began: RunBegan | None = None
        """How the run of the step's agent began, or of one above it, that is a node of a graph."""
        self.node: BaseAgent | None = None
        """The agent that is that node."""
        self.logged: list[Event] = []
        """What the step adds to the log."""
        # Set behind its making, which would take a copy.
        self.session.state = shared.state
        self._shared = shared

    async def append_event(self, session: AdkSession, event: AdkEvent) -> AdkEvent:
        """Log an event; `temp:` keys stay in the session's state and leave the event, as in ADK."""
        if event.partial or session is not self.session:
            return await super().append_event(session, event)
        self.logged.append(from_adk(event))
        self._shared.expected |= copy.deepcopy(event.actions.state_delta)
        return await super().append_event(session, event)

    def see(self, event: AdkEvent) -> None:
        """Let the step's code see an event that the workflow logs."""
        self.session.events.append(event)
        self._shared.expected |= copy.deepcopy(event.actions.state_delta)
        self.session.state.update(event.actions.state_delta)

    def returned(self, event: AdkEvent) -> Event:
        """Return an event as the log takes it that the step gives back instead of logging it.

        What another call of the answer has written since stays as that one has written it.
        """
        for key, value in event.actions.state_delta.items():
            if self.session.state.setdefault(key, value) == value:
                self._shared.expected[key] = copy.deepcopy(value)
        return from_adk(event)

    def written_over(self, event: AdkEvent) -> tuple[str, ...]:
        """Return the keys of an event's delta that another call of the answer has written since."""
        delta = event.actions.state_delta
        return tuple(key for key, value in delta.items() if self.session.state.get(key, value) != value)

    def written_past_deltas(self, pending: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return what the step's code wrote into the state by other ways than an event's delta.

        ADK keeps it as long as its session object: to the end of the invocation.

        Raises:
            NotPlain: A value is no JSON.
        """
        if self._shared.at_work > 1:
            # The last one of them tells: what the others write into deltas is not known yet.
            return {}
        known = self._shared.expected | (pending or {})
        state = self.session.state
        written = plain_state({key: value for key, value in state.items() if key not in known or known[key] != value})
        self._shared.expected |= copy.deepcopy(written)
        return written

    async def create_session(
        self, *, app_name: str, user_id: str, state: dict[str, Any] | None = None, session_id: str | None = None
    ) -> AdkSession:
        """Refuse."""
        raise RuntimeError(_REFUSED.format(what="create a session"))

    async def get_session(
        self, *, app_name: str, user_id: str, session_id: str, config: GetSessionConfig | None = None
    ) -> AdkSession | None:
        """Return the step's session; no other."""
        own = (self.session.app_name, self.session.user_id, self.session.id)
        return self.session if own == (app_name, user_id, session_id) else None

    async def list_sessions(self, *, app_name: str, user_id: str | None = None) -> ListSessionsResponse:
        """Refuse."""
        raise RuntimeError(_REFUSED.format(what="list sessions"))

    async def delete_session(self, *, app_name: str, user_id: str, session_id: str) -> None:
        """Refuse."""
        raise RuntimeError(_REFUSED.format(what="delete a session"))
