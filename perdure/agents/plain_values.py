"""Converts values of user code to JSON: results of tools, writes to the state. Pure, but runs the values' methods.

It is pydantic's serialisation: dates as ISO texts, enums as their values, models and dataclasses as objects. Beyond it,
mappings and sequences of any class, bytes as URL-safe base64 everywhere, as in ADK's events, NaN and infinity as
texts, sets in a fixed order. What would lose something, such as keys that are equal as texts, is refused.
"""

from __future__ import annotations

import base64
import dataclasses
import email.message
import functools
import http.cookies
import math
import operator
from collections import UserString, deque
from collections.abc import Callable, ItemsView, Iterable, Iterator, KeysView, Mapping, Sequence, Set, ValuesView
from enum import Enum
from typing import Any, NoReturn, TypeVar, cast

from pydantic import TypeAdapter
from pydantic_core import PydanticSerializationError, to_json, to_jsonable_python

from perdure.agents.model_dumps import OneName, dump, is_model
from perdure.journal.nesting import MAX_LEVELS

_T = TypeVar("_T")

MAX_ITEMS = 100_000
"""What may be read that is in no memory yet: an iterator's end is not known, and a range of 8 bytes fills a machine."""

_MAX_BITS = 14_000
"""Of an integer: Python itself reads none of more than 4,300 digits."""

_SMALL = 2**63

_ATOMS = (bool, int, float, type(None))
_FEW_VALUES = 200
_FEW_CHARACTERS = 20_000

_REMEDY = "return plain data, such as texts, numbers, lists and dictionaries, or a pydantic model"
_SEQUENCES = (Sequence, Set, deque, KeysView, ValuesView, ItemsView)
_IN_MEMORY = (list, tuple, set, frozenset, deque)
_PATH_LENGTH = 200

_ELEMENT = ("tag", "attrib", "text", "tail", "__len__")
"""Of the standard library's elements, and of those of others that are like them: a list of their children alone."""
_READERS = ("readline", "iter_content")


class NotPlain(ValueError):
    """A value cannot be written as JSON; the text says where in it, and what to do. Users get it within a sentence."""


def to_plain(value: Any) -> Any:
    """Return a value as plain JSON data: dictionaries with texts as keys, lists, texts, numbers, booleans and `None`.

    Raises:
        NotPlain: It holds something that JSON cannot hold, or that would not arrive as it is.
    """
    writer = _Writer()
    try:
        return writer.write(value)
    except NotPlain:
        raise
    except Exception as error:
        # The value's own code: a property, an iterator, a serializer.
        writer.refuse(f"cannot be read: {type(error).__name__}: {str(error)[:300]}")


def is_small_json(value: Any) -> bool:
    """Return whether a value is JSON as it stands, and little of it: to read it takes no time, and runs no other code.

    What holds itself is not: each time round counts. NaN and half characters are left to `to_plain`.
    """
    left, seen, length = [value], 0, 0
    while left:
        one = left.pop()
        kind = cast("type[Any]", type(one))
        if kind is str:
            length += len(one)
        elif kind is dict:
            if len(one) > _FEW_VALUES or any(type(key) is not str for key in one):
                return False
            length += sum(map(len, one))
            left.extend(one.values())
        elif kind is list and len(one) <= _FEW_VALUES:
            left.extend(one)
        elif not any(kind is atom for atom in _ATOMS):
            return False
        seen += 1
        if seen + len(left) > _FEW_VALUES or length > _FEW_CHARACTERS:
            return False
    return True


class _Writer:
    """Writes one value, and knows where in it it is."""

    def __init__(self) -> None:
        self._path: list[object] = []
        self._open: set[int] = set()
        """Ids of the objects around the one that is written."""

    def refuse(self, why: str) -> NoReturn:
        where = "".join(f"[{str(part)[:40]!r}]" if isinstance(part, str) else f"[{part}]" for part in self._path)
        shown = where if len(where) <= _PATH_LENGTH else f"{where[:_PATH_LENGTH]}…"
        raise NotPlain(f"at {shown} it {why}" if where else f"it {why}")

    def write(self, value: Any) -> Any:
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, Enum):
            return self.write(value.value)
        if isinstance(value, str):
            return self._text(str.__str__(value))
        if isinstance(value, int):
            return self._integer(operator.index(value))
        if isinstance(value, float):
            return _number(float(value))
        if isinstance(value, UserString):
            return self._text(str(value))
        if isinstance(value, bytes | bytearray | memoryview):
            return base64.urlsafe_b64encode(bytes(cast(Any, value))).decode()
        return self._nested(value)

    def _text(self, text: str) -> str:
        if not text.isascii():
            try:
                text.encode()
            except UnicodeEncodeError:
                self.refuse("has a text with half of a character (a lone surrogate), which no JSON takes; leave it out")
        return text

    def _integer(self, number: int) -> int:
        if number.bit_length() > _MAX_BITS:
            self.refuse("has a whole number of more than 4,000 digits; return it as a text")
        return number

    def _nested(self, value: Any) -> Any:
        if id(value) in self._open:
            self.refuse("holds itself, so that it has no end; leave the reference out")
        if len(self._open) >= MAX_LEVELS:
            del self._path[8:]
            self.refuse(
                f"has more than {MAX_LEVELS} lists and objects within each other; return less of them, or a text"
            )
        self._open.add(id(value))
        try:
            return self._object(value)
        finally:
            self._open.discard(id(value))

    def _object(self, value: Any) -> Any:
        kind = cast("type[Any]", type(value))
        if is_model(kind):
            return self._model(value)
        self._check_holds_all(value, kind)
        if isinstance(value, Mapping):
            items = cast(Mapping[Any, Any], value).items()
            return self._items(items if isinstance(value, dict) else self._bounded(items))
        if isinstance(value, _SEQUENCES) and not hasattr(kind, "keys"):
            each = cast(Iterable[Any], value)
            found = self._list(each if isinstance(value, _IN_MEMORY) else self._bounded(each))
            return _sorted(found) if isinstance(value, set | frozenset) else found
        if hasattr(kind, "__dataclass_fields__"):
            return self._items(
                (field.name, getattr(cast(Any, value), field.name)) for field in dataclasses.fields(kind)
            )
        if isinstance(value, Iterator):
            return self._list(self._bounded(cast(Iterator[Any], value)))
        return self._other(value, kind)

    def _check_holds_all(self, value: Any, kind: type[Any]) -> None:
        """Refuse what looks like a mapping or a list, and has its content elsewhere."""
        if isinstance(value, email.message.Message) and value.get_payload():
            self.refuse("is an e-mail, of which a mapping is the headers alone; return its text, value.as_string()")
        if isinstance(value, http.cookies.Morsel):
            self.refuse("is a cookie, of which a mapping is the attributes alone; return its value")
        if all(hasattr(kind, name) for name in _ELEMENT):
            self.refuse("is an XML element; return its text, as xml.etree.ElementTree.tostring(…, 'unicode') writes it")
        if any(hasattr(kind, name) for name in _READERS):
            self.refuse("is an open file, or a response that is read like one; return what it holds")

    def _items(self, items: Iterable[tuple[Any, Any]]) -> dict[str, Any]:
        written: dict[str, Any] = {}
        for key, item in items:
            text = self._text(key) if type(key) is str else self._key(key)
            if text in written:
                self.refuse(f"has two keys that are {text[:40]!r} as texts, as all keys in JSON are; rename one")
            if _is_plain(item):
                written[text] = item
                continue
            self._path.append(text)
            written[text] = self.write(item)
            self._path.pop()
        return written

    def _key(self, key: Any) -> str:
        try:
            [text] = to_jsonable_python({key: None}, bytes_mode="base64")
        except (PydanticSerializationError, TypeError, ValueError):
            self.refuse(f"has a key of type {type(key).__name__}, which is no text; make it one")
        return self._text(str(text))

    def _bounded(self, items: Iterable[_T]) -> Iterator[_T]:
        for index, item in enumerate(items):
            if index >= MAX_ITEMS:
                self.refuse(f"gives more than {MAX_ITEMS:,} items one after the other; return a list or a dict")
            yield item

    def _list(self, items: Iterable[Any]) -> list[Any]:
        written: list[Any] = []
        for index, item in enumerate(items):
            if _is_plain(item):
                written.append(item)
                continue
            self._path.append(index)
            written.append(self.write(item))
            self._path.pop()
        return written

    def _model(self, value: Any) -> Any:
        """Write a pydantic model, or pydantic's dataclass, by its own serializer."""
        try:
            dumped = dump(value, self.write)
        except OneName:
            self.refuse("has two fields that are written under one name; give each an alias of its own")
        if isinstance(dumped, dict):
            return self._items(cast("dict[Any, Any]", dumped).items())
        return self.write(dumped)

    def _other(self, value: Any, kind: type[Any]) -> Any:
        """Write what is no container by its class: pydantic knows it, or it is like a number, an array or a mapping."""
        # Classes and functions have methods by the names of those, too.
        makers = (
            () if isinstance(value, type) or callable(value) else (_known, _as_array, self._as_mapping, _as_sequence)
        )
        for make in makers:
            found = make(value, kind)
            if found is not None:
                return self.write(found)
        return self.refuse(f"is an object of type {kind.__name__}, which is no JSON; {_REMEDY}")

    def _as_mapping(self, value: Any, kind: type[Any]) -> dict[Any, Any] | None:
        """Return a mapping that is not declared as one, such as a row of a database."""
        if not all(hasattr(kind, name) for name in ("keys", "__getitem__")):
            return None
        return {key: value[key] for key in self._bounded(value.keys())}


def _known(value: Any, kind: type[Any]) -> Any:
    """Return what pydantic makes of a value; `None` if it knows nothing of it."""
    try:
        found = to_jsonable_python(value, bytes_mode="base64")
    except PydanticSerializationError:
        adapter = _adapter(kind)
        try:
            found = None if adapter is None else adapter.dump_python(value, mode="json")
        except PydanticSerializationError:
            return None
    return None if found is value else found


@functools.lru_cache(maxsize=256)
def _adapter(kind: type[Any]) -> TypeAdapter[Any] | None:
    try:
        return TypeAdapter(kind)
    except Exception:
        # Whatever a class's own hook raises, too.
        return None


def _as_array(value: Any, kind: type[Any]) -> Any:
    """Return the plain value of a number or an array of another library, such as NumPy's; `None` if it is none."""
    for name in ("tolist", "item", "__index__"):
        # Of the class: an instance may answer to any name.
        method: Callable[[Any], Any] | None = getattr(kind, name, None)
        if method is not None:
            found: Any = method(value)
            return None if isinstance(found, kind) else found
    return None


def _as_sequence(value: Any, kind: type[Any]) -> Iterator[Any] | None:
    if hasattr(kind, "__len__") and hasattr(kind, "__getitem__"):
        return (value[index] for index in range(len(value)))
    return iter(value) if hasattr(kind, "__iter__") else None


def _is_plain(value: Any) -> bool:
    """Return whether a value is JSON as it stands; most values of a large result are, and need no more looks."""
    kind = cast("type[Any]", type(value))
    if kind is str:
        return value.isascii()
    if kind is int:
        return -_SMALL < value < _SMALL
    return kind is bool or value is None or (kind is float and math.isfinite(value))


def _number(number: float) -> float | str:
    """Return a number, or its name where JSON has none: as null it would be taken for a value that is missing."""
    if math.isfinite(number):
        return number
    return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"


def _sorted(items: list[Any]) -> list[Any]:
    """Return a set's items in an order that no hash decides, equal in every attempt and process."""
    try:
        return sorted(items)
    except TypeError:
        return sorted(items, key=to_json)
