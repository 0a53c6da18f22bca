"""How a schema for an agent's answers becomes the arguments of `set_model_response`. Pure.

ADK: `tools/set_model_response_tool.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_DEFINITIONS = "$defs"


def wrapper_of(schema: Mapping[str, Any]) -> str | None:
    """Return the argument that holds a whole answer; `None` where the answer's own fields are the arguments."""
    if schema.get("type") == "object" and "properties" in schema:
        return None
    return "items" if schema.get("type") == "array" else "response"


def arguments_for(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON schema of the arguments that hold an answer of this schema."""
    name = wrapper_of(schema)
    if name is None:
        return dict(schema)
    inner = {key: value for key, value in schema.items() if key != _DEFINITIONS}
    shared = {_DEFINITIONS: schema[_DEFINITIONS]} if _DEFINITIONS in schema else {}
    return {"type": "object", "properties": {name: inner}, "required": [name]} | shared


def answer_in(schema: Mapping[str, Any], args: Mapping[str, Any]) -> Any:
    """Return the answer that such arguments hold."""
    name = wrapper_of(schema)
    return dict(args) if name is None else args.get(name)
