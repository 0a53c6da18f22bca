"""Puts the responses to a model's calls right behind them, as providers ask for it (SEMANTICS.md, R12, R13). Pure.

A provider refuses a conversation, with HTTP 400, in which a call has no response, a response no call, or an id stands
twice. A log may hold all of these: of calls that failed, were stopped or wait, and of imports.
ADK: `flows/llm_flows/tools/_rearranger.py`, which pairs by event.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import cast

from google.genai import types

from perdure.journal.events import USER, Event
from perdure.rules.ids import OWN_IDS, derived_id

PAYLOADS = ("inline_data", "file_data", "executable_code", "code_execution_result")
ECHOED = (*PAYLOADS, "tool_call", "tool_response")

Key = tuple[str | None, str | None]
"""What a response has in common with its call: an id, or without one the tool's name."""
_Place = tuple[int, int]
"""Where a call stands: in which item, and which of its parts it is."""


@dataclass(frozen=True, eq=False)
class Shown:
    """The part of one event that a model sees."""

    event: Event
    role: str
    parts: list[types.Part]
    """All but function responses; empty if there is nothing else."""
    responses: list[types.Part]
    """The function responses."""
    starts_turn: bool
    """A user's message or another agent's event. Answers join the other responses to their calls, which start none."""

    @cached_property
    def calls(self) -> list[int]:
        """Which of the parts are calls."""
        return [number for number, part in enumerate(self.parts) if part.function_call]

    @cached_property
    def content(self) -> types.Content:
        """The parts."""
        return content(self.role, self.parts)


@dataclass(frozen=True, eq=False)
class Turn:
    """A content of a request."""

    at: int
    """Which of the items it is of, or answers."""
    content: types.Content
    starts_turn: bool = False


@dataclass
class PairMemo:
    """A memo of contents made of equal items before; both hold what the keys' identities are of."""

    made: dict[tuple[object, ...], tuple[object, list[types.Content]]] = field(
        default_factory=dict[tuple[object, ...], tuple[object, list[types.Content]]]
    )


class Ids:
    """The ids of the calls in a request."""

    def __init__(self, before: Container[object] = ()) -> None:
        """Begin with those of what stands in front."""
        self._before = before
        self._own: set[str] = set()

    def __contains__(self, call_id: object) -> bool:
        """Return whether a call has this id already."""
        return call_id in self._own or call_id in self._before

    def add(self, call_id: str) -> None:
        """Take note that a call has this id."""
        self._own.add(call_id)

    def copy(self) -> Ids:
        """Return the same, to which others are added."""
        ids = Ids(self._before)
        ids._own |= self._own
        return ids


def pair(shown: Sequence[Shown], memo: PairMemo, used: Ids | None = None, *, ends: bool = True) -> list[Turn]:
    """Return a model's contents of a log: one for each item, and one for all responses to an item's calls.

    A call without a response is left out, and so is a response without a call. Responses stand in the order of their
    calls, the last one to each; what was said beside them comes behind. Every call has an id that no other has.

    Args:
        shown: The items, in order.
        memo: Of contents that were made before.
        used: The ids in front of them; theirs are added.
        ends: The log ends with them.
    """
    used = used or Ids()
    answers = _Answers(shown)
    kept = _without_aside(shown, answers) if ends else dict.fromkeys(_kept(shown, answers))
    joins = {
        at: caller for at in answers.callers if at in kept and (caller := answers.newest_caller(at, kept)) is not None
    }
    beside: dict[int, list[Shown]] = {}
    for at, caller in joins.items():
        if shown[at].parts and not shown[at].calls:
            beside.setdefault(caller, []).append(shown[at])
    turns: list[Turn] = []
    for at in kept:
        item = shown[at]
        if item.calls:
            responses = {number: answers.last[at, number] for number in item.calls if (at, number) in answers.last}
            ids = {number: _id(item, number, used) for number in responses}
            turns += [Turn(at, content) for content in _remembered(item, responses, beside.get(at, []), ids, memo)]
        elif item.parts and at not in joins:
            turns.append(Turn(at, item.content, item.starts_turn))
    return turns


class _Answers:
    """A table of a log's calls and the responses that answer them."""

    def __init__(self, shown: Sequence[Shown]) -> None:
        self.last: dict[_Place, types.Part] = {}
        """The last response to each call that has one."""
        self.callers: dict[int, list[int]] = {}
        """By item with responses: the items whose calls they answer, in log order."""
        newest: dict[Key, list[_Place]] = {}
        for at, item in enumerate(shown):
            if item.responses:
                self.callers[at] = sorted(self._answer(item, newest))
            calls: dict[Key, list[_Place]] = {}
            for number in item.calls:
                calls.setdefault(_key(item.parts[number].function_call), []).append((at, number))
            newest |= calls

    def _answer(self, item: Shown, newest: Mapping[Key, list[_Place]]) -> set[int]:
        seen: Counter[Key] = Counter()
        callers: set[int] = set()
        for part in item.responses:
            key = _key(part.function_response)
            places = newest.get(key)
            if places is None:
                continue
            # Logs from elsewhere may hold one id several times: in each turn, or twice in one.
            place = places[min(seen[key], len(places) - 1)]
            seen[key] += 1
            self.last[place] = part
            callers.add(place[0])
        return callers

    def newest_caller(self, at: int, kept: Container[int]) -> int | None:
        """Return the newest of the items that are kept and whose calls an item answers."""
        return next((caller for caller in reversed(self.callers.get(at, [])) if caller in kept), None)


def _kept(shown: Sequence[Shown], answers: _Answers) -> list[int]:
    return [at for at, item in enumerate(shown) if item.parts or answers.callers.get(at)]


def settled(shown: Sequence[Shown]) -> int:
    """Return how many of the first items make the same contents whatever comes, unless it answers a call in them."""
    answers = _Answers(shown)
    kept, edge = _kept(shown, answers), len(shown)
    if kept and (answered := answers.callers.get(kept[-1])):
        # What was said since then is left out for now.
        edge = answered[-1]
    at = len(shown) - 1
    while at >= edge:
        edge = min([edge, *answers.callers.get(at, [])])
        at -= 1
    return edge


def answers_any(item: Shown, calls: Container[Key]) -> bool:
    """Return whether an item answers a call that has one of these keys."""
    return any(_key(part.function_response) in calls for part in item.responses)


def call_keys(item: Shown) -> list[Key]:
    """Return by what responses find an item's calls."""
    return [_key(item.parts[number].function_call) for number in item.calls]


def _without_aside(shown: Sequence[Shown], answers: _Answers) -> dict[int, None]:
    """Return the items in order, without what was said since the call that the newest of them answers."""
    kept = _kept(shown, answers)
    if kept and (answered := answers.callers.get(kept[-1])):
        call = answered[-1]
        kept = [at for at in kept if at <= call or call in answers.callers.get(at, [])]
    return dict.fromkeys(kept)


def _remembered(
    item: Shown, responses: Mapping[int, types.Part], beside: Sequence[Shown], ids: Mapping[int, str], memo: PairMemo
) -> list[types.Content]:
    key = (id(item), *(id(part) for part in responses.values()), *(id(other) for other in beside), *ids.values())
    if key not in memo.made:
        memo.made[key] = ((item, responses, beside), _contents(item, responses, beside, ids))
    return memo.made[key][1]


def _contents(
    item: Shown, responses: Mapping[int, types.Part], beside: Sequence[Shown], ids: Mapping[int, str]
) -> list[types.Content]:
    """Return an item with the calls that have responses, and behind it these; nothing if no part is left to show."""
    parts: list[types.Part] = []
    answered: list[types.Part] = []
    lost: bytes | None = None
    for number, part in enumerate(item.parts):
        call = part.function_call
        if call is None:
            parts.append(part)
        elif number in responses:
            update: dict[str, object] = {"function_call": call.model_copy(update={"id": ids[number]})}
            if lost is not None and not answered and part.thought_signature is None:
                # Gemini 3 asks for the signature on a turn's first call, which may be one that is left out.
                update["thought_signature"] = lost
            parts.append(part.model_copy(update=update))
            answered.append(_response(responses[number], ids[number], call.name))
        else:
            lost = lost or part.thought_signature
    if not answered and not any(is_visible(part) for part in parts):
        return []
    behind = [*answered, *(part for other in beside for part in other.parts)]
    return [content(item.role, parts), *([content(USER, behind)] if behind else [])]


def _response(part: types.Part, call_id: str, name: str | None) -> types.Part:
    response = cast(types.FunctionResponse, part.function_response)
    return part.model_copy(update={"function_response": response.model_copy(update={"id": call_id, "name": name})})


def _id(item: Shown, number: int, used: Ids) -> str:
    """Return the call's own id, or another if it has none, or one that stands in the request already."""
    call_id = _called(item, number).id
    if not call_id or call_id in used:
        call_id = f"{OWN_IDS}{derived_id(item.event.id, item.event.timestamp, number)}"
    used.add(call_id)
    return call_id


def _called(item: Shown, number: int) -> types.FunctionCall:
    return cast(types.FunctionCall, item.parts[number].function_call)


def _key(value: types.FunctionCall | types.FunctionResponse | None) -> Key:
    if value is None:
        return (None, None)
    return (value.id, None) if value.id else (None, value.name)


def is_visible(part: types.Part) -> bool:
    """Return whether a part shows a model more than a thought."""
    if part.function_call or part.function_response:
        return True
    return not part.thought and bool(part.text or any(getattr(part, name) for name in ECHOED))


def content(role: str, parts: Sequence[types.Part]) -> types.Content:
    """Return a content of parts that come from contents, and are not validated once more: that is most of the work."""
    return types.Content.model_construct(role=role, parts=list(parts))
