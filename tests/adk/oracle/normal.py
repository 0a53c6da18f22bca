"""The normal form of what a drive got: ids become symbols by first use, times go, free orders are made fixed."""

from __future__ import annotations

import re
from itertools import groupby
from typing import Any

from tests.adk.oracle.values import Json, as_list, as_object, filled, many, one, parts

IGNORED = ("nodeInfo",)
"""Fields of events that are not compared: nodes of google.adk 2, which has none in agent trees but by chance."""

_CLOCK = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d)?")
_SOURCE = re.compile(r'File "[^"]*site-packages/([^"]+)", line \d+')
_UUID = re.compile(r"(?:adk-|e-|p-)?[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_TIMES = {"timestamp", "lastUpdateTime", "createTime", "updateTime", "startTimestamp", "endTimestamp", "error_details"}
_CONTEXT, _INSTRUCTION = "For context:", "<<<BEGIN_SYSTEM_INSTRUCTION>>>"
_DELTAS = ("stateDelta", "artifactDelta")


class _Names:
    """Symbols for ids. All ids that events have in known places are found first; other uuids are found anywhere."""

    def __init__(self, known: dict[str, str]) -> None:
        self._known = dict(known)
        self._counts: dict[str, int] = {}

    def add(self, kind: str, value: str | None) -> None:
        if value and value not in self._known:
            self._counts[kind] = self._counts.get(kind, 0) + 1
            self._known[value] = f"{kind}-{self._counts[kind]}"

    def add_event(self, event: Json) -> None:
        self.add("invocation", event.get("invocationId"))
        self.add("event", event.get("id"))
        for part in parts(event):
            for key in ("functionCall", "functionResponse"):
                self.add("call", one(part, key).get("id"))

    def text(self, text: str) -> str:
        if text in self._known:
            return self._known[text]
        for value in sorted((known for known in self._known if known in text), key=len, reverse=True):
            text = text.replace(value, self._known[value])

        def other(found: re.Match[str]) -> str:
            self.add("uuid", found.group())
            return self._known[found.group()]

        return _SOURCE.sub(r'File "\1"', _CLOCK.sub("TIME", _UUID.sub(other, text)))

    def apply(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.text(value)
        if (found := as_object(value)) is not None:
            return {self.text(key): self.apply(item) for key, item in found.items() if key not in _TIMES}
        items = as_list(value)
        return [self.apply(item) for item in items] if items is not None else value

    def event(self, event: Json) -> Json:
        """Return an event with symbols. The ids of its long-running calls are a set."""
        made: Json = self.apply(_clean(event))
        if "longRunningToolIds" in made:
            made["longRunningToolIds"] = sorted(made["longRunningToolIds"], key=lambda name: (len(name), name))
        return made


def normal(raw: Json, drive: Json) -> Json:
    """Return what is compared.

    Args:
        raw: What `Drive` got, with the lines of the ledger.
        drive: Its drive.
    """
    turns: list[Json] = [{key: value for key, value in turn.items() if key != "text"} for turn in raw["turns"]]
    frees: list[str | None] = [turn.get("free") for turn in drive["turns"][: len(turns)]]
    names, free_of = _Names(raw["names"]), dict[str, str | None]()
    for turn, free in zip(turns, frees, strict=True):
        if "events" in turn:
            turn["events"] = _ordered(turn["events"], free)
        free_of |= {event["invocationId"]: free for event in many(turn, "events")}
        free_of |= dict.fromkeys(turn.get("invocations", []), free)
        for event in many(turn, "events"):
            names.add_event(event)
    yielded = {event["id"]: event for turn in turns for event in many(turn, "events") if not event.get("partial")}
    stored: dict[str, list[Json]] = {}
    for name, session in raw["sessions"].items():
        stored[name] = _by_turn(session["events"], free_of)
        for event in stored[name]:
            names.add_event(event)
    ledger: list[Json] = raw["ledger"]
    return {
        "turns": [_turn(turn, names) for turn in turns],
        "sessions": {
            name: {
                "state": names.apply(raw["sessions"][name]["state"]),
                "stored": [names.event(_short(event, yielded)) for event in events],
            }
            for name, events in stored.items()
        },
        "artifacts": {name: names.apply(found) for name, found in raw["artifacts"].items() if found},
        "effects": [names.apply(line) for line in ledger if "effect" in line],
        "requests": [
            names.apply({**line, "contents": _contexts(line["contents"], free=any(frees))})
            for line in ledger
            if "model" in line
        ],
    }


def without_ignored(value: Any) -> Any:
    """Return an expectation less the fields of events that are not compared."""
    if (found := as_object(value)) is not None:
        event = "author" in found
        return {key: without_ignored(item) for key, item in found.items() if not (event and key in IGNORED)}
    items = as_list(value)
    return [without_ignored(item) for item in items] if items is not None else value


def _turn(turn: Json, names: _Names) -> Json:
    made: Json = names.apply({key: value for key, value in turn.items() if key != "events"})
    return {**made, "events": [names.event(event) for event in turn["events"]]} if "events" in turn else made


def _ordered(events: list[Json], free: str | None) -> list[Json]:
    """With a free order only the order within each branch (or of each author in each branch) counts."""
    keys = ("author", "branch") if free == "author" else ("branch",)
    return sorted(events, key=lambda event: [event.get(key) or "" for key in keys]) if free else events


def _by_turn(events: list[Json], free_of: dict[str, str | None]) -> list[Json]:
    """Return stored events, those of one invocation that stand together in the same order as the yielded ones."""
    made: list[Json] = []
    for invocation, group in groupby(events, key=lambda event: str(event.get("invocationId", ""))):
        together = list(group)
        free = free_of.get(invocation)
        mine = [event for event in together if event.get("author") == "user"] if free else []
        made += mine + _ordered([event for event in together if event not in mine], free)
    return made


def _contexts(contents: list[Json], *, free: bool) -> list[Json]:
    """Return what a model was sent, less ADK's own sentences.

    The one before what other agents did is cut short, and where orders are free, neighbours of that kind are sorted.
    """
    made: list[Json] = []
    waiting: list[Json] = []
    for content in [*contents, None]:
        given = many(content, "parts") if content else []
        first = str(given[0].get("text", "")) if given else ""
        if content and first.startswith(_CONTEXT):
            waiting.append({**content, "parts": [{"text": _CONTEXT}, *given[1:]]})
            continue
        made += sorted(waiting, key=str) if free else waiting
        waiting = []
        if content and _INSTRUCTION in first:
            content = {**content, "parts": [{"text": first[first.rindex(_INSTRUCTION) :]}, *given[1:]]}
        made += [content] if content else []
    return made


def _clean(event: Json) -> Json:
    kept = {key: value for key, value in event.items() if key not in IGNORED}
    if "actions" in kept:
        # ADK's partial events share their actions with the final one: what they show is chance.
        hidden = ("stateDelta",) if event.get("partial") else ()
        kept["actions"] = filled({key: value for key, value in one(kept, "actions").items() if key not in hidden})
    return filled(kept)


def _short(event: Json, yielded: dict[str, Json]) -> Json:
    """Return a stored event that was yielded just so as its name only."""
    before = yielded.get(event.get("id", ""))
    return {"yielded": event["id"]} if before is not None and _bare(before) == _bare(event) else event


def _bare(event: Json) -> Json:
    """Return an event without its deltas: ADK's stores show lists there that were changed in place later."""
    made = {key: value for key, value in filled(event).items() if key not in _TIMES}
    made["actions"] = {key: value for key, value in filled(one(event, "actions")).items() if key not in _DELTAS}
    made["longRunningToolIds"] = sorted(event.get("longRunningToolIds") or [])
    return made
