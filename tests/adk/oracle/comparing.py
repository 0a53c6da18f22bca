"""What was expected and what came, and how they differ, in words that a developer can use."""

from __future__ import annotations

import difflib
import json
import re
from collections import Counter
from typing import Any

from tests.adk.oracle.values import Json, as_list, as_object, many, one, parts

_SYMBOL = re.compile(r"\b(event|invocation|call|uuid)-\d+\b")
_MOST_SHOWN, _LONGEST_LINE = 300, 220


def unpacked(requests: list[Json]) -> list[Json]:
    """Return recorded model requests in full: each is kept as what is new since the same agent's request before."""
    before: dict[str, Json] = {}
    made: list[Json] = []
    for request in requests:
        last = before.get(request["model"], {"contents": []})
        full = {**last, **{key: value for key, value in request.items() if key != "same"}}
        full["contents"] = last["contents"][: request["same"]] + request["contents"]
        before[request["model"]] = full
        made.append(full)
    return made


def differences(expected: Json, got: Json, *, played: bool) -> list[str]:
    """Say how what came differs.

    Args:
        expected: What ADK did.
        got: What came here, in normal form.
        played: Whether the drive came to its end; else only its turns are compared.
    """
    found: list[str] = []
    for number, (want, have) in enumerate(zip(expected["turns"], got["turns"], strict=False), 1):
        where = f"turn {number}"
        for key in ("status", "error"):
            if want.get(key) != have.get(key):
                found.append(f"{where}: {key} is {have.get(key)!r}, not {want.get(key)!r}")
        found += _of_events(f"{where} events", many(want, "events"), many(have, "events"))
    if not played:
        return found
    for name, want in expected["sessions"].items():
        have = got["sessions"].get(name, {"state": {}, "stored": []})
        found += _of_values(f"session {name} state", want["state"], have["state"])
        found += _of_events(f"session {name} stored events", want["stored"], have["stored"])
    found += _of_values("artifacts", expected["artifacts"], got["artifacts"])
    found += _of_counts("effect", expected["effects"], got["effects"])
    return found + _of_counts("model request", expected["requests"], got["requests"])


def after_kills(expected: Json, got: Json) -> list[str]:
    """Say how what is left differs when turns were interrupted.

    What counts is the session at the end: each event once, each effect as often as on ADK; and no model was sent
    anything that ADK's was not.
    """
    found: list[str] = []
    wanted, came = _yielded(expected), _yielded(got)
    for name, want in expected["sessions"].items():
        have = got["sessions"].get(name, {"state": {}, "stored": []})
        found += _of_values(f"session {name} state", want["state"], have["state"])
        events = _renumbered([_in_full(event, wanted) for event in many(want, "stored")])
        stored = _renumbered([_in_full(event, came) for event in many(have, "stored")])
        found += _of_events(f"session {name} stored events", events, stored)
    found += _of_values("artifacts", expected["artifacts"], got["artifacts"])
    found += _of_counts("effect", expected["effects"], got["effects"])
    known = {_sorted_text(_renumbered([request])[0]) for request in expected["requests"]}
    strange: list[Json] = [
        request for request in got["requests"] if _sorted_text(_renumbered([request])[0]) not in known
    ]
    return found + [f"a model request that ADK does not make: {_brief(request)}" for request in strange]


def _yielded(result: Json) -> dict[str, Json]:
    events: list[Json] = [event for turn in result["turns"] for event in many(turn, "events")]
    return {event["id"]: event for event in events if not event.get("partial")}


def _in_full(event: Json, yielded: dict[str, Json]) -> Json:
    return yielded.get(event.get("yielded", ""), event)


def _renumbered(events: list[Json]) -> list[Json]:
    """Give ids new symbols, by first use in the log; deltas are left to the state and the artifacts."""
    symbols: dict[str, str] = {}

    def change(value: Any) -> Any:
        if isinstance(value, str):
            return _SYMBOL.sub(lambda known: symbols.setdefault(known[0], f"{known[1]}-#{len(symbols)}"), value)
        if (found := as_object(value)) is not None:
            return {key: change(item) for key, item in found.items()}
        items = as_list(value)
        return [change(item) for item in items] if items is not None else value

    made: list[Json] = []
    for event in events:
        kept = {key: value for key, value in event.items() if key not in ("partial", "actions")}
        deltas = ("stateDelta", "artifactDelta")
        actions = {key: value for key, value in one(event, "actions").items() if key not in deltas}
        made.append(change(dict(sorted((kept | ({"actions": actions} if actions else {})).items()))))
    return made


def _line(event: Json) -> str:
    """Return an event in one line."""
    said: list[str] = []
    for part in parts(event):
        if call := one(part, "functionCall"):
            said.append(f"calls {call['name']}({_text(call.get('args', {}))})")
        elif response := one(part, "functionResponse"):
            said.append(f"gets {response['name']} = {_text(response.get('response'))}")
        else:
            said.append(repr(part.get("text", "/".join(part))))
    more = ["partial"] if event.get("partial") else []
    more += [f"{key}={_text(event[key])}" for key in ("errorCode", "errorMessage", "output") if key in event]
    more += [f"{key}={_text(value)}" for key, value in one(event, "actions").items()]
    text = " ".join([event.get("yielded") or f"{event.get('author')}:", *said, *more])
    return text if len(text) < _LONGEST_LINE else f"{text[:_LONGEST_LINE]}..."


def _of_events(where: str, want: list[Json], have: list[Json]) -> list[str]:
    if len(want) == len(have):
        pairs = enumerate(zip(want, have, strict=True), 1)
        return [line for number, (left, right) in pairs for line in _of_values(f"{where}[{number}]", left, right)]
    lines = difflib.unified_diff([_line(event) for event in want], [_line(event) for event in have], lineterm="", n=50)
    return ["\n      ".join([f"{where}: {len(have)}, not {len(want)}", *[*lines][3:]])]


def _of_values(where: str, want: Any, have: Any) -> list[str]:
    wanted, came = as_object(want), as_object(have)
    if wanted is not None and came is not None:
        return [line for key in sorted(wanted | came) for line in _of_field(f"{where}.{key}", key, wanted, came)]
    left, right = as_list(want), as_list(have)
    if left is not None and right is not None and len(left) == len(right):
        pairs = enumerate(zip(left, right, strict=True))
        return [line for number, (one_, two) in pairs for line in _of_values(f"{where}[{number}]", one_, two)]
    same = want == have and isinstance(want, bool) == isinstance(have, bool)
    return [] if same else [f"{where} is {_brief(have)}; ADK: {_brief(want)}"]


def _of_field(where: str, key: str, want: Json, have: Json) -> list[str]:
    if key not in have:
        return [f"{where} is missing; ADK: {_brief(want[key])}"]
    if key not in want:
        return [f"{where} is {_brief(have[key])}; ADK has none"]
    return _of_values(where, want[key], have[key])


def _of_counts(what: str, want: list[Json], have: list[Json]) -> list[str]:
    """Say what was done less or more often than by ADK; the order is free, since calls may be parallel."""
    left, right = (Counter(_sorted_text(item) for item in items) for items in (want, have))
    missing = [json.loads(text) for text in sorted((left - right).elements())]
    extra = [json.loads(text) for text in sorted((right - left).elements())]
    found: list[str] = []
    while missing and extra and what == "model request":  # the same agent's requests side by side
        wanted = missing.pop(0)
        near = min(extra, key=lambda request: _distance(wanted, request))
        extra.remove(near)
        found += _of_values(f"a {what} of {wanted['model']}", wanted, near)
    found += [f"{what} missing: {_brief(item)}" for item in missing]
    return found + [f"{what} too often or not of ADK: {_brief(item)}" for item in extra]


def _distance(left: Json, right: Json) -> tuple[bool, int, bool]:
    here, there = many(left, "contents"), many(right, "contents")
    return left["model"] != right["model"], abs(len(here) - len(there)), here[-1:] != there[-1:]


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _sorted_text(value: Json) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True)


def _brief(value: Any) -> str:
    text = _text(value)
    return text if len(text) < _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."
