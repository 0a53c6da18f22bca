"""Drives apps on one server, and says how what came of each differs from what ADK did."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

from tests.adk.oracle import checkpoints, comparing
from tests.adk.oracle.driving import Drive
from tests.adk.oracle.killing import Killing
from tests.adk.oracle.normal import normal, without_ignored
from tests.adk.oracle.rest import Api, Trouble
from tests.adk.oracle.serving import Place, read_drives
from tests.adk.oracle.values import Json, as_object

APPS = Path(__file__).parent / "apps"
"""The project's own."""

RECORDED = {"1": "1.39.1", "2": "2.13.0"}
"""Whose truth counts for an installed google-adk, by its major version."""

_DELAY = 0.5
"""Seconds of a model call in which the server is killed."""


@dataclass
class Result:
    """What came of one app."""

    app: str
    differences: list[str] = field(default_factory=list[str])
    passed_over: str | None = None
    """Why the app does not count."""
    kills: int = 0


def check(
    folder: Path = APPS, names: Sequence[str] = (), *, kill: tuple[str, int] | None = None, patience: float = 60
) -> list[Result]:
    """Drive the apps of a folder.

    Without kills, the server is killed once all apps stand at their first restart mark, between turns, and started
    again; and so on for further marks.

    Args:
        folder: Of the apps.
        names: Only these; all if there are none.
        kill: In each turn kill the server at the N-th `model` call or `effect`, and start it again.
        patience: Seconds that a killed turn has to come to its end.

    Raises:
        FileNotFoundError: An app of a name is not there.
        NotServed: The server does not start.
    """
    drives = read_drives(folder, list(names))
    truths = {name: recorded_truth(folder / name) for name in drives}
    counted = {name: drive for name, drive in drives.items() if truths[name] is not None}
    with Place(folder, counted, delay=_DELAY if kill else 0) as place:
        place.start()
        playing = [_Playing(app, drive, place) for app, drive in counted.items()]
        for one in playing:
            if kill:
                one.kill_in_each_turn(Killing(*kill, place.ledger, place.restart, truths[one.app] or {}, patience))
        going = playing
        while going := [one for one in going if one.goes_on()]:
            if not kill:
                place.restart()
        results = {one.app: _judge(one, truths[one.app] or {}) for one in playing}
    return [results.get(name, Result(name, passed_over=f"not recorded on {_recorded()}")) for name in drives]


def _recorded() -> str:
    return RECORDED[version("google-adk").partition(".")[0]]


def recorded_truth(folder: Path) -> Json | None:
    """Return what ADK's installed version did with an app, as far as it is compared; `None` if it was not recorded."""
    path = folder / f"expect.{_recorded()}.json"
    if not path.exists():
        return None
    made: Json = json.loads(path.read_text())
    return checkpoints.of_expected({**made, "requests": comparing.unpacked(made["requests"])})


class _Playing:
    """A drive on its way."""

    def __init__(self, app: str, drive: Json, place: Place) -> None:
        self.app, self.drive = app, drive
        self.killing: Killing | None = None
        self.trouble: str | None = None
        """Why it went no further."""
        self.raw: Json = {"turns": [], "sessions": {}, "artifacts": {}, "names": {}, "ledger": []}
        self._ledger = place.ledger
        self._api = Api(place.base, app)
        self._drive = Drive(self._api, drive)
        self._steps = self._drive.play()

    def kill_in_each_turn(self, killing: Killing) -> None:
        self.killing = killing
        self._drive = Drive(self._api, self.drive, killing)
        self._steps = self._drive.play()

    def goes_on(self) -> bool:
        """Play to the next restart mark; returns whether there was one."""
        begin = self._ledger.stat().st_size
        try:
            for _ in self._steps:
                return True
            self.raw |= self._drive.left()
        except (Trouble, OSError, ValueError, KeyError, TypeError) as stopped:
            turns = self._drive.turns
            self.trouble = f"the drive stops after turn {len(turns)}: {type(stopped).__name__}: {stopped}"
            self.raw["turns"] = turns
        finally:
            with self._ledger.open("rb") as file:
                file.seek(begin)
                self.raw["ledger"] += [json.loads(line) for line in file.read().decode().splitlines()]
        return False


def _judge(played: _Playing, expected: Json) -> Result:
    raw = checkpoints.of_raw(played.raw)
    got, want = normal(raw, played.drive), without_ignored(expected)
    found = [played.trouble] if played.trouble else []
    for number, (turn, known) in enumerate(zip(raw["turns"], expected["turns"], strict=False), 1):
        if "text" in turn and turn["status"] != known.get("status"):
            found.append(f"turn {number}: {turn['text']}")
    if played.killing is None:
        found += comparing.differences(want, got, played=played.trouble is None)
    elif played.trouble is None:
        found += comparing.after_kills(want, got)
    result = Result(played.app, found, kills=played.killing.kills if played.killing else 0)
    wrong = played.drive.get("adk_wrong")
    by_version = as_object(wrong)
    wrong = by_version.get(_recorded()) if by_version is not None else wrong
    if found and wrong:
        result.passed_over = f"differs, and may: in ADK {wrong}"
    return result
