"""Values of any plain type become JSON in one way; what JSON cannot hold is refused, with its place."""

from __future__ import annotations

import array
import collections
import dataclasses
import datetime
import decimal
import email
import enum
import http.client
import http.cookies
import io
import ipaddress
import itertools
import json
import math
import pathlib
import sqlite3
import types
import typing
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from unittest.mock import Mock
from xml.dom import minidom
from xml.etree import ElementTree

import pydantic
import pydantic.dataclasses
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_core import from_json, to_json

from perdure.agents.plain_values import MAX_ITEMS, NotPlain, is_small_json, to_plain

_HALF = "\ud83d"


class _Rows(Sequence[Any]):
    def __init__(self, *rows: Any) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: Any) -> Any:
        return self._rows[index]


class _Fields(Mapping[Any, Any]):
    def __init__(self, **fields: Any) -> None:
        self._fields = fields

    def __getitem__(self, key: Any) -> Any:
        return self._fields[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)


class _Undeclared:
    """Like a sequence, and no subclass of one."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> int:
        return index * 10


class _Scalar:
    """As NumPy's are."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def tolist(self) -> Any:
        return self._value


class _Index:
    def __index__(self) -> int:
        return 7


class _Broken(Sequence[int]):
    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: Any) -> Any:
        raise RuntimeError("the connection is closed")


class _Color(enum.Enum):
    RED = "red"
    RAW = b"\xff"


class _Level(enum.IntEnum):
    HIGH = 2


class _Point(typing.NamedTuple):
    x: int
    raw: bytes


class _Typed(typing.TypedDict):
    raw: bytes


@dataclasses.dataclass
class _Item:
    raw: bytes
    when: datetime.date
    rows: Any = None


class _Model(pydantic.BaseModel):
    raw: bytes = b""
    mean: float = 0.0
    more: Any = None
    named: int = pydantic.Field(default=1, serialization_alias="NAMED")


class _Custom(pydantic.BaseModel):
    when: datetime.date
    secret: pydantic.SecretStr = pydantic.SecretStr("s")

    @pydantic.field_serializer("when", when_used="json")
    def _day(self, when: datetime.date) -> str:
        return f"day {when.day}"


class _Untyped(pydantic.BaseModel):
    """Pydantic writes NaN of a field without a type as null."""

    model_config = pydantic.ConfigDict(extra="allow")
    more: Any = None
    hidden: float = 1.0

    @pydantic.field_serializer("hidden", when_used="json")
    def _hide(self, _: float) -> None:
        return None


class _OneName(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")
    a: int = pydantic.Field(default=1, serialization_alias="x")
    b: int = pydantic.Field(default=2, serialization_alias="y")


class _SameName(pydantic.BaseModel):
    a: int = pydantic.Field(default=1, serialization_alias="x")
    b: int = pydantic.Field(default=2, serialization_alias="x")


class _HugeFields(Mapping[int, int]):
    def __getitem__(self, key: int) -> int:
        return key

    def __iter__(self) -> Iterator[int]:
        return itertools.count()

    def __len__(self) -> int:
        return 10**9


class _HugeUndeclared:
    def __len__(self) -> int:
        return 10**9

    def __getitem__(self, index: int) -> int:
        return index


class _Endless:
    def __iter__(self) -> Iterator[int]:
        return itertools.count()


class _EndlessKeys:
    def keys(self) -> Iterator[int]:
        return itertools.count()

    def __getitem__(self, key: int) -> int:
        return key


class _Told(pydantic.BaseModel):
    """Calls of its serializers are counted."""

    calls: typing.ClassVar[list[str]] = []
    more: Any = None

    @pydantic.computed_field
    @property
    def seen(self) -> int:
        _Told.calls.append("computed")
        return 1


class _Always(_Told):
    @pydantic.model_serializer
    def _write(self) -> dict[Any, Any]:
        _Told.calls.append("always")
        return {"raw": b"\xff", "mean": math.nan, 1: self.more}


class _Wrapped(_Told):
    @pydantic.model_serializer(mode="wrap")
    def _write(self, handler: pydantic.SerializerFunctionWrapHandler) -> dict[str, Any]:
        _Told.calls.append("wrapped")
        return {"all": handler(self)}


class _ForJson(_Told):
    @pydantic.model_serializer(when_used="json")
    def _write(self) -> str:
        _Told.calls.append("json")
        return "for JSON"


class _ByMode(_Told):
    @pydantic.field_serializer("more")
    def _write(self, more: Any, info: pydantic.FieldSerializationInfo) -> Any:
        _Told.calls.append(info.mode)
        return more


@pydantic.dataclasses.dataclass
class _ToldToo:
    more: Any

    @pydantic.field_serializer("more")
    def _write(self, more: Any) -> Any:
        _Told.calls.append("field")
        return more


class _Hex(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(ser_json_bytes="hex")
    raw: bytes


class _Likewise:
    """As lxml's elements."""

    tag = text = tail = "a"
    attrib: typing.ClassVar[dict[str, str]] = {}

    def __len__(self) -> int:
        return 0

    def __getitem__(self, index: int) -> Any:
        raise IndexError


class _Response:
    """As of the library requests: it gives its bytes in pieces, without its status."""

    def iter_content(self) -> Iterator[bytes]:
        yield b"piece"

    def __iter__(self) -> Iterator[bytes]:
        return self.iter_content()


def _headers() -> http.client.HTTPMessage:
    return http.client.parse_headers(io.BytesIO(b"Retry-After: 3\r\n\r\n"))


def _row() -> sqlite3.Row:
    connection = sqlite3.connect(":memory:")
    connection.row_factory = sqlite3.Row
    row = connection.execute("select 1 as a, x'fffb' as raw").fetchone()
    connection.close()
    return row


_DAY = datetime.date(2026, 1, 2)
_TIME = datetime.datetime(2026, 1, 2, 3, 4, tzinfo=datetime.UTC)

TABLE: dict[str, tuple[Any, Any]] = {
    "none": (None, None),
    "text": ("é", "é"),
    "bytes that are text": (b"hello", "aGVsbG8="),
    "bytes that are none": (b"\xfb\xff", "-_8="),
    "bytearray": (bytearray(b"\xfb\xff"), "-_8="),
    "memoryview": (memoryview(b"\xfb\xff"), "-_8="),
    "bytes as a key": ({b"\xfb\xff": 1}, {"-_8=": 1}),
    "nan": ([math.nan, math.inf, -math.inf, 1.5], ["NaN", "Infinity", "-Infinity", 1.5]),
    "keys": ({1: 1, False: 2, None: 3, 1.5: 4, (1, 2): 5}, {"1": 1, "false": 2, "None": 3, "1.5": 4, "1,2": 5}),
    "keys of enums and ids": ({_Color.RED: 1, uuid.UUID(int=1): 2}, {"red": 1, str(uuid.UUID(int=1)): 2}),
    "tuple": ((1, (2,)), [1, [2]]),
    "set": ({"b", "a"}, ["a", "b"]),
    "set of several types": ({"b", 1}, ["b", 1]),
    "frozenset of bytes": (frozenset([b"\xff"]), ["_w=="]),
    "deque": (collections.deque([1, b"\xff"]), [1, "_w=="]),
    "range": (range(3), [0, 1, 2]),
    "generator": ((n for n in [1, 2]), [1, 2]),
    "map": (map(str, [1]), ["1"]),
    "views": ({"keys": {1: 2}.keys(), "values": {1: 2}.values()}, {"keys": [1], "values": [2]}),
    "counter": (collections.Counter("aab"), {"a": 2, "b": 1}),
    "chain map": (collections.ChainMap[str, Any]({"a": 1}, {"b": b"\xff"}), {"a": 1, "b": "_w=="}),
    "user dict": (collections.UserDict(a=_Rows(1)), {"a": [1]}),
    "mapping proxy": (types.MappingProxyType({"a": 1}), {"a": 1}),
    "own mapping": (_Fields(a=_Fields(b=(1,))), {"a": {"b": [1]}}),
    "own sequence": (_Rows(b"\xff", _Rows()), ["_w==", []]),
    "undeclared sequence": (_Undeclared(), [0, 10]),
    "row of a database": (_row(), {"a": 1, "raw": "__s="}),
    "array": (array.array("d", [1.0, math.nan]), [1.0, "NaN"]),
    "array of a library": (_Scalar([[1.5, math.inf]]), [[1.5, "Infinity"]]),
    "scalar of a library": ([_Scalar(3), _Scalar(_TIME), _Index()], [3, "2026-01-02T03:04:00Z", 7]),
    "enum": ([_Color.RED, _Color.RAW, _Level.HIGH], ["red", "_w==", 2]),
    "named tuple": (_Point(1, b"\xff"), [1, "_w=="]),
    "typed dict": (_Typed(raw=b"\xff"), {"raw": "_w=="}),
    "dataclass": (_Item(b"\xff", _DAY, _Rows(1)), {"raw": "_w==", "when": "2026-01-02", "rows": [1]}),
    "model": (
        [_Model(raw=b"\xfb\xff", mean=math.nan), _Model(raw=b"hello", more={1: _Rows(1)})],
        [
            {"raw": "-_8=", "mean": "NaN", "more": None, "NAMED": 1},
            {"raw": "aGVsbG8=", "mean": 0.0, "more": {"1": [1]}, "NAMED": 1},
        ],
    ),
    "nan in a field of any type": (
        [_Untyped(more=math.nan), _Untyped(more={1: [math.inf, None, (math.nan,)]}), _Untyped(extra={"a": math.nan})],  # pyright: ignore[reportCallIssue] -- it allows more
        [
            {"more": "NaN", "hidden": None},
            {"more": {"1": ["Infinity", None, ["NaN"]]}, "hidden": None},
            {"more": None, "hidden": None, "extra": {"a": "NaN"}},
        ],
    ),
    "text of a class": (collections.UserString("abc"), "abc"),
    "model with serializers": (_Custom(when=_DAY), {"when": "day 2", "secret": "**********"}),
    "model that says how": (_Hex(raw=b"\xff"), {"raw": "ff"}),
    "headers of a response": (_headers(), {"Retry-After": "3"}),
    "dates": ([_TIME, _DAY, datetime.timedelta(hours=1)], ["2026-01-02T03:04:00Z", "2026-01-02", "PT1H"]),
    "decimal": (decimal.Decimal("1.20"), "1.20"),
    "path": (pathlib.PurePosixPath("/a/b"), "/a/b"),
    "addresses": (ipaddress.ip_network("10.0.0.0/8"), "10.0.0.0/8"),
    "a large number": (2**70, 2**70),
}


@pytest.mark.parametrize("name", TABLE)
def test_a_plain_type_arrives_as_json(name: str) -> None:
    value, expected = TABLE[name]
    found = to_plain(value)
    assert found == expected
    assert from_json(to_json(found)) == found


def _cycle() -> Any:
    ring: list[Any] = [{}]
    ring[0]["ring"] = ring
    return ring


def _model_cycle() -> Any:
    model = _Model()
    model.more = _Rows(model)
    return model


def _nested(levels: int) -> Any:
    value: Any = "end"
    for _ in range(levels):
        value = [value]
    return value


REFUSED: dict[str, tuple[Any, str]] = {
    "object": (object(), "it is an object of type object, which is no JSON"),
    "deep inside": ({"rows": [1, {"when": object()}]}, r"at \['rows'\]\[1\]\['when'\] it is an object of type object"),
    "in a model": (_Model(more=object()), "it is an object of type object"),
    "function": (len, "builtin_function_or_method"),
    "class": (_Model, "of type ModelMetaclass"),
    "exception": (ValueError("x"), "of type ValueError"),
    "mock": (Mock(), "of type Mock"),
    "file": ([io.StringIO("a")], r"at \[0\] it is an open file"),
    "element": ([ElementTree.fromstring("<a>1<b/></a>")], r"at \[0\] it is an XML element; return its text"),
    "element of another library": (_Likewise(), "it is an XML element"),
    "tree": (ElementTree.ElementTree(ElementTree.fromstring("<a>1</a>")), "of type ElementTree"),
    "document": (minidom.parseString("<a>1</a>"), "of type Document"),
    "e-mail": (email.message_from_string("To: ann\n\nHello"), "it is an e-mail, .* return its text"),
    "cookies": (http.cookies.SimpleCookie("a=1"), r"at \['a'\] it is a cookie"),
    "response that is read": (_Response(), "it is an open file, or a response"),
    "equal keys": ({"a": {1: 1, "1": 2}}, r"at \['a'\] it has two keys that are '1' as texts"),
    "equal keys in a model": (_Model(more={True: 1, "true": 2}), "two keys that are 'true'"),
    "key of an object": ({object(): 1}, "it has a key of type object"),
    "equal names of two fields": (_SameName(), "two fields that are written under one name"),
    "equal names, deep inside": ([_Model(more=[_SameName()])], r"at \[0\] it has two fields"),
    "equal names of a field and an extra": (_OneName(x=1), "two fields that are written under one name"),  # pyright: ignore[reportCallIssue] -- it allows more
    "key of a set": ({frozenset([1]): 1}, "it has a key of type frozenset"),
    "key that Python reads no more": ({10**5000: 1}, "it has a key of type int"),
    "half a character": ({"a": _HALF}, r"at \['a'\] it has a text with half of a character"),
    "half a character as a key": ({_HALF: 1}, "half of a character"),
    "half a character as a key in a model": (_ByMode(more={_HALF: 1}), "half of a character"),
    "cycle": (_cycle(), "holds itself"),
    "cycle through a model": (_model_cycle(), "holds itself"),
    "too deep": (_nested(10_000), "more than 150 lists and objects within each other"),
    "endless": (itertools.count(), f"more than {MAX_ITEMS:,} items"),
    "long range": (range(10**12), f"more than {MAX_ITEMS:,} items"),
    "long mapping": (_HugeFields(), f"more than {MAX_ITEMS:,} items"),
    "long undeclared sequence": (_HugeUndeclared(), f"more than {MAX_ITEMS:,} items"),
    "endless undeclared": (_Endless(), f"more than {MAX_ITEMS:,} items"),
    "endless keys": (_EndlessKeys(), f"more than {MAX_ITEMS:,} items"),
    "broken": ({"a": _Broken()}, r"cannot be read: RuntimeError: the connection is closed"),
    "a number that Python reads no more": (10**5000, "more than 4,000 digits"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_json_cannot_hold_is_refused_with_its_place(name: str) -> None:
    value, message = REFUSED[name]
    with pytest.raises(NotPlain, match=message):
        to_plain(value)


ONCE: dict[str, tuple[Any, Any, list[str]]] = {
    "computed": (_Told(more=b"\xff"), {"more": "_w==", "seen": 1}, ["computed"]),
    "always": (_Always(more=1), {"raw": "_w==", "mean": "NaN", "1": 1}, ["always"]),
    "wrapped": (_Wrapped(more=b"\xff"), {"all": {"more": "_w==", "seen": 1}}, ["wrapped", "computed"]),
    "for json": (_ForJson(more=1), "for JSON", ["json"]),
    "by mode": (_ByMode(more=1), {"more": 1, "seen": 1}, ["json", "computed"]),
    "for json, within another": (_Told(more=[_ForJson()]), {"more": ["for JSON"], "seen": 1}, ["json", "computed"]),
    "dataclass": (_ToldToo(more=math.inf), {"more": "Infinity"}, ["field"]),
}


@pytest.mark.parametrize("name", ONCE)
def test_a_model_is_written_once(name: str) -> None:
    """Its serializers and properties are a user's code, which may cost, or count."""
    value, expected, calls = ONCE[name]
    _Told.calls.clear()
    assert to_plain(value) == expected
    assert _Told.calls == calls


_LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.binary()
    | st.dates()
    | st.uuids()
    | st.decimals()
    | st.sampled_from(_Color)
)


def _containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    lists = st.lists(inner, max_size=4)
    keys = st.text(max_size=5) | st.integers() | st.binary(max_size=3) | st.booleans() | st.none()
    return st.one_of(
        lists,
        lists.map(tuple),
        lists.map(collections.deque),
        lists.map(lambda items: _Rows(*items)),
        st.dictionaries(keys, inner, max_size=4),
        st.dictionaries(st.text(max_size=5), inner, max_size=4).map(types.MappingProxyType),
        st.builds(_Item, raw=st.binary(max_size=4), when=st.dates(), rows=inner),
        st.builds(_Model, raw=st.binary(max_size=4), mean=st.floats(), more=inner),
    )


@given(st.recursive(_LEAVES, _containers, max_leaves=20))
def test_whatever_is_nested_is_json_or_refused(value: Any) -> None:
    """What comes out is JSON that is read again as it is, twice the same, and nothing else is raised."""
    try:
        found = to_plain(value)
    except NotPlain as error:
        known = "two keys" in str(error) or "half of a character" in str(error)
        assert known, error  # noqa: PT017 -- either way is right, and no other
        return
    assert from_json(to_json(found)) == found
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert to_plain(found) == found
    assert to_plain(value) == found


class _Text(str):
    pass


class _Map(dict[str, Any]):
    pass


_ROUND: list[Any] = []
_ROUND.append(_ROUND)


@pytest.mark.parametrize(
    ("value", "small"),
    [
        (None, True),
        ("text", True),
        ({"a": [1, 2.5, True, None, {"b": "c"}]}, True),
        ([float("nan"), _HALF], True),
        ([0] * 150, True),
        ([0] * 1_000, False),
        ("x" * 100_000, False),
        ({"x" * 100_000: 1}, False),
        ({1: "a"}, False),
        ({_Text("a"): "b"}, False),
        (_Text("text"), False),
        ([_Map()], False),
        ((1, 2), False),
        (b"bytes", False),
        ({"a": datetime.date(2026, 1, 1)}, False),
        ([Mock()], False),
        (_ROUND, False),
    ],
)
def test_what_is_small_json_runs_no_code_when_it_is_read(value: Any, small: bool) -> None:
    assert is_small_json(value) is small
