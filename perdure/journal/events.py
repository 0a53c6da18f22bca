"""ADK's `Event` and `EventActions`: what a session logs and every reader sees.

The fields are the union of ADK 1.39.1's and 2.13's, under the same camelCase JSON names, and unknown fields are kept.
Contents are `google.genai.types`. Nothing here reads a clock or draws an id: a session fills both in when it logs.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, Self, cast

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    alias_generators,
    field_serializer,
    field_validator,
    model_validator,
)

from perdure.journal.compact_json import is_brief, unsaid
from perdure.plan.contents import types

USER = "user"
"""The author of everything that a person or another system sent; no agent may be named so."""

REQUEST_CONFIRMATION = "adk_request_confirmation"
"""The long-running call by which ADK asks a person to approve a tool call."""

REQUEST_CREDENTIAL = "adk_request_credential"
"""The long-running call by which ADK asks a person for a credential that a tool, or a toolset, needs."""

REQUEST_INPUT = "adk_request_input"
"""The long-running call by which a node of a graph of ADK 2 asks a person; it has `message` and `response_schema`."""

REQUEST_RECONCILE = "perdure_reconcile"
"""The long-running call by which an agent asks what became of a tool call that was cut off."""

QUESTIONS = frozenset({REQUEST_CONFIRMATION, REQUEST_CREDENTIAL, REQUEST_RECONCILE})
"""The calls that ask a person about another call; no tool has these names."""


class AdkModel(BaseModel):
    """A value in ADK's JSON: fields by their camelCase or their own names, and unknown ones kept."""

    model_config = ConfigDict(
        frozen=True,
        extra="allow",
        ser_json_bytes="base64",
        val_json_bytes="base64",
        alias_generator=alias_generators.to_camel,
        populate_by_name=True,
        arbitrary_types_allowed=True,
    )

    @model_validator(mode="after")
    def _say_nothing_twice(self) -> Self:
        # A field under both of its names would keep one as unknown: written and read again, that one could count.
        if self.model_extra and (twice := _names(type(self)) & self.model_extra.keys()):
            raise ValueError(f"the field {min(twice)!r} stands there twice, under both of its names; give it once")
        return self


@cache
def _names(model: type[BaseModel]) -> frozenset[str]:
    return frozenset(model.model_fields) | {field.alias or "" for field in model.model_fields.values()}


class ToolConfirmation(AdkModel):
    """A person's decision on a tool call that needed one. ADK: `tools/tool_confirmation.py`."""

    hint: str = ""
    """Why the tool asks."""
    confirmed: bool = False
    """Whether the call may run."""
    payload: Any | None = None
    """What the person sent along."""


class EventActions(AdkModel):
    """The actions of an event, beside its content. ADK: `events/event_actions.py`."""

    skip_summarization: bool | None = None
    """The agent's turn ends with this response; its model is not called."""
    state_delta: dict[str, Any] = Field(default_factory=dict[str, Any], exclude_if=unsaid)
    """Keys that the event writes into the session's state. Never holds a `temp:` key."""
    artifact_delta: dict[str, int] = Field(default_factory=dict[str, int], exclude_if=unsaid)
    """File names and the versions of artifacts that the event updates."""
    transfer_to_agent: str | None = None
    """The agent that takes over."""
    transfer_reason: str | None = None
    """Why it takes over (ADK 2)."""
    escalate: bool | None = None
    """Every loop above the author ends after its current sub-agent."""
    requested_auth_configs: dict[str, Any] = Field(default_factory=dict[str, Any], exclude_if=unsaid)
    """Authentication that tool calls ask for, by function-call id."""
    requested_tool_confirmations: dict[str, ToolConfirmation] = Field(
        default_factory=dict[str, ToolConfirmation], exclude_if=unsaid
    )
    """Confirmations that tool calls ask for, by function-call id."""
    compaction: dict[str, Any] | None = None
    """A summary that stands for a range of events."""
    end_of_agent: bool | None = None
    """The author's run in this invocation has ended."""
    agent_state: dict[str, Any] | None = None
    """The author's checkpoint; `{}` is a checkpoint, `None` is none."""
    rewind_before_invocation_id: str | None = None
    """The log counts as if it ended before this invocation."""
    render_ui_widgets: list[Any] | None = None
    """Widgets that a front end may draw."""
    route: bool | int | str | list[bool | int | str] | None = None
    """Route of a workflow graph (ADK 2)."""
    set_model_response: Any | None = None
    """Structured output of the model (ADK 2)."""


_NOTHING = EventActions()


def no_actions(actions: EventActions) -> bool:
    """Return whether actions are to be left out now: they do nothing."""
    return is_brief() and actions == _NOTHING


class ModelAnswer(AdkModel):
    """Base of a model's answer, and of the event that logs it. ADK: `models/llm_response.py`."""

    content: types.Content | None = None
    """What was said, called or responded. A model's function calls may lack ids; the session gives them."""
    partial: bool | None = None
    """A piece of a streamed answer, which is never logged."""
    turn_complete: bool | None = None
    finish_reason: types.FinishReason | None = None
    error_code: str | None = None
    """Why there is no content, such as `SAFETY`: the model answered, so the call has not failed."""
    error_message: str | None = None
    interrupted: bool | None = None
    custom_metadata: dict[str, Any] | None = None
    usage_metadata: types.GenerateContentResponseUsageMetadata | None = None
    grounding_metadata: types.GroundingMetadata | None = None
    citation_metadata: types.CitationMetadata | None = None
    input_transcription: types.Transcription | None = None
    output_transcription: types.Transcription | None = None
    avg_logprobs: float | None = None
    logprobs_result: types.LogprobsResult | None = None
    cache_metadata: dict[str, Any] | None = None
    model_version: str | None = None
    interaction_id: str | None = None


class Event(ModelAnswer):
    """One entry of a session's log. ADK: `events/event.py`.

    An event has an author, an invocation, a branch, content parts and actions. Frozen: what is logged does not change.
    """

    id: str = Field(default="", exclude_if=unsaid)
    """Unique in the session; filled in when the event is logged."""
    timestamp: float = Field(default=0.0, exclude_if=unsaid)
    """Seconds since the epoch; filled in when the event is logged."""
    author: str = Field(default="", exclude_if=unsaid)
    """`user`, or the name of the agent."""
    invocation_id: str = Field(default="", exclude_if=unsaid)
    """`e-…`; filled in when the event is logged."""
    branch: str | None = None
    """`PARALLEL.SUBAGENT` steps from the root, joined by dots; `None` outside of parallel agents."""
    actions: EventActions = Field(default_factory=EventActions, exclude_if=no_actions)
    """What the event does beside its content."""
    long_running_tool_ids: frozenset[str] | None = None
    """Ids of the calls in the content that wait for the user's answer."""

    turn_complete_reason: Any | None = None
    interaction_status: Any | None = None
    environment_id: str | None = None
    live_session_resumption_update: Any | None = None
    live_session_id: str | None = None
    go_away: Any | None = None
    voice_activity: Any | None = None

    output: Any | None = None
    node_info: dict[str, Any] | None = None
    isolation_scope: str | None = None

    @field_serializer("long_running_tool_ids", when_used="json-unless-none")
    def _sort_ids(self, ids: frozenset[str]) -> list[str]:
        # A set's order differs from process to process; an event's JSON must not. As in ADK 2.
        return sorted(ids)

    @field_validator("branch")
    @classmethod
    def _empty_branch_is_none(cls, branch: str | None) -> str | None:
        return branch or None

    @property
    def is_users(self) -> bool:
        """Whether a user said it. google.adk 2 logs what came of a task in the user's name, too, as a node's."""
        return self.author == USER and not self.node

    @property
    def node(self) -> str:
        """The name of the node, an agent's or another's, that logged it; empty where the log does not tell."""
        path = str((self.node_info or {}).get("path") or "")
        return path.rpartition("/")[2].partition("@")[0]

    @property
    def parts(self) -> list[types.Part]:
        """The content's parts; empty without content."""
        return (self.content.parts or []) if self.content else []

    def get_function_calls(self) -> list[types.FunctionCall]:
        """Return the function calls in the content, in order. As in ADK."""
        return [part.function_call for part in self.parts if part.function_call]

    def get_function_responses(self) -> list[types.FunctionResponse]:
        """Return the function responses in the content, in order. As in ADK."""
        return [part.function_response for part in self.parts if part.function_response]

    def is_final_response(self) -> bool:
        """Return whether the event ends its author's turn. As in ADK."""
        if self.actions.skip_summarization or self.long_running_tool_ids:
            return True
        if any(part.function_call or part.function_response for part in self.parts) or self.partial:
            return False
        return not (self.parts and self.parts[-1].code_execution_result is not None)

    @property
    def text(self) -> str | None:
        """The joined text parts that are not thoughts; `None` if there is no such part."""
        texts = [part.text for part in self.parts if part.text is not None and not part.thought]
        return "".join(texts) if texts else None

    def to_json(self) -> str:
        """Return ADK's JSON of the event: camelCase, fields that are `None` left out."""
        return self.model_dump_json(by_alias=True, exclude_none=True)


def user_content(text: str) -> types.Content:
    """Return a user's message of one text part."""
    return types.Content(role=USER, parts=[types.Part(text=text)])


def is_on_branch(branch: str | None, other: str | None) -> bool:
    """Return whether an agent on `branch` sees events on `other`.

    It sees events without a branch, of its own, and of dot-wise prefixes of it; without a branch it sees all.
    """
    return branch is None or other is None or branch == other or branch.startswith(f"{other}.")


def asked_about(args: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the call that a question is about (its `id`, `name` and `args`), from the question's arguments.

    It is empty if they hold none: an imported log, or a model, may put anything there.
    """
    found: Any = (args or {}).get("originalFunctionCall")
    return cast(dict[str, Any], found) if isinstance(found, dict) else {}


def notice_event(id: str, code: str, message: str, time: float) -> Event:
    """Return an event by which a session tells its readers of something; it has no content, so no model sees it.

    Args:
        id: Its id: to draw one would give others to what comes behind it.
        code: What it is about.
        message: What happened.
        time: When, in seconds since the epoch.
    """
    return Event(id=id, timestamp=time, author=USER, invocation_id=f"p-{id}", error_code=code, error_message=message)
