"""Reads and checks the bodies of requests: off the event loop, and none with more values in it than one may have."""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, NoReturn, cast

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.params import Form
from fastapi.routing import APIRoute
from pydantic import TypeAdapter, ValidationError
from starlette.requests import ClientDisconnect

from perdure.api.auth.access import check_users

__all__ = ["MAX_PLACES", "MAX_VALUES", "CheckedRequest", "CheckedRoute", "InvalidBody", "describe", "parse_json"]

MAX_VALUES = 100_000
"""Values in one body: each text, number, list and object. To check it takes time by value."""

MAX_PLACES = 20
"""Of what is wrong with a request, how many places are named."""

_MAX_NAME = 100
"""Characters of a name in such a place: it may be the client's own."""

_SMALL = 10_000
"""Bytes that are checked at once: to hand them to a thread would take longer."""

_GONE = 499

_MARKS = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[{,]', re.DOTALL)
"""Texts, of which none is looked into, and what begins another value. It matches whatever begins with a quote, so that
no text is looked at twice."""


def count_values(body: bytes, most: int) -> int:
    """Return how many values a JSON text has at most, or a number over `most` if they are more; no more are counted."""
    if body.count(b",") + body.count(b"[") + body.count(b"{") < most:
        return 1
    values = texts = 1
    for mark in _MARKS.finditer(body):
        if body[mark.start()] == 0x22:
            texts += 1
        else:
            values += 1
        # Names are no values; JSON has no more texts than these and the values.
        if values > most or texts > 2 * most:
            return most + 1
    return values


def parse_json(body: bytes) -> Any:
    """Return a body's value.

    Raises:
        InvalidBody: It is no JSON in UTF-8, has too many values, or a number that JSON has not.
    """
    if count_values(body, MAX_VALUES) > MAX_VALUES:
        raise _refused("too_many_values", f"the body has more than the {MAX_VALUES} values that one may have")
    try:
        return json.loads(body.decode(), parse_constant=_no_number, parse_float=_finite)
    except json.JSONDecodeError as error:
        raise _refused("json_invalid", f"the body is no JSON: {error.msg}", error.pos) from None
    except UnicodeDecodeError:
        raise _refused("json_invalid", "the body is no JSON: it is not in UTF-8") from None
    except RecursionError:
        raise _refused("json_invalid", "the body has too many lists and objects within each other") from None
    except ValueError:
        raise _refused("json_invalid", "the body holds a number that is too long") from None


def _no_number(name: str) -> NoReturn:
    raise _refused("json_invalid", f"the body holds a number that JSON has not: {name}")


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise _refused("json_invalid", "the body holds a number that JSON has not: one that is infinite")
    return number


class InvalidBody(RequestValidationError):
    """A body is wrong in some places, of which the first are named."""

    def __init__(self, found: Sequence[Any], *, number: int) -> None:
        """Name the first, and say how many there are."""
        super().__init__(found)
        self.number = number


def _refused(kind: str, message: str, *where: int) -> InvalidBody:
    return InvalidBody([{"type": kind, "loc": ("body", *where), "msg": message}], number=1)


def describe(error: RequestValidationError) -> dict[str, Any]:
    """Return FastAPI's form of an answer: the first places where a request is wrong, and not what is there."""
    found = error.errors()
    number = error.number if isinstance(error, InvalidBody) else len(found)
    told = [
        {"type": problem["type"], "loc": [_short(name) for name in problem["loc"]], "msg": str(problem["msg"])}
        for problem in found[:MAX_PLACES]
    ]
    return {"detail": told, "more": number - len(told)} if number > len(told) else {"detail": told}


def _short(name: str | int) -> str | int:
    return name[:_MAX_NAME] if isinstance(name, str) else name


class CheckedRequest(Request):
    """A request whose body is a value already, checked and converted."""

    checked: Any = None

    async def json(self) -> Any:
        """Return the value of the body."""
        return self.checked


class CheckedRoute(APIRoute):
    """A route whose JSON body is parsed and checked in a thread, once it is more than small."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler of a request."""
        handler = super().get_route_handler()
        field = self.body_field
        if field is None or isinstance(field.field_info, Form):
            return handler
        adapter = TypeAdapter[Any](cast("type[Any]", field.field_info.annotation))

        async def handle(request: Request) -> Response:
            # Of another user's session nothing is said, whatever the body holds.
            await check_users(request)
            try:
                body = await request.body()
            except ClientDisconnect:
                # It left, or was cut off since it took too long.
                return Response(status_code=_GONE)
            if not body or not _is_json(request.headers.get("content-type", "")):
                return await handler(request)
            checked = CheckedRequest(request.scope, request.receive)
            checked._body = body  # pyright: ignore[reportPrivateUsage] -- as FastAPI's guide has it: custom-request-and-route
            if len(body) <= _SMALL:
                checked.checked = _check(adapter, body)
            else:
                async with request.app.state.backend.checking:
                    checked.checked = await asyncio.to_thread(_check, adapter, body)
            return await handler(checked)

        return handle


def _is_json(content_type: str) -> bool:
    """Return whether FastAPI takes a body for JSON."""
    kind = content_type.partition(";")[0].strip().lower()
    return kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json"))


def _check(adapter: TypeAdapter[Any], body: bytes) -> Any:
    value = parse_json(body)
    try:
        return adapter.validate_python(value)
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False, include_input=False)[:MAX_PLACES]
        number = error.error_count()
    raise InvalidBody([{**problem, "loc": ("body", *problem["loc"])} for problem in found], number=number)
