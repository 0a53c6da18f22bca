"""Log lines of what models are asked and answer, and of what tools get and return: at debug level only, to be read."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from google.genai import types
from pydantic import BaseModel

from perdure.journal.events import Event
from perdure.journal.secrets import redacted
from perdure.journal.tool_output import ToolOutput
from perdure.logs import get_logger

__all__ = ["log_answer", "log_call", "log_request", "log_result"]

_LOGGER = "perdure.worker"
_log = get_logger(_LOGGER)


def log_request(model: str, contents: Iterable[types.Content], config: types.GenerateContentConfig | None) -> None:
    """Log what a model is asked: instruction, contents, and the names of the tools that it is offered."""
    if not _is_shown():
        return
    tools = [tool for tool in (config.tools or [] if config is not None else []) if isinstance(tool, types.Tool)]
    names = [declared.name for tool in tools for declared in tool.function_declarations or []]
    instruction: Any = cast("Any", config).system_instruction if config is not None else None
    _log.debug(
        "model is asked",
        model=model,
        offered=", ".join(filter(None, names)),
        instruction=_plain(instruction) if instruction is not None else "",
        contents=[_plain(content) for content in contents],
    )


def log_answer(events: Sequence[Event]) -> None:
    """Log what a model has answered."""
    if _is_shown():
        contents = [event.content for event in events if event.content is not None]
        _log.debug("model has answered", response=[_plain(content) for content in contents])


def log_call(args: Mapping[str, Any]) -> None:
    """Log what a tool or a function is called with."""
    if _is_shown():
        _log.debug("tool is called", arguments=_plain(args))


def log_result(output: object) -> None:
    """Log what a tool or a function has returned."""
    if not _is_shown():
        return
    if isinstance(output, ToolOutput):
        output = output.result if output.content is None else output.content
    _log.debug("tool has returned", result=_plain(output))


def _is_shown() -> bool:
    return logging.getLogger(_LOGGER).isEnabledFor(logging.DEBUG)


def _plain(value: object) -> Any:
    """Return a value as plain data, without the secrets of credentials, and with sizes in the place of bytes."""
    if isinstance(value, BaseModel):
        value = value.model_dump(by_alias=True, exclude_none=True)
    return redacted(_without_bytes(value))


def _without_bytes(value: object) -> Any:
    if isinstance(value, bytes):
        return f"({len(value):,} bytes)"
    if isinstance(value, Mapping):
        return {str(key): _without_bytes(item) for key, item in cast("Mapping[Any, object]", value).items()}
    if isinstance(value, list | tuple):
        return [_without_bytes(item) for item in cast("list[object]", value)]
    return value
