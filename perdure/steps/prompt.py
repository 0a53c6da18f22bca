"""Builds a model's request of a plan and a session's events. Pure.

The rules are those of "What a model sees" in the conformance semantics.
ADK: `flows/llm_flows/contents.py`, `flows/llm_flows/identity.py` and `flows/llm_flows/agent_transfer.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from google.genai import types

from perdure.journal.events import QUESTIONS, USER, Event, is_on_branch
from perdure.journal.live_events import live_indexes, told_events
from perdure.plan.nodes import SET_MODEL_RESPONSE, TRANSFER, LlmNode, Node, Plan
from perdure.rules.ids import OWN_IDS
from perdure.steps.pairing import (
    ECHOED,
    PAYLOADS,
    Ids,
    Key,
    PairMemo,
    Shown,
    Turn,
    answers_any,
    call_keys,
    content,
    is_visible,
    pair,
    settled,
)

_HIDDEN = QUESTIONS | {"adk_request_credential", "adk_request_input", "adk_framework"}
"""Calls between a framework and its user, of which no model hears."""

_CONTEXT = "For context:"

_OPENING = content(USER, [types.Part(text="Begin, or go on, as the system instruction says.")])
"""A conversation begins with a user: providers refuse one that does not, and one that is empty."""

_DATA = (*ECHOED, "function_call", "function_response", "thought_signature")


@dataclass
class _Items:
    """What some events of a log show to an agent."""

    places: list[int] = field(default_factory=list[int])
    """Of the events, in the log."""
    shown: list[Shown] = field(default_factory=list[Shown])


@dataclass
class _Contents:
    """What a model sees, and where turns start in it."""

    contents: list[types.Content] = field(default_factory=list[types.Content])
    starts: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """Places in the log, and in the contents, of what starts a turn."""

    def add(self, turns: Iterable[Turn], places: Sequence[int]) -> _Contents:
        """Add contents of items that stand at these places in the log; returns itself."""
        for turn in turns:
            if turn.starts_turn:
                self.starts.append((places[turn.at], len(self.contents)))
            self.contents.append(turn.content)
        return self

    def copy(self) -> _Contents:
        """Return the same, that grows by itself."""
        return _Contents(list(self.contents), list(self.starts))


@dataclass
class Beginning:
    """The contents of a log so far: those that are the same whatever comes, unless that concerns something in them."""

    length: int = 0
    """Events of the log that are in it."""
    last: Event | None = None
    """The last of them."""
    made: _Contents = field(default_factory=_Contents)
    ids: Ids = field(default_factory=Ids)
    calls: set[Key] = field(default_factory=set[Key])
    rest: _Items = field(default_factory=_Items)
    """What lies behind the contents, and may still become others."""
    hidden: set[str | None] = field(default_factory=set[str | None])
    """Ids of calls for which summaries stand; a response brings its call back."""

    def copy(self) -> Beginning:
        """Return the same, that grows by itself."""
        made, calls, rest = self.made.copy(), set(self.calls), _Items(self.rest.places, self.rest.shown)
        return Beginning(self.length, self.last, made, self.ids.copy(), calls, rest, self.hidden)

    def is_of(self, events: Sequence[Event]) -> bool:
        """Return whether a log has this beginning."""
        return not self.length or (len(events) >= self.length and events[self.length - 1] is self.last)

    def is_answered(self, events: Iterable[Event], items: _Items) -> bool:
        """Return whether events, and what they show, answer calls in it."""
        responses = (response for event in events for response in event.get_function_responses())
        return any(answers_any(item, self.calls) for item in items.shown) or (
            bool(self.hidden) and any(response.id in self.hidden for response in responses)
        )

    def go_on(self, events: Sequence[Event], items: _Items, memo: PairMemo) -> _Contents:
        """Take in what the rest of a log shows; returns the contents of all of it."""
        places, shown = [*self.rest.places, *items.places], [*self.rest.shown, *items.shown]
        edge = settled(shown)
        self.made.add(pair(shown[:edge], memo, self.ids, ends=False), places)
        self.calls.update(key for item in shown[:edge] for key in call_keys(item))
        self.rest = _Items(places[edge:], shown[edge:])
        self.length, self.last = len(events), events[-1] if events else None
        return self.made.copy().add(pair(self.rest.shown, memo, Ids(self.ids)), self.rest.places)


@dataclass
class PromptMemo:
    """A memo of contents made of a log's events. A log only grows, so a next call finds most of its work done."""

    shown: dict[tuple[int, str], tuple[Event, Shown | None]] = field(
        default_factory=dict[tuple[int, str], tuple[Event, Shown | None]]
    )
    """By the event's identity, for which it is kept, and agent."""
    paired: PairMemo = field(default_factory=PairMemo)
    begun: dict[tuple[str, str | None], Beginning] = field(default_factory=dict[tuple[str, str | None], Beginning])
    """By agent and branch."""

    def beside(self) -> PromptMemo:
        """Return a memo for a log that goes on from this one's, and of which this one will not hear."""
        begun = {whose: beginning.copy() for whose, beginning in self.begun.items()}
        return PromptMemo(self.shown, self.paired, begun)


def build_contents(
    events: Sequence[Event],
    *,
    agent: str,
    branch: str | None,
    include_contents: Literal["default", "none"],
    begun_after: str | None = None,
    memo: PromptMemo | None = None,
) -> list[types.Content]:
    """Build the contents of a model's request: a conversation that every provider takes.

    Args:
        events: The session's whole event log. Not changed; the contents share their values, and must not be changed.
        agent: The agent that asks.
        branch: The branch on which it runs.
        include_contents: `none` leaves out what lies before the agent's current turn.
        begun_after: The event after which the agent's run began, by id: the newest that may have started its turn.
            Default: the newest of all.
        memo: Kept from one call to the next for the same log.
    """
    made = _gone_on_with(events, agent, branch, memo) if memo is not None else None
    if made is None:
        memo = memo or PromptMemo()
        items = _items(events, told_events(events, agent=agent, branch=branch), agent, memo)
        made = _Contents().add(pair(items.shown, memo.paired), items.places)
    contents = made.contents
    if include_contents == "none":
        contents = contents[_start(made.starts, events, begun_after) :]
    return contents if contents and contents[0].role == USER else [_OPENING, *contents]


def _gone_on_with(events: Sequence[Event], agent: str, branch: str | None, memo: PromptMemo) -> _Contents | None:
    """Return the contents of the log, of which most were made before; `None` if they are of another log."""
    begun = memo.begun.setdefault((agent, branch), Beginning())
    if not begun.is_of(events):
        return None
    new = events[begun.length :]
    items = None
    if not any(map(_is_about_others, new)):
        told = [(at, event) for at, event in enumerate(new, begun.length) if is_on_branch(branch, event.branch)]
        items = _items(events, told, agent, memo)
        if begun.is_answered((event for _, event in told), items):
            items = None
    if items is None:
        told = list(told_events(events, agent=agent, branch=branch))
        begun = memo.begun[agent, branch] = Beginning(hidden=_hidden_calls(events, told, branch))
        items = _items(events, told, agent, memo)
    return begun.go_on(events, items, memo.paired)


def _hidden_calls(events: Sequence[Event], told: Iterable[tuple[int, Event]], branch: str | None) -> set[str | None]:
    places = {at for at, _ in told}
    hidden = (events[at] for at in live_indexes(events) if at not in places)
    return {call.id for event in hidden if is_on_branch(branch, event.branch) for call in event.get_function_calls()}


def _is_about_others(event: Event) -> bool:
    """Return whether an event takes others out of what is told, or stands for them."""
    return bool(event.actions.rewind_before_invocation_id) or event.actions.compaction is not None


def _items(events: Sequence[Event], told: Iterable[tuple[int, Event]], agent: str, memo: PromptMemo) -> _Items:
    items = _Items()
    for index, event in told:
        if item := _remembered(events[index], event, agent, memo):
            items.places.append(index)
            items.shown.append(item)
    return items


def _start(starts: Sequence[tuple[int, int]], events: Sequence[Event], begun_after: str | None) -> int:
    """Return where the agent's current turn starts: with what a user, or another agent, said before it began.

    `starts` has the place in the log, and in the contents, of each turn's start.
    """
    last = len(events)
    if begun_after is not None:
        # Others may be at work beside the agent: what they say then starts nothing.
        last = next((at for at in range(len(events) - 1, -1, -1) if events[at].id == begun_after), last)
    return next((index for place, index in reversed(starts) if place <= last), 0)


def _remembered(logged: Event, event: Event, agent: str, memo: PromptMemo) -> Shown | None:
    """Return what an event shows; it is made anew for each call where it is the summary that the logged one holds."""
    key = (id(logged), agent)
    if key not in memo.shown:
        memo.shown[key] = logged, _show(event, agent)
    return memo.shown[key][1]


def _show(event: Event, agent: str) -> Shown | None:
    """Return what an event shows to an agent, or `None` if that is nothing."""
    own = event.author == agent
    parts = [part for part in event.parts if _is_something(part) and not _is_hidden(part)]
    if event.author == USER:
        # A call that a user's message holds was made by no model.
        parts = [part for part in parts if not part.function_call]
    if not any(is_visible(part) for part in parts):
        return None
    if not own and event.author != USER:
        parts = _as_context(event.author, parts)
        return Shown(event, USER, parts, [], starts_turn=True) if len(parts) > 1 else None
    said = [part for part in parts if not part.function_response]
    responses = [part for part in parts if part.function_response]
    return Shown(event, _role(event, own, said, responses), said, responses, starts_turn=not own)


def _role(event: Event, own: bool, said: Sequence[types.Part], responses: Sequence[types.Part]) -> str:
    if not own or (responses and not any(part.function_call for part in said)):
        return USER
    given = event.content.role if event.content else None
    return USER if given == USER and not any(part.function_call for part in said) else "model"


def _is_hidden(part: types.Part) -> bool:
    named = part.function_call or part.function_response
    return named is not None and named.name in _HIDDEN


def _is_something(part: types.Part) -> bool:
    """Return whether providers take a part: they refuse an empty one, and a text of blanks."""
    return bool(part.text and part.text.strip()) or any(getattr(part, name) for name in _DATA)


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
        elif any(getattr(part, name) for name in PAYLOADS):
            told.append(part)
    return told


def without_session_ids(contents: Sequence[types.Content]) -> list[types.Content]:
    """Return contents without the ids that the session gave: a model gets back only those that it gave itself."""
    return [
        content(item.role or USER, [_without_own_id(part) for part in item.parts or []])
        if any(part.function_call or part.function_response for part in item.parts or [])
        else item
        for item in contents
    ]


def _without_own_id(part: types.Part) -> types.Part:
    for name in ("function_call", "function_response"):
        value: types.FunctionCall | types.FunctionResponse | None = getattr(part, name)
        if value is not None and value.id and value.id.startswith(OWN_IDS):
            return part.model_copy(update={name: value.model_copy(update={"id": None})})
    return part


_ANSWER = (
    f"You have tools, but give your final answer by calling `{SET_MODEL_RESPONSE}`, in the form that it declares, and"
    " not as text: call other tools first, as far as you need them, and then that one."
)


def build_config(
    plan: Plan, node: LlmNode, instruction: str, *, takes_both: bool = False
) -> types.GenerateContentConfig:
    """Return an agent's generation settings with its system instruction and tool declarations.

    Args:
        plan: The plan that holds the agent.
        node: The agent.
        instruction: Its instruction, placeholders resolved.
        takes_both: Its model takes a schema for its answer beside tools.
    """
    targets = plan.transfer_targets(node)
    texts = [instruction, _identity(node)]
    declarations = [tool.declaration for tool in node.tools if tool.kind != "transfer"]
    if targets:
        texts.append(_transfer_instruction(plan, node, targets))
        declarations.append(_transfer_declaration(targets))
    config = types.GenerateContentConfig.model_validate(node.generate_content_config)
    if node.output_schema is not None and declarations and not takes_both:
        answer = node.tool(SET_MODEL_RESPONSE)
        assert answer is not None, "an agent with a schema for answers has the tool"
        texts.append(_ANSWER)
        declarations.append(answer.declaration)
    elif node.output_schema is not None:
        form = {"response_mime_type": "application/json", "response_json_schema": node.output_schema}
        config = config.model_copy(update=form)
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
