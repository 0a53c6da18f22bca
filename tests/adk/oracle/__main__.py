"""`python -m tests.adk.oracle [--folder FOLDER] [--kill WHAT:N] [APP…]`: apps as ADK ran them; exit code 1 if not."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.adk.oracle.check import APPS, Result, check
from tests.adk.oracle.serving import NotServed

_SHOWN = 12
"""Differences of one app."""


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.adk.oracle", description="Drives apps as ADK was driven.")
    parser.add_argument("apps", nargs="*", metavar="APP", help="only these")
    parser.add_argument("--folder", type=Path, default=APPS, help="of the apps (default: the project's own)")
    parser.add_argument(
        "--kill",
        type=_kill,
        metavar="WHAT:N",
        help="kill the server in each turn at its N-th `model` call or `effect`, and start it again",
    )
    parser.add_argument("--patience", type=float, default=60, help="seconds a killed turn has to end (default: 60)")
    parser.add_argument("--all", action="store_true", help="show all differences")
    return parser.parse_args(arguments)


def _kill(text: str) -> tuple[str, int]:
    what, _, number = text.partition(":")
    if what not in ("model", "effect") or not number.isdecimal() or int(number) < 1:
        raise argparse.ArgumentTypeError("model:N or effect:N, N from 1")
    return what, int(number)


def _show(result: Result, limit: int) -> None:
    if result.passed_over is not None:
        print(f"{result.app:24} -     {result.passed_over}")
        return
    kills = f" ({result.kills} kills)" if result.kills else ""
    print(f"{result.app:24} {'DIFFERS' if result.differences else 'ok'}{kills}")
    for line in result.differences[:limit]:
        print(f"    {line}")
    if len(result.differences) > limit:
        print(f"    … and {len(result.differences) - limit} more: --all shows them")


def main() -> None:
    """Run the command."""
    options = _parse(sys.argv[1:])
    try:
        results = check(options.folder.resolve(), options.apps, kill=options.kill, patience=options.patience)
    except (FileNotFoundError, NotServed) as error:
        sys.exit(f"python -m tests.adk.oracle: {error}")
    for result in results:
        _show(result, sys.maxsize if options.all else _SHOWN)
    counted = [result for result in results if result.passed_over is None]
    good = sum(not result.differences for result in counted)
    print(f"{good} of {len(counted)} apps as ADK, {len(results) - len(counted)} not counted")
    sys.exit(0 if good == len(counted) and counted else 1)


if __name__ == "__main__":
    main()
