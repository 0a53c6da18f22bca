"""Ways to spoil a log: each changes the lines of a real one in place, drawn from a seed.

A line is the JSON of an event, or an export's line with an entry of Perdure's own, which may hold an event.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from typing import Any, cast

from perdure.trajectories.export_file import MARK

Json = dict[str, Any]


@dataclass
class Spoiler:
    """A log under mutation, and what its mutations are drawn from."""

    lines: list[Json]
    rng: Random
    others: list[Json]
    """Events of other logs."""
    names: list[str]
    """Of the app's agents and tools."""

    def events(self) -> list[Json]:
        """Return the events, where they stand."""
        return list(_events(self.lines))

    def event(self, having: str = "") -> Json:
        """Return some event; one with calls or responses, where there is any. A log without one is left alone."""
        events = self.events() or [{}]
        return (
            self.rng.choice([one for one in events if list(_parts(one, having))] or events)
            if having
            else (self.rng.choice(events))
        )

    def calls(self, kind: str = "functionCall") -> list[Json]:
        return [part[kind] for event in self.events() for part in _parts(event, kind)]

    def place(self) -> int:
        return self.rng.randrange(len(self.lines))

    def of(self, *values: Any) -> Any:
        return copy.deepcopy(self.rng.choice(values))

    def actions(self, event: Json | None = None) -> Json:
        return _held(event or self.event(), "actions")


def _events(lines: list[Json]) -> Iterator[Json]:
    for line in lines:
        found: Any = line
        while isinstance(found, dict) and (key := next((key for key in (MARK, "entry") if key in found), "")):
            found = cast(Json, found)[key]
        if isinstance(found, dict) and "kind" in found:
            found = cast(Json, found).get("event")
        if isinstance(found, dict):
            yield cast(Json, found)


def _parts(event: Json, kind: str) -> Iterator[Json]:
    content: Any = event.get("content")
    for part in content.get("parts") or () if isinstance(content, dict) else ():  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType] -- JSON
        if isinstance(part, dict) and isinstance(part.get(kind), dict):  # pyright: ignore[reportUnknownMemberType] -- JSON
            yield cast(Json, part)


def _held(value: Json, key: str) -> Json:
    if not isinstance(value.get(key), dict):
        value[key] = {}
    return value[key]


def _content(event: Json) -> list[Any]:
    content = _held(event, "content")
    found: Any = content.get("parts")
    parts = cast("list[Any]", found) if isinstance(found, list) else list[Any]()
    content["parts"] = parts
    return parts


def _keys(holder: Any) -> list[Any]:
    """Return the keys of an object, or the places of a list."""
    return list(cast(Json, holder)) if isinstance(holder, dict) else list(range(len(cast("list[Any]", holder))))


def nested(levels: int) -> list[Any]:
    found: list[Any] = []
    for _ in range(levels):
        found = [found]
    return found


ODD: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 7, 10**30, 1.5, float("nan"), float("inf"), -0.0, 1e300),
    *("", " ", "user", "x" * 5_000, "\ud800", "\x00", "a\u202eb", "__proto__", "e-1", "Ω" * 70),
    *([], {}, [[]], [None], [{}], {"": None}, {"kind": "event"}, {"name": 7}, {"id": ["c"]}),
)
"""Values of every type, none of which a log has in most places."""

_DEEPER = "[deeper than Python copies]"

TOO_MUCH: tuple[Any, ...] = (nested(90), nested(120), _DEEPER, "x" * 1_900_000)


def written(lines: list[Json]) -> str:
    """Return a log as text, one line each."""
    return "\n".join(map(json.dumps, lines)).replace(json.dumps(_DEEPER), "[" * 3_000 + "]" * 3_000)


def _drop(log: Spoiler) -> None:
    del log.lines[log.place()]


def _double(log: Spoiler) -> None:
    log.lines.insert(log.place(), copy.deepcopy(log.lines[log.place()]))


def _double_anew(log: Spoiler) -> None:
    """Doubled, with event ids of its own."""
    at = log.place()
    log.lines.insert(at + 1, again := copy.deepcopy(log.lines[at]))
    for event in _events([again]):
        event["id"] = "again"


def _swap(log: Spoiler) -> None:
    a, b = log.place(), log.place()
    log.lines[a], log.lines[b] = log.lines[b], log.lines[a]


def _swap_neighbours(log: Spoiler) -> None:
    at = log.place()
    log.lines[at : at + 2] = reversed(log.lines[at : at + 2])


def _cut(log: Spoiler) -> None:
    del log.lines[log.place() + 1 :]


def _cut_front(log: Spoiler) -> None:
    del log.lines[: log.place()]


def _reverse(log: Spoiler) -> None:
    log.lines.reverse()


def _foreign(log: Spoiler) -> None:
    """An event of another session's."""
    log.lines.insert(log.place(), copy.deepcopy(log.rng.choice(log.others)))


def _foreign_here(log: Spoiler) -> None:
    """An event of another session's, in an invocation of this one."""
    event = copy.deepcopy(log.rng.choice(log.others)) | {"invocationId": log.event().get("invocationId"), "id": "other"}
    log.lines.insert(log.place(), event)


def _end_again(log: Spoiler) -> None:
    """The last events once more, in an invocation of their own."""
    tail = copy.deepcopy(log.lines[log.place() :])
    for event in _events(tail):
        event["id"], event["invocationId"] = "", "i-again"
    log.lines += tail


def _of_others(key: str, *more: Any) -> Callable[[Spoiler], None]:
    """Give an event another one's value of a field, or one of some."""

    def mutate(log: Spoiler) -> None:
        log.event()[key] = log.of(*more, *(event.get(key) for event in log.events()))

    return mutate


def _name(log: Spoiler, part: Json, key: str = "name") -> None:
    part[key] = log.of(*log.names, *QUESTIONS, "", None, "no such tool", 7, "x" * 100)


QUESTIONS = (
    *("adk_request_confirmation", "adk_request_credential", "adk_request_input", "perdure_reconcile", "adk_framework"),
    *("transfer_to_agent", "set_model_response", "exit_loop"),
)


def _call_id(kind: str) -> Callable[[Spoiler], None]:
    def mutate(log: Spoiler) -> None:
        for found in log.rng.sample(log.calls(kind), k=min(1, len(log.calls(kind)))):
            found["id"] = log.of("", None, "new", *(call.get("id") for call in log.calls()))

    return mutate


def _call_name(kind: str) -> Callable[[Spoiler], None]:
    def mutate(log: Spoiler) -> None:
        for found in log.rng.sample(log.calls(kind), k=min(1, len(log.calls(kind)))):
            _name(log, found)

    return mutate


def _args(kind: str, key: str) -> Callable[[Spoiler], None]:
    def mutate(log: Spoiler) -> None:
        for found in log.rng.sample(log.calls(kind), k=min(1, len(log.calls(kind)))):
            found[key] = log.of(*ODD, {"agent_name": log.rng.choice(log.names)}, {"confirmed": "maybe"})

    return mutate


def _no_call(log: Spoiler) -> None:
    """A response whose call is gone."""
    event = log.event("functionCall")
    event["content"] = {"role": "model", "parts": [{"text": "I call nothing."}]}
    event.pop("longRunningToolIds", None)


def _no_response(log: Spoiler) -> None:
    log.event("functionResponse")["content"] = None


def _response_early(log: Spoiler) -> None:
    """A response in front of its call."""
    event = log.event("functionResponse")
    at = next((index for index, line in enumerate(log.lines) if line is event), None)
    if at is not None:
        log.lines.insert(log.rng.randrange(at + 1), log.lines.pop(at))


def _two_in_a_part(log: Spoiler) -> None:
    part = log.rng.choice(_content(log.event()) or [{}])
    if isinstance(part, dict):
        part["functionResponse"] = {"id": log.of("c", *(call.get("id") for call in log.calls())), "name": "x"}
        part["text"] = "both"


def _more_parts(log: Spoiler) -> None:
    _content(log.event()).extend(log.of(*PARTS) for _ in range(log.of(1, 3, 40)))


PARTS: tuple[Json, ...] = (
    {},
    {"text": ""},
    {"text": "hm", "thought": True},
    {"thoughtSignature": "AAAA"},
    {"thoughtSignature": "no base64!"},
    {"inlineData": {"mimeType": "image/png", "data": "AAAA"}},
    {"inlineData": {"mimeType": "image/png", "data": "%%%"}},
    {"fileData": {"fileUri": "gs://x/y"}},
    {"executableCode": {"code": "1", "language": "PYTHON"}},
    {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "2"}},
    {"functionCall": {"id": "more", "name": "look", "args": {}}},
    {"functionCall": {"name": "look"}},
    {"functionResponse": {"id": "more", "name": "look", "response": {}}},
    {"functionResponse": {"name": "look"}},
    {"functionCall": {"id": "k", "name": "adk_request_confirmation", "args": {"originalFunctionCall": {"id": "c"}}}},
    {"toolCall": {"id": "t", "toolType": "GOOGLE_SEARCH_WEB"}},
    {"novel": 1},
)


def _long_running(log: Spoiler) -> None:
    event = log.event("functionCall")
    ids = [part["functionCall"].get("id") for part in _parts(event, "functionCall")]
    event["longRunningToolIds"] = log.of(None, [], ids, ids[:1], ["unknown"], [*ids, "unknown"], [7], "c", [None])


def _confirmations(log: Spoiler) -> None:
    ids = [call.get("id") for call in log.calls()]
    asked = log.of({}, {"hint": "?"}, {"confirmed": True}, {"hint": 7}, {"payload": {"a": 1}})
    log.actions()["requestedToolConfirmations"] = {str(log.of("foreign", *ids)): asked}


def _credentials(log: Spoiler) -> None:
    config = log.of({}, None, {"credentialKey": "k"}, {"authScheme": {"type": "oauth2"}}, "x")
    log.actions()["requestedAuthConfigs"] = {str(log.of("foreign", *(call.get("id") for call in log.calls()))): config}


def _question(log: Spoiler) -> None:
    """A question about a call of this log, or of none."""
    call: Json = log.of(NO_CALL, *log.calls())
    name, agent = log.of(*QUESTIONS[:4]), log.event().get("author")
    asks: Json = {"id": "q", "name": name, "args": {"originalFunctionCall": call, "toolConfirmation": {}}}
    event: Json = {"id": "question", "author": agent, "invocationId": log.event().get("invocationId")}
    event |= {"longRunningToolIds": ["q"], "content": {"role": "model", "parts": [{"functionCall": asks}]}}
    log.lines.insert(log.place() + 1, event)
    if log.of(True, False):
        said = {"id": "q", "name": name, "response": log.of({"confirmed": True}, {}, {"run_again": True}, None)}
        answer = {"role": "user", "parts": [{"functionResponse": said}]}
        log.lines.append(event | {"id": "answer", "author": "user", "longRunningToolIds": None, "content": answer})


NO_CALL: Json = {"id": "none", "name": "look", "args": {}}


def _rewind(log: Spoiler) -> None:
    where = log.of("none", "", *(event.get("invocationId") for event in log.events()))
    event = {"id": "rewind", "author": "user", "invocationId": log.of("i-rewind", "", where)}
    log.lines.insert(log.place() + 1, event | {"actions": {"rewindBeforeInvocationId": where}})


def _rewind_beside(log: Spoiler) -> None:
    where = log.of("none", *(event.get("invocationId") for event in log.events()))
    log.actions()["rewindBeforeInvocationId"] = where


def _compaction(log: Spoiler) -> None:
    times = [event.get("timestamp", 0) for event in log.events()]
    content = log.of({"role": "model", "parts": [{"text": "All that."}]}, None, {}, {"parts": [PARTS[10], PARTS[12]]})
    start, end = log.of(0, *times), log.of(0, 10**12, *times)
    compaction = {"startTimestamp": start, "endTimestamp": end, "compactedContent": content}
    compaction |= log.of({}, {}, {"startTimestamp": "a"}, {"endTimestamp": None})
    event = {"id": "summary", "author": "user", "invocationId": log.of("i-summary", *_ids(log)), "timestamp": end}
    log.lines.insert(log.place() + 1, event | {"actions": {"compaction": compaction}})


def _ids(log: Spoiler) -> list[Any]:
    return [event.get("invocationId") for event in log.events()]


def _action(key: str, *values: Any) -> Callable[[Spoiler], None]:
    def mutate(log: Spoiler) -> None:
        log.actions()[key] = log.of(*values)

    return mutate


def _transfer(log: Spoiler) -> None:
    log.actions()["transferToAgent"] = log.of(*log.names, "nobody", "", "user", 7)


def _checkpoint(log: Spoiler) -> None:
    """A place for an agent to stand at that it may not have."""
    state = log.of(
        {},
        {"current_sub_agent": log.rng.choice(log.names)},
        {"current_sub_agent": "nobody"},
        {"current_sub_agent": 7, "times_looped": "many"},
        {"current_sub_agent": log.rng.choice(log.names), "times_looped": 10**9},
        {"times_looped": True},
        {"step": 10**9},
        {"step": -1},
        {"step": "x"},
        {"at": nested(5)},
    )
    agent = log.of(*log.names, *(event.get("author") for event in log.events()))
    event: Json = {"id": "state", "author": agent, "invocationId": log.event().get("invocationId")}
    log.lines.insert(log.place() + 1, event | {"actions": {"agentState": state}})


def _times(log: Spoiler) -> None:
    kind = log.of("reversed", "equal", "odd", "missing")
    events = log.events()
    for number, event in enumerate(events):
        event["timestamp"] = {"reversed": 1e9 - number, "equal": 5, "odd": log.of(*TIMES), "missing": 0}[kind]


TIMES: tuple[Any, ...] = (0, -1, 1e9, 1e12, 1e300, float("nan"), float("inf"), "now", None, 10**400)


def _descend(log: Spoiler, often: float) -> tuple[Any, Any]:
    """Return a list or an object somewhere in a line, and one of its keys; `None` where one is empty."""
    holder: Any = log.rng.choice(log.lines or [{}])
    while keys := _keys(holder):
        key = log.rng.choice(keys)
        inner: Any = holder[key]
        if not isinstance(inner, (dict, list)) or not inner or log.rng.random() < often:
            return holder, key
        holder = cast("Json | list[Any]", inner)
    return None, None


def _put(log: Spoiler, *values: Any) -> None:
    holder, key = _descend(log, 0.2)
    if holder is not None:
        holder[key] = log.of(*values)


def _odd_value(log: Spoiler) -> None:
    """A value that no log has there, at any depth."""
    _put(log, *ODD)


def _too_much(log: Spoiler) -> None:
    _put(log, *TOO_MUCH)


def _without(log: Spoiler) -> None:
    """A field is missing, at any depth."""
    holder, key = _descend(log, 0.3)
    if holder is not None:
        del holder[key]


def _wrong_fields(log: Spoiler) -> None:
    """Odd values in fields that a log has seldom, or never."""
    log.event()[log.of(*FIELDS)] = log.of(*ODD)


FIELDS = (
    *("nodeInfo", "isolationScope", "customMetadata", "output", "errorCode", "errorMessage", "finishReason", "novel"),
    *("usageMetadata", "groundingMetadata", "interrupted", "turnComplete", "actions", "content", "branch", "author"),
    *("interactionId", "invocation_id", "long_running_tool_ids", "perdure", "kind", "events"),
)


def _node(log: Spoiler) -> None:
    name = log.rng.choice(log.names)
    log.event()["nodeInfo"] = log.of(
        *({"path": name}, {"path": f"{name}@1"}, {"path": f"a@1/{name}@2"}, {"path": "/" * 50}, {"path": 7}, {}),
        *({"path": f"{name}@1", "outputFor": [name]}, {"path": f"{name}@x", "messageAsOutput": True}),
    )


def _huge(log: Spoiler) -> None:
    """More of something than anybody has."""
    kind = log.of("parts", "calls", "keys", "events", "branch", "texts")
    event = log.event()
    match kind:
        case "parts":
            _content(event).extend({"text": "x"} for _ in range(1_500))
        case "calls":
            _content(event).extend({"functionCall": {"id": f"n{n}", "name": "look", "args": {}}} for n in range(300))
        case "keys":
            _held(log.actions(event), "stateDelta").update({f"k{n}": n for n in range(1_500)})
        case "events":
            some = {"author": event.get("author"), "invocationId": event.get("invocationId"), "content": None}
            log.lines.extend(copy.deepcopy(some) for _ in range(500))
        case "branch":
            event["branch"] = ".".join(["fan", "a"] * log.of(40, 51, 5_000))
        case _:
            _content(event).append({"text": "x" * 1_000_000})


def _other_author(log: Spoiler) -> None:
    """Everything that one says is another's."""
    events = log.events()
    who, other = log.rng.choice(events).get("author"), log.of("user", "nobody", *log.names)
    for event in events:
        if event.get("author") == who:
            event["author"] = other


def _two_sessions(log: Spoiler) -> None:
    """Two logs, one in the other."""
    for other in log.rng.sample(log.others, k=min(4, len(log.others))):
        log.lines.insert(log.place(), copy.deepcopy(other))


MUTATIONS: dict[str, Callable[[Spoiler], None]] = {
    "dropped": _drop,
    "doubled": _double,
    "doubled with another id": _double_anew,
    "swapped": _swap,
    "neighbours swapped": _swap_neighbours,
    "cut behind": _cut,
    "cut in front": _cut_front,
    "reversed": _reverse,
    "another session's event": _foreign,
    "another session's event, in this invocation": _foreign_here,
    "two logs in one": _two_sessions,
    "its end again": _end_again,
    "id": _of_others("id", "", None, 7, "x" * 3_000),
    "author": _of_others("author", "user", "nobody", "", "model", "system"),
    "everything of an author another's": _other_author,
    "invocation": _of_others("invocationId", "", "new", None),
    "branch": _of_others("branch", "fan.a", "fan", ".", "a..b", "fan.a.in.b", 7),
    "node": _node,
    "isolation scope": _of_others("isolationScope", "x", "", 7),
    "call gone": _no_call,
    "response gone": _no_response,
    "response early": _response_early,
    "call's id": _call_id("functionCall"),
    "response's id": _call_id("functionResponse"),
    "call's name": _call_name("functionCall"),
    "response's name": _call_name("functionResponse"),
    "call's arguments": _args("functionCall", "args"),
    "response's value": _args("functionResponse", "response"),
    "two in a part": _two_in_a_part,
    "more parts": _more_parts,
    "long-running ids": _long_running,
    "confirmations": _confirmations,
    "credentials": _credentials,
    "a question": _question,
    "a rewind": _rewind,
    "a rewind beside": _rewind_beside,
    "a summary": _compaction,
    "a transfer": _transfer,
    "a checkpoint": _checkpoint,
    "an end": _action("endOfAgent", True, False, 1),
    "an escalation": _action("escalate", True, "yes"),
    "no summary": _action("skipSummarization", True),
    "state": _action(
        "stateDelta", {"app:x": 1}, {"user:x": [1]}, {"temp:x": 1}, {"": 0}, {"x" * 3_000: 1}, {"a": nested(60)}, [1]
    ),
    "artifacts": _action("artifactDelta", {"../x": 1}, {"x": -1}, {"x": 10**30}, {"x": "1"}),
    "route": _action("route", "x", [1, "x"], True, 1.5, {}),
    "answer of a schema": _action("setModelResponse", 1, {"a": 1}, "x"),
    "times": _times,
    "flags": _of_others("partial", True, False, 1, "no"),
    "an error code": _of_others("errorCode", "SAFETY", "RuntimeError", "", 7),
    "a finish reason": _of_others("finishReason", "SAFETY", "STOP", "MALFORMED_FUNCTION_CALL", "novel", 7),
    "an odd value": _odd_value,
    "a field missing": _without,
    "an odd field": _wrong_fields,
    "too deep, or too large": _too_much,
    "too many": _huge,
}
