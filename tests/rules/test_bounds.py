"""What a session is sent is counted in its JSON, before anything is made of it: in one pass, whatever it holds."""

from __future__ import annotations

import json
import time
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_core import from_json

from perdure.errors import InvalidMessage
from perdure.journal.nesting import MAX_LEVELS
from perdure.rules.bounds import MAX_PARTS, MAX_REQUEST_VALUES, MAX_STATE_KEYS, check_json, excess

BRACKETS = st.text(alphabet='[]{}"\\:,NaInfity ', max_size=20)
VALUES = st.recursive(
    st.none() | st.integers() | BRACKETS,
    lambda items: st.lists(items, max_size=4) | st.dictionaries(BRACKETS, items, max_size=4),
    max_leaves=30,
)


def inner(value: Any) -> list[Any]:
    """Return what a list or an object holds."""
    return list(cast(dict[str, Any], value).values() if isinstance(value, dict) else cast(list[Any], value))


def values_in(value: Any) -> int:
    """Return how many lists and objects a value has."""
    return 1 + sum(map(values_in, inner(value))) if isinstance(value, list | dict) else 0


def nested(levels: int) -> bytes:
    return b"[" * levels + b"]" * levels


@given(VALUES, st.booleans(), st.integers(0, 10))
def test_brackets_in_texts_are_none(value: Any, ascii_only: bool, most: int) -> None:
    # As many small ones beside it that they are counted at all.
    whole: list[Any] = [value, *[[]] * MAX_LEVELS]
    data = json.dumps(whole, ensure_ascii=ascii_only).encode()
    most += MAX_LEVELS
    assert (excess(data, most) is not None) == (values_in(whole) > most)
    check_json(data)


@pytest.mark.parametrize("around", [b'{"a":%s}', b'{"a":["]",%s]}', b'["{\\"[",{"a":%s},"\\\\"]'])
def test_levels_are_counted_as_they_lie_within_each_other(around: bytes) -> None:
    outer = levels_of(json.loads(around % b"0"))
    assert excess(around % nested(MAX_LEVELS - outer), 10_000) is None
    assert "within each other" in str(excess(around % nested(MAX_LEVELS - outer + 1), 10_000))


def levels_of(value: Any) -> int:
    return 1 + max(map(levels_of, inner(value)), default=0) if isinstance(value, list | dict) else 0


def message(parts: list[Any], **fields: Any) -> bytes:
    return json.dumps({"content": {"role": "user", "parts": parts}, **fields}).encode()


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (message([{"text": "x"}] * (MAX_PARTS + 1)), "1,001 parts"),
        (message([{"text": "x"}] * 40_000), "40,00. lists and objects"),
        (message([{"functionResponse": {"id": "a", "response": {}}}] * 1_200), "1,200 parts"),
        (message([], state_delta={f"k{n}": 0 for n in range(MAX_STATE_KEYS + 1)}), "10,001 keys"),
        (json.dumps({"state": {f"k{n}": 0 for n in range(MAX_STATE_KEYS + 1)}}).encode(), "10,001 keys"),
        (json.dumps([{"id": "a", "response": 1}] * (MAX_PARTS + 1)).encode(), "1,001 parts"),
        (message([{"functionResponse": {"id": "a", "response": {"x": [[]] * MAX_REQUEST_VALUES}}}]), "lists and"),
        (message([{"text": "x"}], metadata={"x": json.loads(nested(MAX_LEVELS))}), "within each other"),
        (b'{"content": {"parts": []}, "metadata": {"x": NaN}}', "a number that JSON has not"),
        (b'[{"id": "a", "response": -Infinity}]', "a number that JSON has not"),
        (b"{" * (MAX_PARTS + 1), "levels|within each other"),
        (b'{"x": 1}, ' * (MAX_PARTS + 1), "is no JSON"),
    ],
)
def test_what_is_too_much_is_told_with_its_number(data: bytes, says: str) -> None:
    with pytest.raises(InvalidMessage, match=says):
        check_json(data)


@pytest.mark.parametrize(
    "data",
    [
        message([{"text": "x"}] * MAX_PARTS),
        message([{"text": "{" * 100_000 + "NaN" + ":" * 20_000}]),
        message([{"text": '"[{' * 9_000 + "\\" * 999}], state_delta={f"k{n}": 0 for n in range(MAX_STATE_KEYS)}),
        message([{"functionResponse": {"id": "a", "response": {"rows": [{"n": n} for n in range(15_000)]}}}]),
        json.dumps("a text, and no request").encode(),
        b"\xff\x00 is no JSON, and is left to the parser",
        b"",
    ],
)
def test_what_is_within_the_bounds_passes(data: bytes) -> None:
    check_json(data)


@pytest.mark.parametrize(
    "data",
    [
        b'"' + b'\\"' * 900_000,
        b'"' + b"\\" * 1_800_000,
        b'"{' * 900_000,
        b"[" + b'"{",' * 450_000 + b'""]',
        b"[" + b"[]," * 600_000 + b"[]]",
        b"[" * 1_800_000,
        b"NaN" + b'"' * 1_800_000,
        b'"' + b" NaN" * 450_000 + b'"',
        message([{"text": "1"}] * 60_000),
    ],
    ids=["quotes", "backslashes", "open texts", "texts", "lists", "levels", "empty texts", "words", "parts"],
)
def test_it_takes_one_pass_whatever_it_holds(data: bytes) -> None:
    """Two megabytes, which is what a payload takes, in an order of magnitude less than a workflow task may."""
    started = time.process_time()
    with pytest.raises(InvalidMessage) if data.count(b"[") > MAX_REQUEST_VALUES else _either():
        check_json(data)
    assert time.process_time() - started < 1.5


class _either:
    """Whether it is refused, or left to the parser, does not matter."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        return kind is not None and issubclass(kind, InvalidMessage)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity"])
@pytest.mark.parametrize("around", ["%s", "[%s]", "[1,%s]", '{"a":%s}', '{"a": %s}', "[\n%s\t]", "\r%s", '["\\"",%s]'])
def test_a_number_that_json_has_not_is_found_wherever_the_parser_takes_it(around: str, number: str) -> None:
    data = (around % number).encode()
    from_json(data)
    with pytest.raises(InvalidMessage, match="a number that JSON has not"):
        check_json(data)
    check_json(json.dumps({"said": data.decode()}).encode())
