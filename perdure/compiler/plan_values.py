"""Checks that a plan is JSON, which it becomes in each session: a text or number that JSON has not is named."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, cast

from perdure.errors import DefinitionError
from perdure.plan.nodes import Plan


def check_values(plan: Plan) -> Plan:
    """Return a plan.

    Raises:
        DefinitionError: A value of it is no JSON; the message names the agent and the field.
    """
    for node in plan.every_node:
        for path, what in _odd(node.model_dump(by_alias=True, exclude_none=True, exclude={"sub_agents"})):
            raise DefinitionError(f"agent {node.name!r}: {path.lstrip('.')} has {what}, which is no JSON; leave it out")
    return plan


def _odd(value: Any) -> Iterator[tuple[str, str]]:
    """Yield the place of each value that JSON has not, and what it is."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            yield "", "half of a character (a lone surrogate)"
    elif isinstance(value, float):
        if not math.isfinite(value):
            yield "", f"the number {value}"
    elif isinstance(value, dict):
        for key, one in cast("dict[Any, Any]", value).items():
            shown = str(key).encode("ascii", "backslashreplace").decode()
            yield from ((f".{shown}{path}", what) for each in (key, one) for path, what in _odd(each))
    elif isinstance(value, list | tuple):
        for index, one in enumerate(cast(Sequence[Any], value)):
            yield from ((f"[{index}]{path}", what) for path, what in _odd(one))
