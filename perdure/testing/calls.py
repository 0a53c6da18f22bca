"""`assert_calls`: the tool calls that agents made, against those that a test expects."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from unittest.mock import ANY

from perdure.journal.events import QUESTIONS, REQUEST_INPUT, USER, Event
from perdure.testing.turn import Turn

__all__ = ["assert_calls"]

_Call = tuple[str, Mapping[str, Any] | None]
"""A tool's name and its arguments; `None` are any."""


def assert_calls(
    made: Turn | Iterable[Event],
    expected: Sequence[str | tuple[str, Mapping[str, Any]]],
    *,
    agent: str | None = None,
    in_any_order: bool = False,
) -> None:
    """Check which tools agents called, and with what.

    Args:
        made: A turn, or events. What a session asks people by itself, such as for a confirmation, is no call of these.
        expected: Each call as a tool's name, or as a name and its arguments. In them, `unittest.mock.ANY` is anything,
            and `pytest.approx(…)` a number.
        agent: Look at the calls of this agent only. Default: of all.
        in_any_order: Parallel agents call in an order of their own.

    Raises:
        AssertionError: The calls are others; it shows where.
    """
    __tracebackhide__ = True
    events = made.events if isinstance(made, Turn) else made
    calls = [
        (call.name or "", dict(call.args or {}))
        for event in events
        if event.author != USER and agent in (None, event.author)
        for call in event.get_function_calls()
        if call.name not in QUESTIONS | {REQUEST_INPUT}
    ]
    wanted: list[_Call] = [(one, None) if isinstance(one, str) else (one[0], one[1]) for one in expected]
    if in_any_order:
        wanted = _ordered_as(calls, wanted)
    if len(calls) == len(wanted) and all(map(_fits, wanted, calls)):
        return
    lines = difflib.ndiff(_texts(wanted, calls), [_text(call) for call in calls])
    whose = f" of {agent}" if agent is not None else ""
    told = "\n".join(f"  {line.rstrip()}" for line in lines)
    raise AssertionError(f"the calls{whose} differ (- expected, + made):\n{told or '  none were made'}")


def _fits(wanted: _Call, made: _Call) -> bool:
    return wanted[0] == made[0] and (wanted[1] is None or dict(wanted[1]) == made[1])


def _ordered_as(calls: Sequence[_Call], wanted: Sequence[_Call]) -> list[_Call]:
    """Return the wanted calls, those that were made in their order, and the others behind them."""
    left, found = list(wanted), list[_Call]()
    for made in calls:
        fitting = next((index for index, one in enumerate(left) if _fits(one, made)), None)
        if fitting is not None:
            found.append(left.pop(fitting))
    return found + left


def _texts(wanted: Sequence[_Call], calls: Sequence[_Call]) -> list[str]:
    """Return the wanted calls in words; one that was made, in the words of that, so that it is no difference."""
    left, texts = list(calls), list[str]()
    for one in wanted:
        fitting = next((index for index, made in enumerate(left) if _fits(one, made)), None)
        texts.append(_text(one) if fitting is None else _text(left[fitting]))
        if fitting is not None:
            del left[: fitting + 1]
    return texts


def _text(call: _Call) -> str:
    name, args = call
    return f"{name}(…)" if args is None else f"{name}({', '.join(f'{key}={_value(args[key])}' for key in args)})"


def _value(value: object) -> str:
    if value is ANY:
        return "ANY"
    try:
        return json.dumps(value, ensure_ascii=False)
    except TypeError:
        return repr(value)
