"""Logging: structlog in front, the standard library's loggers behind.

Every line goes through the standard library, so that an application which embeds Perdure keeps its own handlers;
`configure_logging` is for processes that Perdure owns. Workflow code may log: lines are dropped while a workflow
replays. What users and models say is private: such values are withheld from every line above debug level.

structlog is loaded with the first line or name, since most commands log nothing, and it takes a third of a second.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, cast

if TYPE_CHECKING:
    from structlog.stdlib import BoundLogger

    from perdure.logs.lines import bound, configure_logging, invocation_at_work, names_at_work

__all__ = ["Level", "bound", "configure_logging", "get_logger", "invocation_at_work", "names_at_work", "redact_logs"]

Level = Literal["debug", "info", "warning", "error"]
"""The least severe lines that are shown."""

redaction_of_logs: list[Callable[[str], str]] = []
"""What sees the texts of log lines, once there is such a function."""


shows_errors: list[bool] = []
"""Whether lines may say what exceptions of users' code say, which may quote anything: not unless somebody says so."""


def redact_logs(redact: Callable[[str], str]) -> None:
    """Redact every text of this process's log lines by a function, from Perdure's loggers and `configure_logging`.

    Args:
        redact: One that fails on nothing.
    """
    redaction_of_logs[:] = [redact]


def get_logger(name: str) -> BoundLogger:
    """Return the logger of a module; its lines reach the standard library's logger of the same name.

    Safe in workflow code, where it is silent on replay.
    """
    return cast("BoundLogger", _LateLogger(name))


class _LateLogger:
    """A logger that is made as it is first used."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute == "_made":
            self._made = _lines().make_logger(self._name)
            return self._made
        return getattr(self._made, attribute)


def _lines() -> Any:
    return import_module("perdure.logs.lines")


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(_lines(), name)
    return value
