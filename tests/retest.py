"""Tries once more, alone, what failed while two processes shared the machine, and tells which tests these were.

`make retest`. More than ten are not late. And what failed of a history that does not replay, or of a stuck session,
is not tried again: a second try hides what happens to users now and then.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.unforgiving import NEVER_AGAIN

_CACHE = Path(".pytest_cache") / "v"
_MOST = 10
_AGAIN = (sys.executable, "-m", "pytest", "--last-failed", "--last-failed-no-failures", "none")


def main(cache: Path = _CACHE, again: Sequence[str] = _AGAIN) -> int:
    """Try them again; returns the exit code."""
    failed, never = _names(cache / "cache" / "lastfailed"), _names(cache / NEVER_AGAIN)
    if never:
        return _refuse("of these a second try hides what is wrong", never)
    if not 0 < len(failed) <= _MOST:
        return _refuse(f"only one to {_MOST} tests are tried again, and there failed {len(failed)}", failed)
    code = subprocess.run(again, check=False).returncode
    if code == 0:
        _tell("these tests failed at first, and passed alone; mend them, too", failed)
    return code


def _names(file: Path) -> list[str]:
    return list(json.loads(file.read_text())) if file.exists() else []


def _refuse(why: str, names: Sequence[str]) -> int:
    _tell(f"no second try: {why}", names)
    return 1


def _tell(what: str, names: Sequence[str]) -> None:
    print(f"perdure: {what}", *(f"  {name}" for name in names), sep="\n", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
