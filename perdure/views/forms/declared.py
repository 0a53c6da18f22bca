"""The declared type of an answer, an example of it, and the answer that a person's text gives. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from pydantic_core import from_json

from perdure.journal import events
from perdure.journal.credential_questions import example_credential
from perdure.journal.open_calls import PendingCall
from perdure.plan.nodes import LlmNode, Plan
from perdure.views.forms.schema_check import Schema, choices_of, is_number, problem_of, resolved

_DEPTH = 6
"""Objects within objects of an example."""


def answer_schema(call: PendingCall, plan: Plan | None) -> Schema | None:
    """Return the JSON schema of the answer that a call declares; `None` if it declares none, or is a question.

    Args:
        call: The call.
        plan: The plan of its invocation, if it is known.
    """
    if call.name == events.REQUEST_INPUT:
        return _mapping(call.args.get("response_schema")) or None
    node = plan.find(call.agent) if plan is not None else None
    tool = node.tool(call.name) if isinstance(node, LlmNode) else None
    if tool is None:
        return None
    return tool.response_schema or _mapping(tool.declaration.response_json_schema) or None


def example_answer(call: PendingCall, plan: Plan | None = None) -> dict[str, Any]:
    """Return an answer of the form that an open call takes; see `answer_schema`."""
    match call.name:
        case events.REQUEST_CONFIRMATION:
            return {"confirmed": True}
        case events.REQUEST_CREDENTIAL:
            return {"exchangedAuthCredential": example_credential(call.args)}
        case events.REQUEST_RECONCILE:
            return {"happened": True, "result": "…"}
        case _:
            schema = answer_schema(call, plan)
            found = _example(schema, schema, _DEPTH) if schema else "…"
            return cast("dict[str, Any]", found) if isinstance(found, dict) else {"result": found}


def _example(schema: Schema, root: Schema, depth: int) -> Any:
    schema = resolved(schema, root)
    if schema.get("default") is not None:
        return schema["default"]
    if choices := choices_of(schema):
        return choices[0]
    options = [*_list(schema.get("anyOf")), *_list(schema.get("oneOf"))]
    if depth > 0 and options:
        first = next((one for one in options if resolved(one, root).get("type") != "null"), options[0])
        return _example(first, root, depth - 1)
    match schema.get("type"):
        case "boolean":
            return True
        case "integer" | "number" as kind:
            return _example_number(schema, kind)
        case "array":
            return _example_list(schema, root, depth - 1) if depth > 0 else []
        case "object":
            return _example_object(schema, root, depth - 1) if depth > 0 else {}
        case "null":
            return None
        case _:
            return "…"


def _example_list(schema: Schema, root: Schema, depth: int) -> list[Any]:
    least: Any = schema.get("minItems")
    first, rest = _list(schema.get("prefixItems")), _mapping(schema.get("items"))
    of = [*first, *([rest] * (least - len(first) if isinstance(least, int) else 0))]
    return [_example(one, root, depth) for one in of]


def _example_number(schema: Schema, kind: str) -> float:
    value: float = 1 if kind == "integer" else 1.0
    for name, step in (("minimum", 0), ("exclusiveMinimum", 1), ("maximum", 0), ("exclusiveMaximum", -1)):
        limit = schema.get(name)
        if is_number(limit) and problem_of(value, {name: limit}) is not None:
            value = cast("float", limit) + step
    return value


def _example_object(schema: Schema, root: Schema, depth: int) -> dict[str, Any]:
    properties = _mapping(schema.get("properties"))
    required: Any = schema.get("required")
    wanted = {str(name) for name in cast("list[Any]", required)} if isinstance(required, list) else set(properties)
    return {name: _example(_mapping(one), root, depth) for name, one in properties.items() if name in wanted}


def given_answer(text: str, schema: Schema | None) -> Any:
    """Return the response that a person's text gives: JSON where it is of the declared type, or the text itself.

    Without a declared type it is JSON if it can be. An answer that is no object may also be given as it is sent,
    under `result`.

    Raises:
        ValueError: It is not of the type, or begins like JSON and is none; the text says what to give.
    """
    if schema is None:
        return _json_or_text(text)
    try:
        value = read_json(text)
    except ValueError:
        # The text itself may be meant, if the type takes texts.
        return text if problem_of(text, schema) is None else _of_type(_json_or_text(text), schema)
    if answer_problem(value, schema) is not None and problem_of(text, schema) is None:
        # A number or a `true` where a text is asked for.
        return text
    return _of_type(value, schema)


def _json_or_text(text: str) -> Any:
    try:
        return read_json(text)
    except ValueError:
        if text.lstrip().startswith(("{", "[", '"')):
            # The first answer wins, so a slip must not become one.
            raise
        return text


def answer_problem(value: Any, schema: Schema) -> str | None:
    """Return what keeps an answer from being of the declared type, as `problem_of` does; `None` if it is of it.

    One that is no object may also be given as it is sent, under `result`.
    """
    if isinstance(value, dict):
        sent = cast("dict[str, Any]", value)
        if sent.keys() == {"result"} and problem_of(sent["result"], schema) is None:
            return None
    return problem_of(cast("Any", value), schema)


def _of_type(value: Any, schema: Schema) -> Any:
    problem = answer_problem(value, schema)
    if problem is not None:
        raise ValueError(problem)
    return value


def read_json(text: str) -> Any:
    """Return a JSON value.

    Raises:
        ValueError: It is none; the text says where it breaks off.
    """
    try:
        # Not `json.loads`: it takes half characters (lone surrogates) and NaN, which no journal could hold.
        return from_json(text, allow_inf_nan=False)
    except ValueError as error:
        raise ValueError(f'This is no JSON ({error}). Texts stand in quotes: "yes".') from None


def _list(value: Any) -> list[Schema]:
    return [one for one in cast("list[Any]", value) if isinstance(one, Mapping)] if isinstance(value, list) else []


def _mapping(value: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}
