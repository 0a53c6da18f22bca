"""From a plan and a session's events to what a model is asked. Pure.

The rules are those of "What a model sees" in the conformance semantics.
ADK: `flows/llm_flows/contents.py`, `utils/instructions_utils.py`, `flows/llm_flows/identity.py` and
`flows/llm_flows/agent_transfer.py`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from google.genai import types

from perdure.errors import ModelError
from perdure.events import QUESTIONS, USER, Event
from perdure.live_events import told_events
from perdure.plan import TRANSFER, LlmNode, Node, Plan

_HIDDEN = QUESTIONS | {"adk_request_credential", "adk_request_input", "adk_framework"}
"""Calls between a framework and its user, of which no model hears."""

_OWN_IDS = "adk-"
"""Ids that the session gave; a model gets back only those that it gave itself."""

_CONTEXT = "For context:"
_PAYLOADS = ("inline_data", "file_data", "executable_code", "code_execution_result")
_ECHOED = (*_PAYLOADS, "tool_call", "tool_response")

_PLACEHOLDER = re.compile(r"{+([^{}]*)}+")
_STATE_PREFIXES = frozenset({"app", "user", "temp"})
_ARTIFACT = "artifact."


@dataclass(frozen=True)
class _Shown:
    """What one event shows to a model."""

    role: str
    parts: list[types.Part]
    starts_turn: bool
    """A user's message or another agent's event. Answers join the other responses to their calls, which start none."""

    @cached_property
    def call_ids(self) -> list[str]:
        return [part.function_call.id for part in self.parts if part.function_call and part.function_call.id]

    @cached_property
    def content(self) -> types.Content:
        """What the model gets: without the ids that the session gave."""
        # The values come from contents, so they are not validated a second time: that is most of the work.
        return types.Content.model_construct(role=self.role, parts=[_without_own_id(part) for part in self.parts])

    @cached_property
    def responses(self) -> list[types.FunctionResponse]:
        return [part.function_response for part in self.parts if part.function_response]


@dataclass
class PromptMemo:
    """What was made of a log's events before. A log only grows, so a next call finds most of its work done."""

    shown: dict[tuple[int, str], _Shown | None] = field(default_factory=dict[tuple[int, str], "_Shown | None"])
    """By the event's place in the log, and agent."""
    merged: dict[tuple[int, ...], _Shown] = field(default_factory=dict[tuple[int, ...], _Shown])
    """Responses that were put behind their calls, by the identities of the items, which `shown` keeps."""


def build_contents(
    events: Sequence[Event],
    *,
    agent: str,
    branch: str | None,
    include_contents: Literal["default", "none"],
    memo: PromptMemo | None = None,
) -> list[types.Content]:
    """Return what an agent's model sees of a session.

    Args:
        events: The session's whole event log. Not changed; the contents share their values, and must not be changed.
        agent: The agent that asks.
        branch: The branch on which it runs.
        include_contents: `none` leaves out what lies before the agent's current turn.
        memo: Kept from one call to the next for the same log.
    """
    memo = memo or PromptMemo()
    shown = [
        item
        for index, event in told_events(events, agent=agent, branch=branch)
        if (item := _remembered(index, event, agent, memo))
    ]
    shown = _pair(*_forget_aside(shown), memo)
    if include_contents == "none":
        starts = [index for index, item in enumerate(shown) if item.starts_turn]
        shown = shown[starts[-1] :] if starts else shown
    return [item.content for item in shown]


def _remembered(index: int, event: Event, agent: str, memo: PromptMemo) -> _Shown | None:
    key = (index, agent)
    if key not in memo.shown:
        memo.shown[key] = _show(event, agent)
    return memo.shown[key]


def _show(event: Event, agent: str) -> _Shown | None:
    """Return what an event shows to an agent, or `None` if that is nothing."""
    parts = [part for part in event.parts if not _is_hidden(part)]
    if not any(_is_visible(part) for part in parts):
        return None
    if event.author not in (agent, USER):
        parts = _as_context(event.author, parts)
        return _Shown(USER, parts, starts_turn=True) if len(parts) > 1 else None
    responds = any(part.function_response for part in parts)
    role = (event.content and event.content.role) or (USER if responds or event.author == USER else "model")
    return _Shown(role, parts, starts_turn=event.author == USER)


def _is_hidden(part: types.Part) -> bool:
    named = part.function_call or part.function_response
    return named is not None and named.name in _HIDDEN


def _is_visible(part: types.Part) -> bool:
    if part.function_call or part.function_response:
        return True
    return not part.thought and bool(part.text or any(getattr(part, name) for name in _ECHOED))


def _as_context(author: str, parts: Sequence[types.Part]) -> list[types.Part]:
    """Return another agent's parts in the third person, after a heading."""
    told = [types.Part(text=_CONTEXT)]
    for part in parts:
        if part.thought:
            continue
        if part.text is not None and part.text.strip():
            told.append(types.Part(text=f"[{author}] said: {part.text}"))
        elif call := part.function_call:
            told.append(types.Part(text=f"[{author}] called tool `{call.name}` with parameters: {call.args}"))
        elif response := part.function_response:
            told.append(types.Part(text=f"[{author}] `{response.name}` tool returned result: {response.response}"))
        elif any(getattr(part, name) for name in _PAYLOADS):
            told.append(part)
    return told


def _targets(shown: Sequence[_Shown]) -> dict[int, list[int]]:
    """Return for each response the indexes of the items that made its calls.

    A response to another agent's call has none: its call is shown as text.
    """
    callers: dict[str | None, int] = {}
    targets: dict[int, list[int]] = {}
    for index, item in enumerate(shown):
        if responses := item.responses:
            targets[index] = sorted({callers[value.id] for value in responses if value.id in callers})
        callers.update(dict.fromkeys(item.call_ids, index))
    return targets


def _forget_aside(shown: Sequence[_Shown]) -> tuple[Sequence[_Shown], dict[int, list[int]]]:
    """Drop responses without a call, and what was said since the call that the newest item answers.

    Returns:
        What is left, and whose calls the responses in it answer.
    """
    targets = _targets(shown)
    kept = [index for index in range(len(shown)) if targets.get(index) != []]
    if kept and (answered := targets.get(kept[-1])):
        call = answered[-1]
        kept = [index for index in kept if index <= call or call in targets.get(index, [])]
    if len(kept) == len(shown):
        return shown, targets
    left = [shown[index] for index in kept]
    return left, _targets(left)


def _pair(shown: Sequence[_Shown], targets: Mapping[int, list[int]], memo: PromptMemo) -> list[_Shown]:
    """Put the responses to each item's calls right behind it, as one item."""
    responses: dict[int, list[int]] = {}
    for response, calls in targets.items():
        for call in calls:
            responses.setdefault(call, []).append(response)
    paired: list[_Shown] = []
    for index, item in enumerate(shown):
        if index in targets:
            continue
        paired.append(item)
        if answered := _standing(shown, responses.get(index, [])):
            # What else stands beside the answers to several items' calls is shown once, with the newest.
            newest = [index == targets[other][-1] for other in answered]
            key = (id(item), *(id(shown[other]) for other in answered), *newest)
            if key not in memo.merged:
                parts = [
                    part
                    for other, whole in zip(answered, newest, strict=True)
                    for part in shown[other].parts
                    if part.function_response or whole
                ]
                memo.merged[key] = _Shown(shown[answered[0]].role, _merge(item, parts), starts_turn=False)
            paired.append(memo.merged[key])
    return paired


def _standing(shown: Sequence[_Shown], responses: Sequence[int]) -> Sequence[int]:
    """Return which of the items that respond to the same calls are merged.

    All while the newest of them is what the model goes on from; afterwards only those that hold some call's last
    response, so that an answered pending response no longer gives the order. As in ADK.
    """
    if not responses or responses[-1] == len(shown) - 1:
        return responses
    last = {value.id: index for index in responses for value in shown[index].responses}
    return sorted(set(last.values()))


def _merge(caller: _Shown, responses: Sequence[types.Part]) -> list[types.Part]:
    """Return the responses to an item's calls: a later one to the same call takes the place of the earlier."""
    calls = set(caller.call_ids)
    parts: list[types.Part] = []
    places: dict[str, int] = {}
    for part in responses:
        call_id = part.function_response.id if part.function_response else None
        if call_id is None:
            parts.append(part)
        elif call_id in places:
            parts[places[call_id]] = part
        elif call_id in calls:
            places[call_id] = len(parts)
            parts.append(part)
    return parts


def _without_own_id(part: types.Part) -> types.Part:
    for name in ("function_call", "function_response"):
        value: types.FunctionCall | types.FunctionResponse | None = getattr(part, name)
        if value is not None and value.id and value.id.startswith(_OWN_IDS):
            return part.model_copy(update={name: value.model_copy(update={"id": None})})
    return part


def artifact_names(template: str) -> list[str]:
    """Return the names of the artifacts that an instruction's `{artifact.NAME}` placeholders stand for."""
    keys = (match[1].strip().removesuffix("?") for match in _PLACEHOLDER.finditer(template))
    return list(dict.fromkeys(key.removeprefix(_ARTIFACT) for key in keys if key.startswith(_ARTIFACT)))


def resolve_instruction(template: str, state: Mapping[str, Any], artifacts: Mapping[str, str] | None = None) -> str:
    """Return an instruction with session state in place of its `{key}` and `{key?}` placeholders.

    A key is an identifier, if need be after `user:`, `app:` or `temp:`; other braces stay as they are. `{key?}` is
    empty where the key is missing. `{artifact.NAME}` and `{artifact.NAME?}` stand for the text of an artifact.

    Args:
        template: The agent's instruction.
        state: The session's state as the invocation sees it.
        artifacts: Texts of the artifacts that `artifact_names` names, where they exist.

    Raises:
        ModelError: A key or an artifact without `?` is missing. Not retried.
    """

    def value(match: re.Match[str]) -> str:
        name = match[1].strip()
        key = name.removesuffix("?")
        if key.startswith(_ARTIFACT):
            return _artifact_text(key.removeprefix(_ARTIFACT), artifacts or {}, optional=key != name)
        if not _is_key(key):
            return match[0]
        if key not in state and key == name:
            raise ModelError(
                f"instruction needs state key {key!r}, which the session's state lacks; set it before the agent "
                f"runs (create_session(state=…), output_key, a tool), or write {{{key}?}} if it may be missing",
                retryable=False,
            )
        found = state.get(key)
        return "" if found is None else str(found)

    return _PLACEHOLDER.sub(value, template)


def _artifact_text(name: str, texts: Mapping[str, str], *, optional: bool) -> str:
    if name not in texts and not optional:
        raise ModelError(
            f"instruction needs artifact {name!r}, which does not exist; save it before the agent runs, or write"
            f" {{{_ARTIFACT}{name}?}} if it may be missing",
            retryable=False,
        )
    return texts.get(name, "")


def _is_key(name: str) -> bool:
    prefix, colon, key = name.rpartition(":")
    return key.isidentifier() and (not colon or prefix in _STATE_PREFIXES)


def build_config(plan: Plan, node: LlmNode, instruction: str) -> types.GenerateContentConfig:
    """Return an agent's generation settings with its system instruction and tool declarations.

    Args:
        plan: The plan that holds the agent.
        node: The agent.
        instruction: Its instruction, placeholders resolved.
    """
    targets = plan.transfer_targets(node)
    texts = [instruction, _identity(node)]
    declarations = [tool.declaration for tool in node.tools if tool.kind != "transfer"]
    if targets:
        texts.append(_transfer_instruction(plan, node, targets))
        declarations.append(_transfer_declaration(targets))
    config = types.GenerateContentConfig.model_validate(node.generate_content_config)
    tools = [types.Tool(function_declarations=declarations)] if declarations else None
    system_instruction = "\n\n".join(text for text in texts if text)
    return config.model_copy(update={"system_instruction": system_instruction, "tools": tools})


def _identity(node: LlmNode) -> str:
    line = f'You are an agent. Your internal name is "{node.name}".'
    return f'{line} The description about you is "{node.description}".' if node.description else line


def _transfer_instruction(plan: Plan, node: LlmNode, targets: Sequence[Node]) -> str:
    lines = ["These agents can take over the conversation from you:", ""]
    lines += [f"- `{target.name}`: {target.description or 'no description'}" for target in targets]
    lines += [
        "",
        f"If one of them fits the request better than you do, by its description, call `{TRANSFER}` with its name, "
        "and write no text beside the call. Otherwise answer yourself. Name no other agent.",
    ]
    parent = plan.parents.get(node.name)
    if parent is not None and any(target.name == parent.name for target in targets):
        lines.append(f"If neither you nor any of them fits, hand over to `{parent.name}`, the agent above you.")
    return "\n".join(lines)


def _transfer_declaration(targets: Sequence[Node]) -> types.FunctionDeclaration:
    name = types.Schema(
        type=types.Type.STRING,
        description="Name of the agent that takes over.",
        enum=[target.name for target in targets],
    )
    return types.FunctionDeclaration(
        name=TRANSFER,
        description="Hand the conversation over to another agent.",
        parameters=types.Schema(type=types.Type.OBJECT, properties={"agent_name": name}, required=["agent_name"]),
    )
