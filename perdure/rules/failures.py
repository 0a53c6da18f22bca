"""Words the failures of activities: the same for a workflow, and for whoever reads its history."""

from __future__ import annotations

import hashlib
import re

from temporalio.api.enums.v1 import TimeoutType
from temporalio.api.failure.v1 import Failure

from perdure.errors import typed_text
from perdure.rules.in_doubt import CUT_OFF, NOT_STARTED, REFUSED, UNDECIDED

_SENTENCES = frozenset({"ModelError", "DefinitionError", "PayloadTooLarge", "NotJson"}) | REFUSED | NOT_STARTED
"""Perdure's own errors; anything else is known by its type."""


_TYPED = re.compile(r"([A-Z]\w{0,99}(?:Error|Exception|Timeout|Failed|Failure|Refused|Denied|Found|Unavailable)): ")
"""How the text of an exception of the operator's code starts: with a type that says so itself."""

_OWN = re.compile(
    rf"(?:timed out \([a-z-]+ timeout\)|{re.escape(CUT_OFF)})(?:; {re.escape(UNDECIDED)})?"
    r"|no answer came by the deadline of the call, [0-9T:+-]+; a resume waits for it without a deadline"
    r"|the session's workflow was [a-z ]+"
)
"""Texts that quote nothing."""


def reference(invocation_id: str, agent: str, step: str) -> str:
    """Return an error's reference, for whoever may not read its text; it tells nothing of that text."""
    return hashlib.sha256("\0".join((invocation_id, agent, step)).encode(errors="replace")).hexdigest()[:8]


def public_text(cause: str, reference: str | None = None) -> str:
    """Return an error's text for end users: its type, and its reference, for its own text may hold anything."""
    if _OWN.fullmatch(cause):
        return cause
    typed = _TYPED.match(cause)
    kind = typed[1] if typed else "error"
    return kind if reference is None else f"{kind} (reference {reference})"


_NO_MESSAGE = "Application error"
"""What Temporal's SDK gives as the message of a failure that has none."""


def error_text(kind: str | None, message: str) -> str:
    """Return an error's text, of its type and its message; the type alone if it said nothing."""
    if kind and message == _NO_MESSAGE:
        message = ""
    return message if not kind or (message and kind in _SENTENCES) else typed_text(kind, message)


def timeout_text(kind: str) -> str:
    """Return that an activity timed out, by the name of Temporal's timeout, such as `START_TO_CLOSE`."""
    return f"timed out ({kind.lower().replace('_', '-')} timeout)"


def failure_text(failure: Failure) -> str:
    """Return the text of an activity's failure in a history."""
    if failure.HasField("timeout_failure_info"):
        return timeout_text(TimeoutType.Name(failure.timeout_failure_info.timeout_type).removeprefix("TIMEOUT_TYPE_"))
    return error_text(failure.application_failure_info.type, failure.message)


MAX_CAUSE = 200
"""Characters of a failure's cause that the journal keeps of a tool's run."""
