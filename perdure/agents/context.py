"""`ReadonlyContext` and `ToolContext`: what instruction functions and tools get of their session.

Both live in activities, on copies of the session's values, so nothing that user code does to them reaches a journal.
"""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Coroutine, Iterator, Mapping, MutableMapping
from typing import Any, ClassVar, NoReturn, TypeVar

from google.genai import types
from pydantic import ConfigDict

from perdure.agents.artifacts import SessionArtifacts
from perdure.artifacts.service import ArtifactVersion
from perdure.journal.events import EventActions, ToolConfirmation

_T = TypeVar("_T")


class ReadonlyState(Mapping[str, Any]):
    """Session state to be read; writing raises a `TypeError` that says how to write it."""

    def __init__(self, values: Mapping[str, Any], remedy: str) -> None:
        """Wrap values; they are copied where they are read.

        Args:
            values: The session's state.
            remedy: How the state can be written, for the error.
        """
        self._values = values
        self._remedy = remedy

    def __getitem__(self, key: str) -> Any:
        # A change inside of a value would show in this session's state, and be gone when it is folded again.
        return copy.deepcopy(self._values[key])

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"ReadonlyState({dict(self._values)!r})"

    def _refuse(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise TypeError(f"session state is read-only here; {self._remedy}")

    __setitem__ = __delitem__ = update = setdefault = pop = popitem = clear = _refuse


class State(MutableMapping[str, Any]):
    """Session state as a tool sees it: every write goes into a delta too. ADK: `sessions/state.py`.

    A change inside of a value (`state["list"].append(…)`) is no write; assign the key again. A key cannot be deleted;
    assign `None`.
    """

    APP_PREFIX: ClassVar[str] = "app:"
    """Keys that all sessions of an app share."""
    USER_PREFIX: ClassVar[str] = "user:"
    """Keys that all sessions of a user share."""
    TEMP_PREFIX: ClassVar[str] = "temp:"
    """Keys that live for one invocation and are never logged."""

    def __init__(self, values: Mapping[str, Any], actions: ToolActions) -> None:
        self._values = values
        self._read: dict[str, Any] = {}
        self._actions = actions

    def __getitem__(self, key: str) -> Any:
        delta = self._actions.state_delta
        if key in delta:
            return delta[key]
        if key not in self._read:
            # The worker keeps the session's values for its next calls.
            self._read[key] = copy.deepcopy(self._values[key])
        return self._read[key]

    def __setitem__(self, key: str, value: Any) -> None:
        self._actions.state_delta[key] = value

    def __delitem__(self, key: str) -> None:
        raise TypeError(f"a state key cannot be deleted; assign state[{key!r}] = None instead")

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys((*self._values, *self._actions.state_delta)))

    def __len__(self) -> int:
        return len(self._values.keys() | self._actions.state_delta.keys())

    def __repr__(self) -> str:
        return f"State({self.to_dict()!r})"

    def has_delta(self) -> bool:
        """Return whether anything was written."""
        return bool(self._actions.state_delta)

    def to_dict(self) -> dict[str, Any]:
        """Return the state, writes included, as a dictionary."""
        return dict(self)


class ToolActions(EventActions):
    """`EventActions` that a tool sets field by field: `tool_context.actions.escalate = True`.

    A name that `EventActions` does not have is refused. A value that does not fit is told to the model when the tool
    has returned: an error where it is set, in a tool that may have done its work, would have it run again.
    """

    model_config = ConfigDict(frozen=False, extra="forbid")

    def to_event_actions(self) -> EventActions:
        """Return the actions as an event logs them; `state_delta` may still hold `temp:` keys."""
        return EventActions(**{name: getattr(self, name) for name in EventActions.model_fields})


class ReadonlyContext:
    """The argument of a function for an instruction. It runs in an activity. ADK: `agents/readonly_context.py`."""

    def __init__(
        self,
        *,
        agent_name: str,
        invocation_id: str,
        app_name: str,
        user_id: str,
        session_id: str,
        state: Mapping[str, Any],
        user_content: types.Content | None = None,
        artifacts: SessionArtifacts | None = None,
    ) -> None:
        self.agent_name = agent_name
        """The agent that asks."""
        self.invocation_id = invocation_id
        """The current invocation, `e-…`."""
        self.app_name = app_name
        self.user_id = user_id
        self.session_id = session_id
        self.user_content = user_content
        """The message that started the invocation."""
        self._artifacts = artifacts or SessionArtifacts(None, app_name, user_id, session_id)
        self._state: Mapping[str, Any] = ReadonlyState(
            state, "write it in a tool, through `tool_context.state`, or by an agent's output_key"
        )

    @property
    def state(self) -> Mapping[str, Any]:
        """The session's state, to be read; writing raises a `TypeError`."""
        return self._state

    async def load_artifact(self, filename: str, version: int | None = None) -> types.Part | None:
        """Return an artifact's content, by default the latest version's; `None` if there is none.

        Raises:
            ArtifactError: The name cannot be one, or the worker was not told where artifacts are kept.
        """
        return await self._artifacts.load(filename, version)

    async def get_artifact_version(self, filename: str, version: int | None = None) -> ArtifactVersion | None:
        """Return an artifact's type, time and metadata, by default the latest version's; raises as `load_artifact`."""
        return await self._artifacts.describe(filename, version)

    async def list_artifacts(self) -> list[str]:
        """Return the names of the session's artifacts, and of its user's, which start with `user:`.

        Raises:
            ArtifactError: The worker was not told where artifacts are kept.
        """
        return await self._artifacts.names()

    def wait_for(self, awaitable: Awaitable[_T]) -> _T:
        """Return an awaitable's result, for a plain function: `context.wait_for(context.load_artifact("map.png"))`.

        Raises:
            ArtifactError: An async function asked, which would wait for itself; await it there.
        """
        return self._artifacts.wait(awaitable)


class ToolContext(ReadonlyContext):
    """The argument of a tool that has a parameter annotated so. ADK: `tools/tool_context.py`."""

    def __init__(
        self,
        *,
        agent_name: str,
        invocation_id: str,
        app_name: str,
        user_id: str,
        session_id: str,
        state: Mapping[str, Any],
        function_call_id: str,
        idempotency_key: str,
        tool_confirmation: ToolConfirmation | None = None,
        user_content: types.Content | None = None,
        artifacts: SessionArtifacts | None = None,
    ) -> None:
        super().__init__(
            agent_name=agent_name,
            invocation_id=invocation_id,
            app_name=app_name,
            user_id=user_id,
            session_id=session_id,
            state=state,
            user_content=user_content,
            artifacts=artifacts,
        )
        self.function_call_id = function_call_id
        """The call that the tool serves, `adk-…` or the model's own id."""
        self.idempotency_key = idempotency_key
        """Equal in every attempt and every resume of this call, and unique to it: pass it on to what the tool calls."""
        self.tool_confirmation = tool_confirmation
        """The person's decision, if the call needed one."""
        self.actions = ToolActions()
        """What the response event does beside its content."""
        self._tool_state = State(state, self.actions)

    @property
    def state(self) -> State:
        """The session's state; what is written here goes into the response event's `state_delta`."""
        return self._tool_state

    def save_artifact(
        self, filename: str, artifact: types.Part, custom_metadata: Mapping[str, Any] | None = None
    ) -> Coroutine[Any, Any, int]:
        """Save a new version of an artifact and return its number; 0 is the first. It is to be awaited.

        The response event's `artifact_delta` names it. An attempt that saves the same again finds its version.

        Args:
            filename: The artifact's name; with `user:` in front it is shared by all sessions of the user.
            artifact: A part with `text`, `inline_data` or `file_data`.
            custom_metadata: JSON that is kept with the version.

        Raises:
            ArtifactError: Name, part or metadata cannot be stored, or the worker was not told where.
        """
        return self._artifacts.save(filename, artifact, custom_metadata, self._saved)

    def _saved(self, filename: str, version: int) -> None:
        delta = self.actions.artifact_delta
        delta[filename] = max(version, delta.get(filename, 0))

    def check_artifacts_saved(self) -> None:
        """Check that every `save_artifact` was awaited. For Perdure, when the tool has returned.

        Raises:
            ArtifactError: One was not.
        """
        self._artifacts.check_awaited()

    def request_confirmation(self, *, hint: str | None = None, payload: Any | None = None) -> None:
        """Ask a person to approve this call. The tool returns after it, and runs again with the decision.

        Args:
            hint: Why the tool asks.
            payload: What the person may fill in and send along.
        """
        self.actions.requested_tool_confirmations[self.function_call_id] = ToolConfirmation(
            hint=hint or "", payload=payload
        )
