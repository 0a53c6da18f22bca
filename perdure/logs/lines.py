"""What becomes of a log line: names bound to it, what is private withheld, the rest redacted, and its form."""

from __future__ import annotations

import logging
import sys
from collections.abc import Generator, Iterator, MutableMapping
from contextlib import contextmanager, suppress
from json import dumps
from typing import Any, Final, TextIO, cast

import structlog
from structlog.contextvars import bind_contextvars, get_contextvars, reset_contextvars
from structlog.stdlib import BoundLogger, ExtraAdder, ProcessorFormatter
from structlog.typing import EventDict, Processor
from temporalio import activity, workflow

from perdure.escapes import escaped
from perdure.logs import Level, redaction_of_logs, shows_errors

_PRIVATE: Final = frozenset(
    {
        *("api_key", "args", "arguments", "authorization", "content", "contents", "instruction", "message_text"),
        *(
            "password",
            "payload",
            "prompt",
            "response",
            "responses",
            "result",
            "secret",
            "state",
            "state_delta",
            "token",
        ),
    }
)
_WITHHELD: Final = "(withheld)"
_RECORD_FIELDS: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


def make_logger(name: str) -> BoundLogger:
    """Return a logger whose lines reach the standard library's logger of this name."""
    logger: BoundLogger = structlog.wrap_logger(
        logging.getLogger(name),
        processors=list(_CHAIN),
        wrapper_class=BoundLogger,
        # Levels are decided by the standard library's loggers, which may change after this logger was made.
        cache_logger_on_first_use=True,
    )
    return logger


@contextmanager
def bound(
    *,
    app: str | None = None,
    user: str | None = None,
    session: str | None = None,
    invocation: str | None = None,
    agent: str | None = None,
    tool: str | None = None,
) -> Generator[None]:
    """Let log lines of the block, from any logger of Perdure, bear these names.

    Safe in workflow code: it holds for the current task and those started inside.
    """
    names = {"app": app, "user": user, "session": session, "invocation": invocation, "agent": agent, "tool": tool}
    tokens = bind_contextvars(**{key: value for key, value in names.items() if value is not None})
    try:
        yield
    finally:
        # A block that garbage collection ends does so in the context of whoever runs then, whose names stay.
        with suppress(ValueError):
            reset_contextvars(**tokens)


def invocation_at_work() -> str | None:
    """Return the invocation that log lines of here are about, if `bound` names one. Safe in workflow code."""
    found = get_contextvars().get("invocation")
    return found if isinstance(found, str) else None


def names_at_work() -> dict[str, str]:
    """Return the names that `bound` gave to log lines of here. Safe in workflow code."""
    return {key: value for key, value in get_contextvars().items() if isinstance(value, str)}


def configure_logging(
    json: bool | None = None, level: Level = "info", stream: TextIO | None = None, *, errors: bool = False
) -> None:
    """Send the lines of every logger of the process, Temporal's and others' too, to one stream.

    Args:
        json: JSON, a line for each, or text for people. Default: text if the stream is a terminal.
        level: The least severe lines that are shown. Libraries other than Perdure and Temporal show warnings only.
        stream: Default: standard error.
        errors: Whether lines also say what exceptions of users' code say, which may quote anything.
    """
    shows_errors[:] = [True] if errors else []
    target = stream if stream is not None else sys.stderr
    as_json = json if json is not None else not target.isatty()
    handler = logging.StreamHandler(target)
    handler.setFormatter(
        ProcessorFormatter(
            foreign_pre_chain=[
                ExtraAdder(),
                _drop_internal,
                structlog.stdlib.add_logger_name,
                structlog.stdlib.add_log_level,
                structlog.processors.TimeStamper(fmt="iso", utc=True),
            ],
            processors=[ProcessorFormatter.remove_processors_meta, *_renderers(as_json, target)],
        )
    )
    root = logging.getLogger()
    for old in list(root.handlers):
        if isinstance(old.formatter, ProcessorFormatter):
            root.removeHandler(old)
    root.addHandler(handler)
    numeric = logging.getLevelNamesMapping()[level.upper()]
    root.setLevel(max(numeric, logging.WARNING))
    logging.getLogger("perdure").setLevel(numeric)
    # Below that it prints whole protobuf messages, which nobody reads.
    logging.getLogger("temporalio").setLevel(max(numeric, logging.INFO))
    # Perdure tells of a failed activity itself, in one line that quotes nothing.
    logging.getLogger("temporalio.activity").addFilter(_is_no_activity_failure)
    # What Temporal knows of the activity or workflow is in the line's fields; once is enough.
    activity.logger.activity_info_on_message = False
    workflow.logger.workflow_info_on_message = False


def _redacted(logger: Any, method: str, event: EventDict) -> EventDict:
    """Redact texts, those of exceptions too."""
    if not redaction_of_logs or event.get("logger") == "perdure.redaction":
        return event
    if event.get("exc_info"):
        event = structlog.processors.format_exc_info(logger, method, event)
    return {key: _redacted_value(value) for key, value in event.items()}


def _redacted_value(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | logging.LogRecord):
        return value
    if isinstance(value, list):
        return [_redacted_value(item) for item in cast("list[Any]", value)]
    if isinstance(value, dict):
        return {key: _redacted_value(item) for key, item in cast("dict[str, Any]", value).items()}
    return redaction_of_logs[0](value if isinstance(value, str) else repr(value))


def _is_no_activity_failure(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith("Completing activity as failed")


def _renderers(as_json: bool, stream: TextIO) -> list[Processor]:
    if as_json:
        return [structlog.processors.format_exc_info, _redacted, structlog.processors.JSONRenderer(default=str)]
    return [
        structlog.processors.format_exc_info,
        _redacted,
        _unfolded,
        _escape,
        structlog.dev.ConsoleRenderer(colors=stream.isatty(), pad_event_to=0),
    ]


def _unfolded(logger: Any, method: str, event: EventDict) -> EventDict:
    """Put what people read at length into lines of its own, each message or argument behind its field's name."""
    told = [line for key in sorted(_PRIVATE & event.keys(), key=_reading_order) for line in _in_lines(key, event[key])]
    if told and event.get("level") == "debug":
        event = {key: value for key, value in event.items() if key not in _PRIVATE}
        # structlog prints a field of this name below the line.
        event["stack"] = "\n".join(told)
    return event


def _reading_order(key: str) -> tuple[bool, str]:
    return key != "instruction", key


def _in_lines(key: str, value: Any) -> Iterator[str]:
    items: list[Any] = cast("list[Any]", value) if isinstance(value, list) else [value]
    for item in items:
        text = item if isinstance(item, str) else dumps(item, ensure_ascii=False, default=str)
        yield f"  {key}: " + text.replace("\n", f"\n  {' ' * len(key)}  ")


def _escape(logger: Any, method: str, event: EventDict) -> EventDict:
    """Escape what could steer a terminal: names and texts in a line are other people's."""
    told = {escaped(key): escaped(value) if isinstance(value, str) else value for key, value in event.items()}
    for key, value in told.items():
        if key in ("exception", "stack"):
            told[key] = escaped(str(event[key]), lines=True)
        elif not isinstance(value, str | int | float | None):
            told[key] = escaped(repr(value))
    return told


def _drop_on_replay(logger: Any, method: str, event: EventDict) -> EventDict:
    """Drop the line if a workflow replays: it was logged when the step first ran."""
    if workflow.in_workflow() and workflow.unsafe.is_replaying_history_events():
        raise structlog.DropEvent
    return event


def _drop_internal(logger: Any, method: str, event: EventDict) -> EventDict:
    """Drop the marks that Temporal's lines carry for its own use."""
    return {key: value for key, value in event.items() if not key.startswith("__")}


def _withhold_private(logger: Any, method: str, event: EventDict) -> EventDict:
    """Withhold what users, models and tools say, and secrets, from lines above debug level."""
    if method != "debug":
        for key in _PRIVATE & event.keys():
            event[key] = _WITHHELD
    return event


def _avoid_record_fields(logger: Any, method: str, event: EventDict) -> MutableMapping[str, Any]:
    """Rename keys that the standard library's records have themselves, which they refuse to overwrite."""
    clashes = (_RECORD_FIELDS & event.keys()) - {"exc_info", "stack_info"}
    return {f"{key}_" if key in clashes else key: value for key, value in event.items()} if clashes else event


_CHAIN: tuple[Processor, ...] = (
    structlog.stdlib.filter_by_level,
    _drop_on_replay,
    structlog.contextvars.merge_contextvars,
    _withhold_private,
    structlog.stdlib.PositionalArgumentsFormatter(),
    _redacted,
    _avoid_record_fields,
    structlog.stdlib.render_to_log_kwargs,
)
