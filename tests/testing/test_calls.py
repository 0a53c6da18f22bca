"""`assert_calls`: what it lets pass, and how it shows what differs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from unittest.mock import ANY

import pytest

from perdure import Event
from perdure.plan.contents import types
from perdure.testing import assert_calls


def calling(author: str, *calls: tuple[str, dict[str, Any]]) -> Event:
    parts = [types.Part(function_call=types.FunctionCall(name=name, args=args)) for name, args in calls]
    return Event(author=author, content=types.Content(parts=parts))


EVENTS = [
    calling("clerk", ("find", {"city": "Oslo"}), ("find", {"city": "Rome"})),
    calling("clerk", ("adk_request_confirmation", {"originalFunctionCall": {"name": "pay"}})),
    calling("boss", ("pay", {"price": 240.0, "to": {"name": "Ann"}})),
]


@pytest.mark.parametrize(
    "expected",
    [
        ["find", "find", "pay"],
        [("find", {"city": "Oslo"}), "find", ("pay", {"price": 240, "to": {"name": "Ann"}})],
        [("find", {"city": ANY}), "find", ("pay", {"price": pytest.approx(240.1, rel=0.01), "to": ANY})],
    ],
)
def test_calls_that_are_as_expected_pass(expected: Sequence[Any]) -> None:
    assert_calls(EVENTS, expected)


def test_the_calls_of_one_agent_are_looked_at_and_any_order_is_allowed() -> None:
    assert_calls(EVENTS, ["pay"], agent="boss")
    assert_calls(EVENTS, [], agent="nobody")
    assert_calls(EVENTS, ["pay", ("find", {"city": "Rome"}), ("find", {"city": "Oslo"})], in_any_order=True)


@pytest.mark.parametrize(
    ("expected", "options", "shown"),
    [
        (["find", "pay"], {}, ['+ find(city="Rome")']),
        (["find", "find", "pay", "pack"], {}, ["- pack(…)"]),
        (["find", ("find", {"city": "Bern"}), "pay"], {}, ['- find(city="Bern")', '+ find(city="Rome")']),
        (["find", ("find", {"city": ANY, "day": 1}), "pay"], {}, ["- find(city=ANY, day=1)"]),
        (["find", "pay", "pay"], {"in_any_order": True}, ['+ find(city="Rome")', "- pay(…)"]),
        (["find"], {"agent": "boss"}, ["the calls of boss differ", "- find(…)", "+ pay("]),
    ],
)
def test_what_differs_is_shown(expected: Sequence[Any], options: dict[str, Any], shown: Sequence[str]) -> None:
    with pytest.raises(AssertionError) as caught:
        assert_calls(EVENTS, expected, **options)
    lines = str(caught.value)
    assert [line for line in shown if line not in lines] == [], lines
    assert 'find(city="Oslo")' in lines or "agent" in options


def test_no_call_at_all_is_told() -> None:
    with pytest.raises(AssertionError, match=r"- find\(…\)"):
        assert_calls([], ["find"])
