"""The base of what users define: pydantic models whose errors say what to do."""

from __future__ import annotations

import difflib
import re
import reprlib
from typing import Any, Self, cast

from pydantic import BaseModel, ConfigDict, ModelWrapValidatorHandler, ValidationError, model_validator

from perdure.errors import DefinitionError, shortened
from perdure.journal.events import REQUEST_RECONCILE, USER
from perdure.plan.nodes import TRANSFER, ToolPlan


class Definition(BaseModel):
    """Base of what users define. Its errors are `DefinitionError`s that say what to do."""

    model_config = ConfigDict(arbitrary_types_allowed=True, extra="forbid")

    @model_validator(mode="wrap")
    @classmethod
    def _teach(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        try:
            return handler(data)
        except ValidationError as error:
            if not isinstance(data, dict):
                # Somebody's field holds the wrong thing; the definition around it says so.
                raise
            raise DefinitionError(_explain(cls, data, error)) from error


def check_agent_name(name: str) -> None:
    """Check a name by ADK's rules.

    Raises:
        DefinitionError: It is no Python identifier, or is reserved.
    """
    if not name.isidentifier():
        raise DefinitionError(f"agent name {name!r} is no Python identifier; use letters, digits and underscores")
    if name == USER:
        raise DefinitionError(f"no agent can be named {USER!r}: that is the author of the user's events")


_TOOL_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")
"""What Gemini takes, as its API describes `FunctionDeclaration.name`."""

_RESERVED = re.compile(rf"adk_request_.*|adk_framework|{REQUEST_RECONCILE}|__temporal_.*")
"""ADK's and Perdure's own calls, which stand for questions to people, and what Temporal keeps for itself."""

_MOST_CHARACTERS = 64


def check_tool_name(tool: ToolPlan, where: str) -> None:
    """Check that models can call a tool by its name, and that the name means nothing else.

    Raises:
        DefinitionError: They cannot, or it does; the message says why, and what to do.
    """
    name = tool.name
    if not _TOOL_NAME.fullmatch(name):
        raise DefinitionError(
            f"{where}: a tool is named {shortened(repr(name))}, which no model can call: {_odd(name)}"
        )
    if _RESERVED.fullmatch(name):
        raise DefinitionError(
            f"{where}: the tool name {name!r} is reserved: a call of this name is not a tool's; rename the function"
        )
    if name == TRANSFER and tool.kind != "transfer":
        raise DefinitionError(
            f"{where}: the tool name {name!r} is reserved: agents transfer to others by it; rename the function"
        )


def _odd(name: str) -> str:
    """Return what is wrong with a tool's name, and what to do."""
    if name == "<lambda>":
        return "a lambda has no name; define the function with def"
    if len(name) > _MOST_CHARACTERS:
        return f"it has {len(name)} characters, and {_MOST_CHARACTERS} are the most; rename the function"
    odd = next((character for character in name if not _TOOL_NAME.fullmatch(f"_{character}")), name[:1])
    said = f"it starts with {odd!r}" if _TOOL_NAME.fullmatch(f"_{odd}") else f"it holds {odd!r}"
    return f"{said}; use ASCII letters, digits and underscores, and no digit in front"


_IN_A_TOOL = "check or change things in the tool itself, or ask first: FunctionTool(fn, require_confirmation=…)"
_IN_A_MODEL = "a BaseLlm of your own, around another, sees every request and answer (docs/models.md)"
_IN_AN_AGENT = "a custom agent around it runs code before and after (docs/custom-agents.md)"
_ONLY_IN_ADK = {
    "before_agent_callback": _IN_AN_AGENT,
    "after_agent_callback": _IN_AN_AGENT,
    "before_model_callback": _IN_A_MODEL,
    "after_model_callback": _IN_A_MODEL,
    "on_model_error_callback": _IN_A_MODEL,
    "before_tool_callback": _IN_A_TOOL,
    "after_tool_callback": _IN_A_TOOL,
    "on_tool_error_callback": "return what the model is to know of an error from the tool (docs/tools.md)",
    "global_instruction": "put it into the instruction of each agent",
    "static_instruction": "put it into the instruction",
    "planner": "set thinking_config in generate_content_config",
    "code_executor": "write a tool that runs the code",
    "plugins": "leave them out; --otel shows what happens, and a BaseLlm of your own changes what models get",
    "events_compaction_config": "set include_contents='none' where an agent needs no history",
    "context_cache_config": "leave it out; Gemini caches the beginnings of prompts by itself",
}
"""Fields of ADK's that Perdure has not, and what does their work."""


def _explain(cls: type[Definition], data: Any, error: ValidationError) -> str:
    given = cast(dict[str, Any], data) if isinstance(data, dict) else {}
    name = given.get("name")
    who = f"{cls.__name__} {name!r}" if isinstance(name, str) else cls.__name__
    problems: dict[str, str] = {}
    for problem in error.errors(include_url=False, include_context=False):
        field = str(problem["loc"][0]) if problem["loc"] else ""
        if problem["type"] == "extra_forbidden":
            problems[field] = _explain_unknown(cls, field)
        elif problem["type"] == "missing":
            problems[field] = f"needs the field {field!r}"
        elif field in problems:
            # Another member of a union that does not fit either.
            problems[field] += f" / {problem['msg']}"
        else:
            problems[field] = f"cannot take {field}={reprlib.repr(given.get(field))}: {problem['msg']}"
    return f"{who} " + "; it ".join(problems.values())


def _explain_unknown(cls: type[Definition], field: str) -> str:
    if field in _ONLY_IN_ADK:
        return f"has no field {field!r}: ADK does, but Perdure does not offer it; {_ONLY_IN_ADK[field]}"
    names = list(cls.model_fields)
    close = difflib.get_close_matches(field, names, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"its fields are {', '.join(names)}"
    return f"has no field {field!r}; {hint}"
