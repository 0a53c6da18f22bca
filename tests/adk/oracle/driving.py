"""Drives one app over ADK's REST API as its drive.json says, and keeps all that came back."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.adk.oracle.killing import Killing
from tests.adk.oracle.rest import Api, Trouble
from tests.adk.oracle.values import Json, as_object, many, one, parts

CONFIRMATION, CREDENTIAL = "adk_request_confirmation", "adk_request_credential"

_SETTLED = 1.0
"""Seconds after which nothing more may come of a turn that was killed and has all its events."""


@dataclass
class _Session:
    id: str
    user: str
    path: str
    events: list[Json] = field(default_factory=list[Json])
    """What agents logged so far."""
    answered: set[str] = field(default_factory=set[str])
    """Ids of calls."""


class Drive:
    """One run through a drive, in sessions of its own."""

    def __init__(self, api: Api, drive: Json, killing: Killing | None = None) -> None:
        self._api, self._drive, self._killing = api, drive, killing
        self._run = uuid.uuid4().hex[:8]
        self._sessions: dict[str, _Session] = {}
        self.turns: list[Json] = []
        """What came of each turn so far."""

    def play(self) -> Iterator[None]:
        """Take the turns; stops at each mark at which the server may be started anew.

        Raises:
            Trouble: It cannot go on.
            OSError, ValueError, KeyError, TypeError: What came is not what the API promises.
        """
        for turn in self._drive["turns"]:
            if turn.get("restart"):
                self.turns.append({})
                yield
            else:
                self.turns.append(self._take(turn))

    def left(self) -> Json:
        """Return all that came, and what the sessions hold at the end.

        Raises:
            Trouble: A session cannot be read.
        """
        names = {session.id: f"session:{name}" for name, session in self._sessions.items()}
        names |= {session.user: f"user:{session.user.rpartition('-')[0]}" for session in self._sessions.values()}
        return {
            "turns": self.turns,
            "sessions": {name: self._api.get(session.path) for name, session in self._sessions.items()},
            "artifacts": {name: self._api.artifacts(session.path) for name, session in self._sessions.items()},
            "names": names,
        }

    def _session(self, name: str) -> _Session:
        """Return a session by its name in the drive; made when it is first used."""
        if name not in self._sessions:
            given = one(one(self._drive, "sessions"), name)
            user, id = f"{given.get('user', 'ann')}-{self._run}", f"{name}-{self._run}"
            sessions = f"{self._api.user_path(user)}/sessions"
            state = {"state": given["state"]} if "state" in given else {}
            status, text = self._api.send("POST", sessions, {"sessionId": id, **state})
            if status != 200:
                raise Trouble(f"a session cannot be made: {status} {text}")
            self._sessions[name] = _Session(id, user, f"{sessions}/{id}")
        return self._sessions[name]

    def _take(self, turn: Json) -> Json:
        session = self._session(turn.get("session", "main"))
        if "patch" in turn:
            return {"status": self._api.send("PATCH", session.path, {"stateDelta": turn["patch"]})[0]}
        if "remember" in turn:
            memory = f"{self._api.user_path(session.user)}/memory"
            return {"status": self._api.send("PATCH", memory, {"sessionId": session.id})[0]}
        if "upload" in turn:
            body = {"filename": turn["upload"]["filename"], "artifact": {"text": turn["upload"]["text"]}}
            return {"status": self._api.send("POST", f"{session.path}/artifacts", body)[0]}
        return self._message(turn, session)

    def _message(self, turn: Json, session: _Session) -> Json:
        body: Json = {"appName": self._api.app, "userId": session.user, "sessionId": session.id}
        if given := _message_parts(turn, session):
            body["newMessage"] = {"role": "user", "parts": given}
        if "state_delta" in turn:
            body["stateDelta"] = turn["state_delta"]
        if turn.get("resume"):
            body["invocationId"] = _invocation(turn["resume"], session)
        streams = bool(turn.get("streaming"))
        if self._killing is not None and not turn.get("fails"):
            return self._with_kill(self._killing, body, streams=streams, session=session)
        taken = self._api.run(body, streams=streams, frames=bool(turn.get("sse")))
        session.events += [event for event in taken["events"] if not event.get("partial")]
        return taken

    def _with_kill(self, killing: Killing, body: Json, *, streams: bool, session: _Session) -> Json:
        """Take a turn in which the server is killed once: it must end without anything more from the user."""
        before = len(self._stored(session))
        want = killing.expected["turns"][len(self.turns)]["events"]
        wanted = before + len({event["id"] for event in want if not event.get("partial")}) + ("newMessage" in body)
        killed = killing.during(lambda: self._api.run(body, streams=streams, frames=streams))
        end = time.monotonic() + killing.patience
        while (have := len(self._stored(session))) < wanted:
            if time.monotonic() > end:
                raise Trouble(
                    f"the turn is not finished {killing.patience:.0f} s after the kill: {have - before} of"
                    f" {wanted - before} events are stored"
                )
            time.sleep(0.2)
        time.sleep(_SETTLED if killed else 0)
        stored = self._stored(session)
        session.events = [event for event in stored if event.get("author") != "user"]
        made = dict.fromkeys(str(event.get("invocationId", "")) for event in stored[before:])
        return {"status": 200, "killed": killed, "invocations": list(made)}

    def _stored(self, session: _Session) -> list[Json]:
        return self._api.get(session.path)["events"]


def _invocation(which: Any, session: _Session) -> str:
    """Return an invocation's id: `True` is the last one of the session, a number the N-th from 1."""
    known: list[str] = list(dict.fromkeys(event["invocationId"] for event in session.events))
    if not known:
        raise Trouble("there is no invocation to resume")
    return known[-1] if which is True else known[int(which) - 1]


def _message_parts(turn: Json, session: _Session) -> list[Json]:
    made = list(many(turn, "parts"))
    if "text" in turn:
        made.append({"text": turn["text"]})
    for named, response in one(turn, "answer").items():
        made.append(_response_to(_open_call(named, session, _has_name), response))
    for named, decision in one(turn, "confirm").items():
        given = as_object(decision) or {"confirmed": decision}
        made.append(_response_to(_open_call(named, session, _asks_to_confirm), given))
    for named, credential in one(turn, "credential").items():
        asking = _open_call(named, session, lambda call, name: _asks_for_credential(call, name, session))
        made.append(_response_to(asking, {**asking["args"]["authConfig"], "exchangedAuthCredential": credential}))
    return made


def _open_call(named: str, session: _Session, fits: Callable[[Json, str], bool]) -> Json:
    """Return the call that is answered: the first open one of the name, or with NAME#2 the second of all."""
    name, _, number = named.partition("#")
    calls = _calls(session.events)
    found = [call for call in calls if fits(call, name)]
    chosen = found[int(number) - 1 :] if number else [call for call in found if call["id"] not in session.answered]
    if not chosen:
        raise Trouble(f"no call of {name} waits to be answered; there were: {[call['name'] for call in calls]}")
    session.answered.add(chosen[0]["id"])
    return chosen[0]


def _calls(events: list[Json]) -> list[Json]:
    calls = [one(part, "functionCall") for event in events for part in parts(event)]
    return list({call["id"]: call for call in calls if call.get("id")}.values())


def _has_name(call: Json, name: str) -> bool:
    return call["name"] == name


def _asks_to_confirm(call: Json, name: str) -> bool:
    return call["name"] == CONFIRMATION and call["args"]["originalFunctionCall"]["name"] == name


def _asks_for_credential(call: Json, name: str, session: _Session) -> bool:
    if call["name"] != CREDENTIAL:
        return False
    asking = [other for other in _calls(session.events) if other["id"] == call["args"].get("functionCallId")]
    return not asking or asking[0]["name"] == name


def _response_to(call: Json, response: Any) -> Json:
    return {"functionResponse": {"id": call["id"], "name": call["name"], "response": response}}
