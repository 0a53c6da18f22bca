"""Leaves out, on both sides, what only keeps books: `agentState`, `endOfAgent`. Versions differ in its order."""

from __future__ import annotations

import json
import re

from tests.adk.oracle.values import Json, filled, many, one, parts

_BOOKS = {"agentState", "endOfAgent"}
_SAYS = ("errorCode", "errorMessage", "output", "route", "longRunningToolIds", "partial")


def _keeps_books(event: Json) -> bool:
    """Return whether an event has nothing in it but an agent's state or end."""
    actions = filled(one(event, "actions")).keys()
    says = parts(event) or any(event.get(key) for key in _SAYS)
    return bool(actions & _BOOKS) and not actions - _BOOKS and not says


def _without_books(event: Json) -> Json:
    """Return an event less the books that it keeps beside what it says."""
    actions = {key: value for key, value in one(event, "actions").items() if key not in _BOOKS}
    made = {key: value for key, value in event.items() if key != "actions"}
    return {**made, "actions": actions} if actions else made


def _left(events: list[Json]) -> list[Json]:
    return [_without_books(event) for event in events if not _keeps_books(event)]


def _left_of_turns(turns: list[Json]) -> list[Json]:
    return [{**turn, "events": _left(turn["events"])} if "events" in turn else turn for turn in turns]


def of_raw(raw: Json) -> Json:
    """Return what a drive got, without books."""
    sessions = {name: {**session, "events": _left(session["events"])} for name, session in raw["sessions"].items()}
    return {**raw, "turns": _left_of_turns(raw["turns"]), "sessions": sessions}


def of_expected(expected: Json) -> Json:
    """Return an expectation without books, its symbols of events given anew."""
    gone = {event["id"] for turn in expected["turns"] for event in many(turn, "events") if _keeps_books(event)}
    turns = _left_of_turns(expected["turns"])
    sessions: dict[str, Json] = {}
    for name, session in expected["sessions"].items():
        stored: list[Json] = [event for event in session["stored"] if event.get("yielded") not in gone]
        kept = [event if "yielded" in event else _without_books(event) for event in stored if not _keeps_books(event)]
        sessions[name] = {**session, "stored": kept}
    order: list[str] = [event["id"] for turn in turns for event in many(turn, "events")]
    order += [event["id"] for session in sessions.values() for event in session["stored"] if "id" in event]
    symbols = {old: f"event-{number}" for number, old in enumerate(dict.fromkeys(order), 1)}
    text = json.dumps({**expected, "turns": turns, "sessions": sessions}, ensure_ascii=False)
    made: Json = json.loads(re.sub(r"\bevent-\d+\b", lambda found: symbols.get(found.group(), found.group()), text))
    return made
