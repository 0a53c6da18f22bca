"""Signatures: what a model is told of each type, and what the function gets of the JSON that a model gives."""

from __future__ import annotations

import base64
import collections
import dataclasses
import datetime
import decimal
import enum
import functools
import json
import math
import typing
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, NotRequired, Optional, Union, cast

import annotated_types
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import AfterValidator, AliasChoices, Base64Bytes, BaseModel, BeforeValidator, Field, Strict
from pydantic import dataclasses as pydantic_dataclasses
from typing_extensions import TypedDict, Unpack

from perdure.agents.tools import FunctionTool, ToolContext
from perdure.errors import DefinitionError, InvalidArguments

if TYPE_CHECKING:
    from perdure.agents.tools import ToolContext as Elsewhere


CONTEXT = ToolContext(
    agent_name="a",
    invocation_id="e-1",
    app_name="app",
    user_id="u",
    session_id="s",
    state={},
    function_call_id="adk-1",
    idempotency_key="e-1/adk-1",
)


@dataclasses.dataclass
class Box:
    width: int
    height: int = 2
    seal: bytes = b""
    inner: list[Box] = dataclasses.field(default_factory=lambda: [])


class Size(TypedDict):
    """How large."""

    width: int
    height: NotRequired[int]


class Point(NamedTuple):
    x: int
    y: int = 0


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Planet(enum.Enum):
    """Members that are no JSON as they stand, and one with two names."""

    EARTH = (1, 0.5)
    MARS = datetime.date(2026, 7, 1)
    PLUTO = "p"
    DWARF = "p"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Node(BaseModel):
    name: str
    below: list[Node] = []


Serial = typing.NewType("Serial", int)
T = typing.TypeVar("T")


@dataclasses.dataclass
class Pair(typing.Generic[T]):
    one: T
    more: float = math.inf


class Parcel(TypedDict):
    box: Box


class Sealed(BaseModel):
    seal: bytes


class Cat(BaseModel):
    kind: Literal["cat"]


class Dog(BaseModel):
    kind: Literal["dog"]


@dataclasses.dataclass
class Stream:
    of: Iterable[int]


class Lazy(BaseModel):
    of: Iterable[int]


@pydantic_dataclasses.dataclass
class LazyToo:
    of: Iterable[int]


class Outer(BaseModel):
    lazies: list[Lazy]


INTEGER, STRING = {"type": "integer"}, {"type": "string"}


def a_list(of: Any, **more: Any) -> dict[str, Any]:
    return {"type": "array", "items": of, **more}


def tool_of(annotation: Any, default: Any = ...) -> FunctionTool:
    """Return a tool whose one parameter `x` has an annotation, and which gives what it got."""

    def tool(x: Any) -> Any:
        return x

    tool.__annotations__ = {"x": annotation}
    tool.__defaults__ = None if default is ... else (default,)
    return FunctionTool(tool)


def declared(tool: FunctionTool) -> Any:
    schema = tool.plan().declaration.parameters_json_schema
    assert json.loads(json.dumps(schema, allow_nan=False)) == schema, "what is declared is JSON"
    return schema


def got(tool: FunctionTool, args: dict[str, Any]) -> Any:
    """Return what the function returns, called with what a model gave, as it comes out of a journal."""
    return tool.fn(**tool.bind(json.loads(json.dumps(args)), CONTEXT))


def told(tool: FunctionTool, args: dict[str, Any]) -> str:
    with pytest.raises(InvalidArguments) as caught:
        tool.bind(args, CONTEXT)
    return caught.value.result["error"]


DAY = datetime.date(2026, 7, 1)
ID = uuid.UUID(int=7)
TYPES: list[tuple[Any, Any, Any, Any]] = [
    # annotation, what is declared, what is given, what the function gets
    (int, INTEGER, 5, 5),
    (int, INTEGER, "5", 5),
    (int, INTEGER, 5.0, 5),
    (float, {"type": "number"}, 1, 1.0),
    (str, STRING, "a", "a"),
    (bool, {"type": "boolean"}, "true", True),
    (Any, {}, [None], [None]),
    (object, {}, {"a": 1}, {"a": 1}),
    (None, {"type": "null"}, None, None),
    (bytes, {"type": "string", "format": "base64"}, base64.b64encode(b"\xfb\xff\x00").decode(), b"\xfb\xff\x00"),
    (bytes, {"type": "string", "format": "base64"}, base64.urlsafe_b64encode(b"\xfb\xff").decode(), b"\xfb\xff"),
    (list[bytes], a_list({"type": "string", "format": "base64"}), ["aGk="], [b"hi"]),
    (Base64Bytes, {"type": "string", "format": "base64"}, "aGk=", b"hi"),
    (datetime.date, {"type": "string", "format": "date"}, "2026-07-01", DAY),
    (Annotated[datetime.date, Strict()], {"type": "string", "format": "date"}, "2026-07-01", DAY),
    (datetime.timedelta, {"type": "string", "format": "duration"}, "PT90S", datetime.timedelta(seconds=90)),
    (uuid.UUID, {"type": "string", "format": "uuid"}, str(ID), ID),
    (decimal.Decimal, None, "1.50", decimal.Decimal("1.50")),
    (list, a_list({}), [1, "a"], [1, "a"]),
    (list[int], a_list(INTEGER), [1], [1]),
    (Sequence[int], a_list(INTEGER), [1], [1]),
    (Iterable[int], a_list(INTEGER), ["1", 2], [1, 2]),
    (typing.Iterable[int], a_list(INTEGER), [1], [1]),
    (Iterable, a_list({}), [1, "a"], [1, "a"]),
    (dict[str, Iterable[int]], {"type": "object", "additionalProperties": a_list(INTEGER)}, {"a": [1]}, {"a": [1]}),
    (Iterable[Iterable[bytes]], None, [["aGk="]], [[b"hi"]]),
    (set[int], a_list(INTEGER, uniqueItems=True), [1, 1], {1}),
    (frozenset[str], a_list(STRING, uniqueItems=True), ["a"], frozenset({"a"})),
    (typing.AbstractSet[int], None, [1], frozenset({1})),
    (collections.deque[int], a_list(INTEGER), [1], collections.deque([1])),
    (tuple[int, ...], a_list(INTEGER), [1, 2], (1, 2)),
    (tuple[int, str], None, [1, "a"], (1, "a")),
    (Annotated[list[int], annotated_types.MaxLen(2)], a_list(INTEGER, maxItems=2), [1], [1]),
    (dict, {"type": "object", "additionalProperties": True}, {"a": [1]}, {"a": [1]}),
    (dict[int, str], {"type": "object", "additionalProperties": STRING}, {"1": "a"}, {1: "a"}),
    (Mapping[str, int], {"type": "object", "additionalProperties": INTEGER}, {"a": 1}, {"a": 1}),
    (collections.Counter[str], None, {"a": 1}, collections.Counter("a")),
    (collections.OrderedDict[str, int], None, {"b": 1, "a": 2}, collections.OrderedDict(b=1, a=2)),
    (collections.defaultdict[str, list[int]], None, {"a": [1]}, {"a": [1]}),
    (Literal["a"], {"type": "string", "enum": ["a"]}, "a", "a"),
    (Literal["a", 1], {"enum": ["a", 1]}, 1, 1),
    (Literal["a", Colour.RED], None, "red", Colour.RED),
    (Literal["a", Colour.RED], None, "a", "a"),
    (Literal[Level.HIGH], None, 2, Level.HIGH),
    (Colour, None, "blue", Colour.BLUE),
    (Level, None, 2, Level.HIGH),
    (Planet, None, [1, 0.5], Planet.EARTH),
    (Planet, None, "2026-07-01", Planet.MARS),
    (Planet, None, "p", Planet.DWARF),
    (list[Planet] | None, None, ["p", [1, 0.5]], [Planet.PLUTO, Planet.EARTH]),
    (Literal["a", Planet.EARTH], None, [1, 0.5], Planet.EARTH),
    (Serial, INTEGER, "5", 5),
    (Parcel, None, {"box": {"width": 1, "seal": "aGk="}}, {"box": Box(1, 2, b"hi")}),
    (Pair[bytes], None, {"one": "aGk="}, Pair(b"hi")),
    (list[Annotated[float, Field(ge=-math.inf, le=math.inf)]], a_list({"type": "number"}), [1.5], [1.5]),
    (int | str, {"anyOf": [INTEGER, STRING]}, "5", "5"),
    (Optional[int], {"anyOf": [INTEGER, {"type": "null"}]}, None, None),  # noqa: UP045
    (Union[Cat, Dog], None, {"kind": "dog"}, Dog(kind="dog")),  # noqa: UP007
    (Annotated[Cat | Dog, Field(discriminator="kind")], None, {"kind": "dog"}, Dog(kind="dog")),
    (Box, None, {"width": "1", "seal": "aGk="}, Box(1, 2, b"hi")),
    (Box, None, {"width": 1, "inner": [{"width": 3}]}, Box(1, inner=[Box(3)])),
    (list[Box], None, [{"width": 1}], [Box(1)]),
    (dict[str, Box | None], None, {"a": None, "b": {"width": 1}}, {"a": None, "b": Box(1)}),
    (Size, None, {"width": 1}, {"width": 1}),
    (list[Size], None, [{"width": 1, "height": 2}], [{"width": 1, "height": 2}]),
    (Point, None, [1, 2], Point(1, 2)),
    (Point, None, {"x": 1}, Point(1)),
    (Node, None, {"name": "a", "below": [{"name": "b"}]}, Node(name="a", below=[Node(name="b")])),
    (Sealed, None, {"seal": "as it says"}, Sealed(seal=b"as it says")),
    (Stream, None, {"of": ["1", 2]}, Stream([1, 2])),
    (list[Stream] | None, None, [{"of": [1]}], [Stream([1])]),
    (Annotated[str, AfterValidator(str.upper)], STRING, "a", "A"),
]


@pytest.mark.parametrize(("annotation", "schema", "value", "expected"), TYPES, ids=lambda value: repr(value)[:40])
def test_a_type_is_declared_and_converted_as_pydantic_does(
    annotation: Any, schema: Any, value: Any, expected: Any
) -> None:
    """One schema tells the model what to give, and makes of it what the function's annotation promises."""
    tool = tool_of(annotation)
    found = declared(tool)
    assert found["required"] == ["x"]
    if schema is not None:
        assert found["properties"]["x"] == schema
    converted = got(tool, {"x": value})
    assert converted == expected
    assert type(converted) is type(expected) or isinstance(expected, dict)
    assert "adk-1" not in json.dumps(found)


def test_what_belongs_to_it_is_declared_with_a_type() -> None:
    assert declared(tool_of(Box)) == {
        "type": "object",
        "properties": {"x": {"$ref": "#/$defs/Box"}},
        "required": ["x"],
        "$defs": {
            "Box": {
                "title": "Box",
                "type": "object",
                "properties": {
                    "width": INTEGER,
                    "height": {"type": "integer", "default": 2},
                    "seal": {"type": "string", "format": "base64", "default": ""},
                    "inner": a_list({"$ref": "#/$defs/Box"}),
                },
                "required": ["width"],
            }
        },
    }
    assert declared(tool_of(Size))["$defs"]["Size"]["description"] == "How large."
    assert declared(tool_of(Point))["$defs"]["Point"]["prefixItems"] == [INTEGER, {"type": "integer", "default": 0}]
    assert declared(tool_of(Colour))["$defs"]["Colour"]["enum"] == ["red", "blue"]
    assert declared(tool_of(Planet))["$defs"]["Planet"]["enum"] == [[1, 0.5], "2026-07-01", "p"]
    assert declared(tool_of(Sealed))["$defs"]["Sealed"]["properties"]["seal"]["format"] == "binary"


DEFAULTS: list[tuple[Any, Any, Any, Any]] = [
    # annotation, default, what is declared, what the function gets without the argument
    (int, 5, {"type": "integer", "default": 5}, 5),
    (int, Field(5, description="n", ge=1), {"type": "integer", "default": 5, "description": "n", "minimum": 1}, 5),
    (Annotated[int, Field(ge=1)], 5, {"type": "integer", "default": 5, "minimum": 1}, 5),
    (Annotated[int, Field(default=5)], ..., {"type": "integer", "default": 5}, 5),
    (list[int], Field(default_factory=lambda: [1]), a_list(INTEGER), [1]),
    (Annotated[list[int], Field(default_factory=list)], ..., a_list(INTEGER), []),
    (Colour, Colour.RED, None, Colour.RED),
    (datetime.date, DAY, {"type": "string", "format": "date", "default": "2026-07-01"}, DAY),
    (bytes, b"hi", {"type": "string", "format": "base64", "default": "aGk="}, b"hi"),
    (Box, Box(1), None, Box(1)),
    (Any, object, {}, object),
    (float, math.inf, {"type": "number"}, math.inf),
    (list[float], [1.0, math.inf], a_list({"type": "number"}), [1.0, math.inf]),
    (float, Field(0.5, ge=0, lt=math.inf), {"type": "number", "default": 0.5, "minimum": 0}, 0.5),
    (list[int], [1], a_list(INTEGER, default=[1]), [1]),
    (str, None, {"anyOf": [STRING, {"type": "null"}]}, None),
    (str, Field(None, description="d"), {"anyOf": [STRING, {"type": "null"}], "description": "d"}, None),
    (Annotated[str, Field(description="d")], None, {"anyOf": [STRING, {"type": "null"}], "description": "d"}, None),
    (Annotated[str, AfterValidator(str.upper)], None, {"anyOf": [STRING, {"type": "null"}]}, None),
    (Optional[str], None, {"anyOf": [STRING, {"type": "null"}]}, None),  # noqa: UP045
    (Any, None, {}, None),
    (Box, None, None, None),
]


@pytest.mark.parametrize(("annotation", "default", "schema", "expected"), DEFAULTS, ids=lambda value: repr(value)[:40])
def test_a_default_is_declared_and_filled_in(annotation: Any, default: Any, schema: Any, expected: Any) -> None:
    """A function gets the default itself, never what pydantic keeps it in; no argument is required that has one."""
    tool = tool_of(annotation, default)
    found = declared(tool)
    assert "required" not in found
    if schema is not None:
        assert found["properties"]["x"] == schema
    assert got(tool, {}) == expected
    if expected is None:
        assert got(tool, {"x": None}) is None, "null is what the default says"


def test_a_parameter_that_a_field_describes_is_required_without_a_default() -> None:
    def page(start: int = Field(description="first row"), n: int = Field(5, ge=1)) -> list[int]:
        return [start, n]

    tool = FunctionTool(page)
    assert declared(tool)["required"] == ["start"]
    assert got(tool, {"start": 2}) == [2, 5]
    assert "mandatory input parameters are not present:\nstart\n" in told(tool, {"n": 1})
    assert "n: Input should be greater than or equal to 1" in told(tool, {"start": 2, "n": 0})


def test_no_call_sees_what_another_did_to_its_default() -> None:
    def collect(of: list[int] = [], box: Box = Box(1), more: list[int] = Field(default_factory=list)) -> int:  # noqa: B006, B008
        of.append(1)
        box.inner.append(Box(2))
        more.append(1)
        return len(of) + len(box.inner) + len(more)

    tool = FunctionTool(collect)
    assert [got(tool, {}) for _ in range(3)] == [3, 3, 3]


def test_a_name_for_the_model_may_be_another() -> None:
    def find(
        who: int = Field(alias="count"), what: str = Field("", validation_alias=AliasChoices("item", "thing"))
    ) -> Any:
        return who, what

    tool = FunctionTool(find)
    assert list(declared(tool)["properties"]) == ["count", "what"]
    assert declared(tool)["required"] == ["count"]
    assert got(tool, {"count": 1, "thing": "a"}) == (1, "a")
    assert got(tool, {"who": 1, "what": "a"}) == (1, "a")
    assert "not present:\ncount\n" in told(tool, {})


class Options(TypedDict):
    lang: str
    boxes: NotRequired[list[Box]]


def plain(query: str, **filters: Any) -> Any:
    return query, filters


def typed(query: str, **filters: int) -> Any:
    return query, filters


def unpacked(query: str, **options: Unpack[Options]) -> Any:
    return query, options


def only(**filters: Any) -> Any:
    return filters


def test_further_keywords_are_declared_and_passed_on() -> None:
    assert declared(FunctionTool(plain)) == {
        "type": "object",
        "properties": {"query": STRING},
        "required": ["query"],
        "additionalProperties": True,
    }
    assert got(FunctionTool(plain), {"query": "x", "lang": "de", "n": 1}) == ("x", {"lang": "de", "n": 1})
    assert declared(FunctionTool(typed))["additionalProperties"] == INTEGER
    assert got(FunctionTool(typed), {"query": "x", "n": "1"}) == ("x", {"n": 1})
    assert "n: Input should be a valid integer" in told(FunctionTool(typed), {"query": "x", "n": "one"})
    assert declared(FunctionTool(only)) == {"type": "object", "properties": {}, "additionalProperties": True}
    assert got(FunctionTool(only), {"a": None}) == {"a": None}


def test_a_typed_dictionary_declares_further_keywords_one_by_one() -> None:
    tool = FunctionTool(unpacked)
    found = declared(tool)
    assert found["required"] == ["query", "lang"]
    assert list(found["properties"]) == ["query", "lang", "boxes"]
    assert found["properties"]["boxes"] == a_list({"$ref": "#/$defs/Box"})
    assert "additionalProperties" not in found
    assert got(tool, {"query": "x", "lang": "de", "boxes": [{"width": 1}]}) == ("x", {"lang": "de", "boxes": [Box(1)]})
    assert "not present:\nlang\n" in told(tool, {"query": "x"})


class Shelf:
    def find(self, query: str, **more: Any) -> Any:
        return query, more

    @classmethod
    def made(cls, query: str, **more: Any) -> Any:
        return query, more

    @staticmethod
    def plain(query: str, **more: Any) -> Any:
        return query, more

    def __call__(self, query: str, **more: Any) -> Any:
        """Look on the shelf."""
        return query, more

    @functools.lru_cache  # noqa: B019 -- there is one shelf
    def kept(self, query: str, **more: Any) -> Any:
        return query, more

    again = functools.partialmethod(find, n=1)

    @functools.singledispatchmethod
    def chosen(self, query: object) -> Any:
        return query


class Static:
    @staticmethod
    def __call__(query: str, **more: Any) -> Any:
        return query, more


class OfClass:
    @classmethod
    def __call__(cls, query: str, **more: Any) -> Any:
        return query, more


class Anything:
    """Has every attribute that it is asked for."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__sig") or name == "__wrapped__":
            raise AttributeError(name)
        return lambda: name

    def __call__(self, query: str, **more: Any) -> Any:
        return query, more


@functools.singledispatch
def chosen(query: object, n: int = 1) -> Any:
    """Choose."""
    return query, n


def traced(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


def renaming(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(value: Any) -> Any:
        return function(value)

    return wrapper


def keyed(key: str, query: str, **more: Any) -> Any:
    """Look by key."""
    return query, more | {"used": key}


@pytest.mark.parametrize(
    ("function", "name", "expected"),
    [
        (Shelf().find, "find", {"n": 1}),
        (Shelf.made, "made", {"n": 1}),
        (Shelf.plain, "plain", {"n": 1, "self": 2, "cls": 3, "key": 4}),
        (Shelf(), "Shelf", {"n": 1}),
        (Shelf().kept, "kept", {"n": 1}),
        (Shelf().again, "find", None),
        (Static(), "Static", {"n": 1}),
        (OfClass(), "OfClass", {"n": 1}),
        (Anything(), "Anything", {"n": 1}),
        (traced(plain), "plain", None),
        (traced(Shelf().find), "find", {"n": 1}),
        (functools.partial(keyed, "secret"), "keyed", {"n": 1, "used": "secret"}),
        (functools.partial(keyed, key="secret"), "keyed", {"n": 1, "used": "secret"}),
        (functools.update_wrapper(functools.partial(keyed, key="secret"), keyed), "keyed", {"n": 1, "used": "secret"}),
    ],
)
def test_whatever_can_be_called_is_called_with_what_is_left_to_the_model(
    function: Any, name: str, expected: Any
) -> None:
    """What is bound already is neither declared nor told, and no argument of the model's takes its place."""
    tool = FunctionTool(function)
    assert (tool.name, list(declared(tool)["properties"])) == (name, ["query"])
    assert "secret" not in json.dumps(declared(tool))
    query, more = got(tool, {"query": "x", "n": 1, "self": 2, "cls": 3, "key": 4})
    assert query == "x"
    wanted: dict[str, Any] = expected or {}
    assert {key: more[key] for key in wanted} == wanted


@pytest.mark.parametrize(
    ("function", "doc"),
    [
        (functools.partial(keyed, "secret"), "Look by key."),
        (functools.partial(functools.partial(keyed, "secret"), n=1), "Look by key."),
        (functools.partial(Shelf()), "Look on the shelf."),
        (functools.partial(chosen, 1), "Choose."),
        (functools.partial(plain), ""),
    ],
)
def test_a_model_is_told_what_a_partial_does(function: Any, doc: str) -> None:
    """Not what `partial` is."""
    assert FunctionTool(function).description == doc


CONTEXTS = [
    "ToolContext",
    "ToolContext | None",
    "None | ToolContext",
    "Optional[ToolContext]",
    "typing.Optional[ToolContext]",
    "Union[ToolContext, None]",
    "Annotated[ToolContext, 'of the call']",
    "Optional['ToolContext']",
    "adk.tools.ToolContext | None",
    "Optional[perdure.ToolContext]",
    "'ToolContext'",
]


@pytest.mark.parametrize("annotation", CONTEXTS)
def test_a_context_is_known_however_it_is_written(annotation: str) -> None:
    """Its module may be imported for type checkers only, as may `Optional`."""

    def tool(a: int, where: Any = None) -> Any:
        return a, where

    tool.__annotations__ = {"a": "int", "where": annotation}
    assert FunctionTool(tool).signature.context == "where"
    assert list(declared(FunctionTool(tool))["properties"]) == ["a"]
    assert got(FunctionTool(tool), {"a": 1, "where": "a model's"}) == (1, CONTEXT)


@pytest.mark.parametrize("annotation", ["MyToolContext", "ToolContextual", "list[ToolContext]"])
def test_what_is_no_context_is_not_taken_for_one(annotation: str) -> None:
    def tool(a: int, where: Any) -> Any:
        return a, where

    tool.__annotations__ = {"a": "int", "where": annotation}
    with pytest.raises(DefinitionError, match="parameter 'where'"):
        FunctionTool(tool).plan()


def positional(a: int, /) -> None: ...


def unnamed(*values: int) -> None: ...


def of_context(ctx: ToolContext, /, a: int) -> None: ...


def unimported(a: int, b: Elsewhere) -> None: ...


def overlapping(lang: str, **options: Unpack[Options]) -> None: ...  # pyright: ignore -- that is the point


class Connection:
    """Nothing that pydantic knows."""


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (tool_of(Connection), r"'x' has the type .*Connection, which cannot be declared.*: Unable to generate .*; use"),
        (tool_of(list[Connection]), r"parameter 'x' has the type list"),
        (tool_of(Callable[[int], int]), r"parameter 'x' .*CallableSchema"),
        (tool_of(int | Callable[[int], int]), r"parameter 'x' .*CallableSchema"),
        (tool_of(Callable[[int], int] | None, None), r"parameter 'x' .*CallableSchema"),
        (tool_of(Collection[int]), r"parameter 'x' has the type .*Collection\[int\]"),
        (tool_of(type[int]), r"parameter 'x' "),
        (tool_of(typing.Self), r"parameter 'x' .*Self"),
        (tool_of(enum.Enum), r"parameter 'x' .*Enum has no members"),
        (tool_of(Annotated[str, Field(pattern="(")]), r"parameter 'x' .*unclosed group"),
        (tool_of(Lazy), r"parameter 'x' .*Lazy has a field of the type Iterable.*; make it a list"),
        (tool_of(LazyToo | None), r"parameter 'x' .*LazyToo has a field of the type Iterable"),
        (tool_of(Outer), r"parameter 'x' .*Lazy has a field of the type Iterable"),
        (tool_of("Nowhere"), r"parameter 'x' has an annotation 'Nowhere' that cannot be resolved"),
        (tool_of("list[Nowhere]"), r"parameter 'x' has an annotation"),
        (FunctionTool(unimported), r"parameter 'b' has an annotation 'Elsewhere' that cannot be resolved"),
        (FunctionTool(positional), r"parameter 'a' is positional-only"),
        (FunctionTool(of_context), r"parameter 'ctx' is positional-only"),
        (FunctionTool(unnamed), r"parameter '\*values' takes arguments without names"),
        (tool_of(Literal["a", b"b"]), r"parameter 'x' .*JSON has no bytes"),
        (FunctionTool(Shelf.find), r"Shelf.find is a method without its object.*: Shelf\(\).find"),
        (FunctionTool(chosen), r"chooses by the type of its first argument .*; write a function around it"),
        (FunctionTool(functools.partial(chosen, n=2)), r"chooses by the type of its first argument"),
        (FunctionTool(Shelf().chosen), r"chooses by the type of its first argument"),
        (FunctionTool(renaming(plain)), r"its decorator takes no argument 'query'"),
        (FunctionTool(overlapping), r"tool 'overlapping' .*overlaps with parameter 'lang'"),
    ],
)
def test_what_cannot_be_declared_is_refused_by_its_parameter_and_reason(function: FunctionTool, message: str) -> None:
    with pytest.raises(DefinitionError, match=message) as caught:
        function.plan()
    assert str(caught.value).startswith(f"tool {function.name!r}")
    assert "\n" not in str(caught.value)


def check(value: str) -> str:
    raise ZeroDivisionError("never by zero")


def stop(value: str) -> str:
    raise StopIteration


@pytest.mark.parametrize(
    ("tool", "args", "words"),
    [
        (tool_of(int), {"x": "five"}, "x: Input should be a valid integer, unable to parse string as an integer"),
        (tool_of(int), {"x": None}, "x: Input should be a valid integer"),
        (tool_of(int), {}, "the following mandatory input parameters are not present:\nx\n"),
        (tool_of(bytes), {"x": "!"}, "x: Data should be valid base64"),
        (tool_of(Box), {"x": {}}, "x.width: Field required"),
        (tool_of(Box), {"x": {"width": 1, "inner": [{"width": "w"}]}}, "x.inner.0.width: Input should be a valid int"),
        (tool_of(Size), {"x": {"width": "w"}}, "x.width: Input should be a valid integer"),
        (tool_of(Colour), {"x": "green"}, "x: Input should be 'red' or 'blue'"),
        (tool_of(Iterable[int]), {"x": ["a"]}, "x.0: Input should be a valid integer"),
        (tool_of(Iterable[int]), {"x": "a"}, "x: Input should be a valid array"),
        (tool_of(list[int]), {"x": ["a"] * 1000}, "x.19: Input should be a valid integer"),
        (tool_of(list[int]), {"x": ["a"] * 1000}, "\nand 980 more"),
        (tool_of(Literal["y" * 9000]), {"x": "n"}, "more characters)"),
        (tool_of(Annotated[str, BeforeValidator(check)]), {"x": "a"}, "ZeroDivisionError: never by zero"),
        (tool_of(Annotated[str, BeforeValidator(stop)]), {"x": "a"}, "StopIteration"),
        (tool_of(str), {"x": "\udcff"}, "no JSON"),
        (tool_of(str), {"x": object()}, "no JSON"),
    ],
)
def test_a_wrong_argument_is_told_in_pydantics_words(tool: FunctionTool, args: dict[str, Any], words: str) -> None:
    """It never fails the tool, and however many there are, the model gets an answer that it can read."""
    said = told(tool, args)
    assert said.startswith("Invoking `tool()` failed as ")
    assert words in said
    assert len(said) < 5000


def test_arguments_that_no_parameter_takes_are_dropped() -> None:
    """As in ADK, and in pydantic's models."""
    assert got(tool_of(int), {"x": 1, "y": 2, "perdure_rest": 3, "x ": 4}) == 1


def test_odd_numbers_and_deep_values_arrive_or_are_told() -> None:
    tool = tool_of(Any)
    assert tool.bind({"x": float("inf")}, CONTEXT) == {"x": float("inf")}
    assert tool.bind({"x": 10**400}, CONTEXT) == {"x": 10**400}
    deep: list[Any] = []
    for _ in range(230):
        deep = [deep]
    assert "recursion limit" in told(tool, {"x": deep})


SCALARS: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (int, st.integers(-(10**9), 10**9)),
    (str, st.text(st.characters(exclude_categories=["Cs"]), max_size=4)),
    (bool, st.booleans()),
    (Colour, st.sampled_from(list(Colour))),
    (bytes, st.binary(max_size=4)),
    (Box, st.builds(Box, st.integers(0, 9), st.integers(0, 9), st.binary(max_size=3))),
    (Point, st.builds(Point, st.integers(0, 9), st.integers(0, 9))),
    (Node, st.builds(Node, name=st.sampled_from("ab"), below=st.just([]))),
]


def nested(inner: tuple[Any, st.SearchStrategy[Any]]) -> st.SearchStrategy[tuple[Any, st.SearchStrategy[Any]]]:
    of, values = inner
    lists = st.lists(values, max_size=3)
    wrapped: list[tuple[Any, st.SearchStrategy[Any]]] = [
        (list[of], lists),
        (Sequence[of], lists),
        (Iterable[of], lists),
        (tuple[of, ...], lists.map(tuple)),
        (tuple[of, int], st.tuples(values, st.integers(0, 9))),
        (collections.deque[of], lists.map(collections.deque)),
        (dict[str, of], st.dictionaries(st.sampled_from("abc"), values)),
        (Mapping[int, of], st.dictionaries(st.integers(0, 9), values, max_size=3)),
        (of | None, st.none() | values),
    ]
    return st.sampled_from(wrapped)


TYPED = st.recursive(st.sampled_from(SCALARS), lambda inner: inner.flatmap(nested), max_leaves=3)


def as_json(value: Any) -> Any:
    """Return a value as a model would give it, by what is declared."""
    match value:
        case bytes():
            return base64.b64encode(value).decode()
        case enum.Enum():
            return value.value
        case BaseModel():
            return value.model_dump(mode="json")
        case Box():
            return {field.name: as_json(getattr(value, field.name)) for field in dataclasses.fields(value)}
        case dict():
            return {str(key): as_json(one) for key, one in cast(dict[Any, Any], value).items()}
        case list() | tuple() | collections.deque():
            return [as_json(one) for one in cast(Iterable[Any], value)]
        case _:
            return value


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_any_nesting_of_types_gets_back_what_was_meant(data: st.DataObject) -> None:
    """What is declared is JSON, and the value that its author had in mind arrives, of its type, to be read twice."""
    annotation, values = data.draw(TYPED)
    value = data.draw(values)
    tool = tool_of(annotation)
    declared(tool)
    converted = got(tool, {"x": as_json(value)})
    assert converted == value
    assert converted == value, "nothing is used up by reading it"
    assert type(converted) is type(value)


def plain_tool(
    a: str,
    b: int | None,
    c: list[dict[str, float]],
    d: bool | None,
    e: Any,
    f: dict[str, Any],
    **rest: list[Any],
) -> None: ...


def unannotated(a, b=1, c=None, d="x"): ...  # type: ignore[no-untyped-def]


def with_model(a: int, box: Box) -> None: ...


def with_date(when: datetime.date) -> None: ...


def with_validator(a: Annotated[int, AfterValidator(lambda value: value)]) -> None: ...


def with_several(a: list[Box | None]) -> None: ...


def with_factory(a: str = Field(default_factory=lambda: "now")) -> None: ...


def with_own_default(a: Any = CONTEXT) -> None: ...


def with_list(a: list[int] = [1]) -> None: ...  # noqa: B006 -- what pydantic copies


class _BindsItself(FunctionTool):
    def bind(self, args: Mapping[str, Any], tool_context: ToolContext) -> dict[str, Any]:
        return super().bind(args, tool_context)


def test_arguments_of_jsons_own_types_are_converted_without_code_of_the_users() -> None:
    quick: list[Callable[..., None]] = [plain_tool, unannotated]
    slow: list[Callable[..., None]] = [with_model, with_date, with_validator, with_several]
    slow += [with_factory, with_own_default, with_list]
    assert [FunctionTool(function).binding_may_run_users_code for function in quick] == [False] * len(quick)
    assert [FunctionTool(function).binding_may_run_users_code for function in slow] == [True] * len(slow)
    assert _BindsItself(plain_tool).binding_may_run_users_code
    tool = FunctionTool(plain_tool)
    tool.__dict__["bind"] = dict
    assert tool.binding_may_run_users_code
