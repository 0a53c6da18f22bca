"""Events and model requests in a normal form, in which two runs of one scenario are equal; and a readable diff of two.

Ids become names in order of appearance; times, event ids and usage are left out.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

from google.genai import types

from perdure.journal.events import (
    REQUEST_CONFIRMATION,
    REQUEST_CREDENTIAL,
    REQUEST_INPUT,
    USER,
    Event,
    EventActions,
    asked_about,
    is_on_branch,
)

Item = dict[str, Any]
"""An event in normal form, or `FAILED`."""

FAILED: Item = {"failed": True}
"""Stands at the end of a turn that failed or was refused."""


def normalize_log(turns: Iterable[Sequence[Event]], authors: Sequence[str] | None = None) -> list[list[Item]]:
    """Return a scenario's events, turn by turn, in normal form.

    Args:
        turns: The events that each turn appended.
        authors: The user and the agents depth-first: puts each turn into the fixed order of `per_author`. Without it
            the log's own order counts.
    """
    items = [[normalize_event(event) for event in turn] for turn in turns]
    if authors is not None:
        items = [fixed_order(turn, authors) for turn in items]
    return rename_ids(items)


def normalize_event(event: Event) -> Item:
    """Return an event in normal form, with the ids that it has."""
    item: Item = {"author": event.author, "invocation": event.invocation_id, "branch": event.branch}
    parts = [normalize_part(part) for part in event.parts]
    if parts:
        item["parts"] = parts
    waiting = event.long_running_tool_ids or frozenset()
    in_call_order = [call.id for call in event.get_function_calls() if call.id in waiting]
    long_running = in_call_order + sorted(waiting.difference(in_call_order))
    if long_running:
        item["long_running"] = long_running
    if event.error_code is not None:
        item["error_code"] = event.error_code
    elif not parts and event.finish_reason is not None:
        item["finish_reason"] = event.finish_reason.value
    actions = _normalize_actions(event.actions)
    if actions:
        item["actions"] = actions
    if path := (event.node_info or {}).get("path"):
        # Of a graph.
        item["node"] = path
        item |= {
            name: value
            for name, value in (("output", event.output), ("route", event.actions.route))
            if value is not None
        }
    return item


_GIVEN = re.compile(r"@([^./@]+)")
"""In a path: the number of a node's run, or the call by which an agent was given a task."""


def normalize_part(part: types.Part) -> Item:
    """Return a part in normal form; whatever is no text, call or response is shown as its JSON."""
    if part.function_call:
        call = part.function_call
        return {"call": {"id": call.id, "name": call.name, "args": call.args or {}}}
    if part.function_response:
        response = part.function_response
        return {"response": {"id": response.id, "name": response.name, "response": response.response or {}}}
    return part.model_dump(mode="json", by_alias=True, exclude_none=True)


def _normalize_actions(actions: EventActions) -> Item:
    set_values: Item = {}
    if actions.agent_state is not None:
        set_values["agent_state"] = actions.agent_state
    for name in ("end_of_agent", "state_delta", "transfer_to_agent", "escalate", "skip_summarization"):
        if value := getattr(actions, name):
            set_values[name] = value
    if actions.requested_tool_confirmations:
        set_values["requested_tool_confirmations"] = {
            call_id: confirmation.model_dump(mode="json", by_alias=True, exclude_none=True)
            for call_id, confirmation in actions.requested_tool_confirmations.items()
        }
    if actions.requested_auth_configs:
        set_values["requested_auth_configs"] = actions.requested_auth_configs
    return set_values


def normalize_request(contents: Iterable[types.Content]) -> list[Item]:
    """Return the contents of a model call in normal form, which has no ids."""
    return [
        {"role": content.role, "parts": [_without_id(part) for part in content.parts or []]} for content in contents
    ]


def _without_id(part: types.Part) -> Item:
    item = normalize_part(part)
    for kind in ("call", "response"):
        if kind in item:
            del item[kind]["id"]
    return item


def fixed_order(turn: Sequence[Item], authors: Sequence[str], *, gathered: bool = False) -> list[Item]:
    """Return a turn in the fixed order of `per_author`.

    Of all events that have no earlier event on a related branch still in front of them, the one whose author comes
    first is taken, again and again.

    Args:
        turn: The events.
        authors: The user and the agents depth-first.
        gathered: Agents may interleave on one branch, too: only the user's events and an agent's own are related.
    """
    related = _same_author if gathered else _related
    rank = {author: index for index, author in enumerate(authors)}
    left: list[Item] = list(turn)
    ordered: list[Item] = []
    while left:
        free = [item for index, item in enumerate(left) if not any(related(item, other) for other in left[:index])]
        first = min(free, key=lambda item: rank.get(item.get("author", ""), len(rank)))
        # By identity: two events may be equal.
        left = [item for item in left if item is not first]
        ordered.append(first)
    return ordered


def _related(item: Item, other: Item) -> bool:
    if "author" not in item or "author" not in other:
        return True
    one, two = item["branch"], other["branch"]
    return is_on_branch(one, two) or is_on_branch(two, one)


def _same_author(item: Item, other: Item) -> bool:
    if "author" not in item or "author" not in other:
        return True
    return item["author"] == other["author"] or USER in (item["author"], other["author"])


def rename_ids(turns: Sequence[Sequence[Item]]) -> list[list[Item]]:
    """Return a log with calls named `c1`, `c2`, … and invocations `i1`, `i2`, … in order of first appearance."""
    names = Names()
    return [[names.rename(item) for item in turn] for turn in turns]


class Names:
    """The new names of the ids seen so far."""

    def __init__(self) -> None:
        self._calls: dict[str, str] = {}
        self._invocations: dict[str, str] = {}

    def key(self, idempotency_key: str) -> str:
        """Return a tool call's idempotency key in new names."""
        first, _, rest = idempotency_key.partition("/")
        # That of an imported log begins with a salt.
        invocation_id, call_id = (first, rest) if first in self._invocations else rest.split("/", 1)
        return f"{self._invocations.get(invocation_id, '?')}/{self._calls.get(call_id, '?')}"

    def rename(self, item: Item) -> Item:
        """Return an event of the normal form with its ids renamed."""
        if "author" not in item:
            return item
        renamed = {**item, "invocation": self._invocation(item["invocation"])}
        renamed |= {name: self._places(item[name]) for name in ("branch", "node") if item.get(name)}
        if "parts" in item:
            renamed["parts"] = [self._part(part) for part in item["parts"]]
        if "long_running" in item:
            renamed["long_running"] = [self._call(call_id) for call_id in item["long_running"]]
        actions: Item = item.get("actions", {})
        asking = [name for name in ("requested_tool_confirmations", "requested_auth_configs") if actions.get(name)]
        if asking:
            by_new_name = {name: {self._call(id): what for id, what in actions[name].items()} for name in asking}
            renamed["actions"] = {**actions, **by_new_name}
        return renamed

    def _places(self, path: str) -> str:
        """Return a branch, or a path of nodes, with the calls renamed by which agents were given tasks."""
        return _GIVEN.sub(lambda given: f"@{self._calls.get(given[1], given[1])}", path)

    def _part(self, part: Item) -> Item:
        for kind in ("call", "response"):
            if kind in part:
                value: Item = {**part[kind], "id": self._call(part[kind]["id"])}
                if kind == "call" and value["name"] == REQUEST_CONFIRMATION:
                    value["args"] = self._confirmation(value["args"])
                if kind == "call" and value["name"] == REQUEST_INPUT and "interruptId" in value["args"]:
                    value["args"] = dict(value["args"], interruptId=value["id"])
                if kind == "call" and value["name"] == REQUEST_CREDENTIAL:
                    value["args"] = self._credential(value["args"])
                return {kind: value}
        return part

    def _confirmation(self, args: Item) -> Item:
        original = asked_about(args)
        if "id" not in original:
            return args
        return {**args, "originalFunctionCall": {**original, "id": self._call(original["id"])}}

    def _credential(self, args: Item) -> Item:
        return dict(args, functionCallId=self._call(args.get("functionCallId")))

    def _call(self, call_id: str | None) -> str | None:
        if call_id is None:
            return None
        return self._calls.setdefault(call_id, f"c{len(self._calls) + 1}")

    def _invocation(self, invocation_id: str) -> str:
        return self._invocations.setdefault(invocation_id, f"i{len(self._invocations) + 1}")


def call_ids(events: Iterable[Event], name: str) -> list[str]:
    """Return the ids of the calls of a tool, in log order."""
    return [
        call.id
        for event in events
        if event.author != USER
        for call in event.get_function_calls()
        if call.name == name and call.id
    ]


def diff(expected: Sequence[Any], actual: Sequence[Any]) -> list[str]:
    """Return a readable diff of two lists of JSON values, one value a line; empty if they are equal.

    Values are compared as JSON, so `true` is not 1.
    """
    before, after = ([_line(value) for value in values] for values in (expected, actual))
    if before == after:
        return []
    # Everything fits into the context, so that the whole turn stands there; the three header lines say nothing.
    return list(difflib.unified_diff(before, after, n=len(before) + len(after), lineterm=""))[3:]


def _line(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)
