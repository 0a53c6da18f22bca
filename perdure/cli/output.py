"""Prints events, invocations and sessions, as text for people or as JSON.

All that a command writes goes through the functions of here: ids, names and texts are other people's, and could steer
the terminal.
"""

from __future__ import annotations

import io
import json
import os
import shlex
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from perdure.escapes import escaped, escaped_json
from perdure.messages.keys import SessionKey
from perdure.views.words import arguments_text, describe_event, short_json

if TYPE_CHECKING:
    from perdure.agents.adk_app import AnyApp
    from perdure.cli.options import Connection
    from perdure.journal.events import Event
    from perdure.journal.open_calls import PendingCall
    from perdure.messages.effects import Effect
    from perdure.messages.session import InvocationView
    from perdure.plan.nodes import Plan
    from perdure.sessions.listing import ListedSession


def say(text: str = "", *, err: bool = False, lines: bool = False, end: str = "\n") -> None:
    """Print text, with what could steer a terminal escaped.

    Args:
        text: One line, with no line end inside of an id or a name that could make it look like two.
        err: To standard error.
        lines: The text may have several lines.
        end: What stands behind it.
    """
    click.echo(escaped(text, lines=lines) + end, err=err, nl=False)


def why_not(app: AnyApp) -> str | None:
    """Return in a line why an app of a folder cannot run; `None` if it can."""
    from perdure.agents.broken import BrokenApp

    return f"cannot run: {' '.join(app.reason.split())}" if isinstance(app, BrokenApp) else None


def warn_of_broken(apps: Sequence[AnyApp]) -> None:
    """Print the apps of a folder that cannot run, each with its reason in a line."""
    for app in apps:
        reason = why_not(app)
        if reason is not None:
            say(f"perdure: {app.name} {reason}", err=True)


def has_colours() -> bool:
    """Return whether standard output shows colours: a terminal, and nobody wants none (https://no-color.org)."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def say_labelled(label: str, colour: str | None, text: str) -> None:
    """Print a line that begins with a label in a colour, where standard output shows colours."""
    label = escaped(label)
    click.echo(f"{click.style(label, fg=colour) if has_colours() else label} {escaped(text)}")


def say_json(text: str) -> None:
    """Print a line of JSON that a terminal can show."""
    click.echo(escaped_json(text))


def say_line_of_file(text: str) -> None:
    """Print a line of a file of JSON: to a file or a pipe as it is, to a terminal so that it can be shown."""
    click.echo(escaped_json(text) if sys.stdout.isatty() else text)


def write_bytes(content: bytes) -> None:
    """Write bytes to standard output as they are."""
    click.echo(content, nl=False)


def confirm(question: str) -> None:
    """Ask, and go on after a yes.

    Raises:
        click.Abort: The answer is no.
    """
    click.confirm(escaped(question), abort=True, err=True)


def show_refusal(error: click.ClickException) -> None:
    """Print an error of click's, and how the command is used."""
    text = io.StringIO()
    error.show(text)
    say(text.getvalue(), err=True, lines=True, end="")


def show_event(event: Event, *, as_json: bool) -> None:
    """Print one event: ADK's JSON on a line, or what happened in words."""
    if as_json:
        say_json(event.to_json())
        return
    for line in describe_event(event):
        say(line, lines=True)


def session_flags(key: SessionKey) -> str:
    """Return the words that name a session, to be pasted into a shell behind a command."""
    return f"{shlex.quote(key.app)} --user {shlex.quote(key.user)} --session {shlex.quote(key.session)}"


def show_outcome(
    key: SessionKey,
    invocation: InvocationView,
    connection: Connection,
    *,
    as_json: bool,
    plan: Plan | None = None,
) -> None:
    """Print how an invocation stands, and what can be done: on standard error, or as the last line of JSON.

    Args:
        key: The session.
        invocation: The invocation.
        connection: Where it is.
        as_json: As JSON.
        plan: Says of what types answers are.
    """
    if as_json:
        show_json({**key.arguments, "invocation": invocation})
        return
    from perdure.views.forms.declared import example_answer

    flags = session_flags(key) + connection.flags
    status = "waiting" if invocation.pending and invocation.status == "finished" else invocation.status
    say(f"invocation {invocation.id} is {status}", err=True)
    for failure in invocation.failures:
        text = f"  agent {failure.agent!r} failed in {failure.step!r}: {failure.cause}"
        say(text, err=True)
    if invocation.failures:
        say(f"  where, why:  perdure explain {flags} {shlex.quote(invocation.id)}", err=True)
    if invocation.reason is not None:
        say(f"  {invocation.reason}", err=True)
    if invocation.resumable:
        say(f"  resume it:  perdure resume {flags} {shlex.quote(invocation.id)}", err=True)
    for call in () if invocation.status == "stopped" else invocation.pending:
        say(f"  waits for {call_text(call)} of {call.agent}", err=True)
        for line in answer_lines(flags, call, example_answer(call, plan)):
            say(f"  {line}", err=True)


def show_json(value: Any) -> None:
    """Print any value of Perdure's as one line of JSON, fields without a value left out."""
    from pydantic_core import to_json

    say_json(to_json(value, by_alias=True, exclude_none=True, bytes_mode="base64").decode())


def show_sessions(sessions: Sequence[ListedSession]) -> None:
    """Print sessions as a table; `-` is what a server without search attributes does not know."""
    rows = [
        (
            session.app_name,
            session.user_id,
            session.id,
            (session.status or "-") + (" (workflow closed)" if session.closed else ""),
            age(session.started),
            ", ".join(session.pending_tools) if session.pending_tools is not None else "-",
        )
        for session in sessions
    ]
    show_table(("APP", "USER", "SESSION", "STATUS", "STARTED", "WAITS FOR"), rows)


def show_pending(calls: Sequence[tuple[ListedSession, PendingCall]]) -> None:
    """Print open calls as a table."""
    rows = [
        (
            view.app_name,
            view.user_id,
            view.id,
            call.agent,
            call_text(call),
            call.id,
            age(call.since),
            clock(call.deadline),
        )
        for view, call in calls
    ]
    show_table(("APP", "USER", "SESSION", "AGENT", "CALL", "CALL ID", "SINCE", "DEADLINE (UTC)"), rows)


def show_effects(effects: Sequence[Effect]) -> None:
    """Print a session's ledger as a table, in the order of the calls."""
    rows = [
        (
            effect.agent,
            effect.tool,
            effect.outcome + (f" ({short_json(effect.cause)})" if effect.outcome == "failed" and effect.cause else ""),
            str(effect.attempts),
            clock(effect.started),
            f"{effect.ended - effect.started:.2f} s" if effect.started and effect.ended else "-",
            effect.idempotency_key,
        )
        for effect in effects
    ]
    show_table(("AGENT", "TOOL", "OUTCOME", "ATTEMPTS", "STARTED (UTC)", "TOOK", "IDEMPOTENCY KEY"), rows)


def show_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows in columns under a head; the last column is not padded."""
    cleaned = [tuple(escaped(cell) for cell in row) for row in (head, *rows)]
    widths = [max(len(row[column]) for row in cleaned) for column in range(len(head))]
    for row in cleaned:
        say("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def call_text(call: PendingCall) -> str:
    """Return an open call in words: the tool and its arguments; of an approval, those that it is about."""
    from perdure.journal.events import asked_about
    from perdure.views.pages import QUESTION_WORDS

    what, asked = QUESTION_WORDS.get(call.name), asked_about(call.args)
    if call.about:
        return f"{what} {call.about}"
    if not what or not asked:
        return f"{call.name}({arguments_text(call.args)})"
    return f"{what} {asked.get('name')}({arguments_text(asked.get('args') or {})})"


def answer_lines(flags: str, call: PendingCall, example: Mapping[str, Any]) -> Iterator[str]:
    """Yield the command that answers an open call, to be pasted into a shell; of an approval, the two that do."""
    from perdure.journal.events import REQUEST_CONFIRMATION

    command, id = f"perdure respond {flags}", shlex.quote(call.id)
    if call.name == REQUEST_CONFIRMATION:
        yield f"approve it: {command} --approve {id}"
        yield f"reject it:  {command} --reject {id}"
    else:
        yield f"answer it:  {command} {id}={shlex.quote(json.dumps(example, ensure_ascii=False))}"


def clock(timestamp: float | None) -> str:
    """Return a time as people and log searches write it, to the second."""
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(timestamp)) if timestamp is not None else "-"
    except (OverflowError, ValueError, OSError):
        # An imported log may tell of any time.
        return "?"


def age(timestamp: float) -> str:
    """Return how long ago a time was, in its largest unit."""
    seconds = max(0, int(time.time() - timestamp))
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds // length} {unit} ago"
    return f"{seconds} s ago"
