"""Perdure's exceptions, in one tree.

```
PerdureError
├── DefinitionError        an agent tree or an app that cannot be compiled
├── InvalidArguments       a model called a tool with arguments that it cannot take
├── LogError               an event or a journal that is malformed
├── ModelError             a model provider refused or failed a request
├── SharedStateFull        the `user:` or `app:` keys have grown too large
├── ArtifactError          an artifact that cannot be stored, or no place where artifacts are kept
├── CredentialError        a credential that is not to be had, or no safe place where its secrets are kept
├── ConnectionFailed       the Temporal server cannot be reached
├── EncryptionError        a payload that the keys at hand do not open, or keys that are malformed
├── InvocationFailed       an invocation stopped on an error
├── EffectFailed           the same, in the code of a custom agent, which may go on after it
├── HistoryDiffers         a recorded history does not replay against the code
├── SessionStuck           no worker can go on with a session: its workflow task fails again and again
└── RequestRefused         a session refused what a client asked for
    ├── SessionNotFound
    ├── SessionExists
    ├── SessionUnreadable  the history of its workflow does not hold the session's whole journal
    ├── SessionFull        the session's log has outgrown what Temporal can hold
    ├── QueueFull          too many messages wait for their turn
    ├── InvocationNotFound
    ├── InvocationFinished
    ├── InvocationRunning
    ├── NotResumable
    ├── CallNotFound
    ├── CallAnswered
    ├── MixedInvocations
    ├── InvalidMessage
    ├── RequestIdTaken     another request had this request id
    └── InvalidTrajectory  an event log or a file that cannot be imported or driven on

UserWarning
└── DefinitionWarning      an agent tree that compiles, but can hardly be meant so
```
"""

from __future__ import annotations

from typing import cast

MAX_ERROR_TEXT = 4_000
"""Characters of an exception's text that are told; an HTTP client may quote a whole body in it."""

_NOTE = 64
"""Room for the note of what was left out, so that a text is not cut twice."""

_QUOTED = 100
"""Characters of a long value that a message quotes."""

_FROM_A_GROUP = 3
"""Exceptions of a group that are told."""


def shortened(text: str) -> str:
    """Return the beginning of a text, with a note of how much was left out, as UTF-8 can hold it."""
    if len(text) > MAX_ERROR_TEXT + _NOTE:
        text = f"{text[:MAX_ERROR_TEXT]} … ({len(text) - MAX_ERROR_TEXT:,} more characters)"
    # Half of a character (a lone surrogate), as `surrogateescape` leaves it, can be written nowhere.
    return text.encode(errors="backslashreplace").decode()


def quoted(value: object) -> str:
    """Return a value from outside as a message quotes it: its beginning, where it is long, so that the reason stays."""
    text = repr(value)
    return text if len(text) <= 2 * _QUOTED else f"{text[:_QUOTED]}… ({len(text):,} characters)"


def message_of(error: BaseException) -> str:
    """Return an exception's text, shortened; empty if it has none. Never raises."""
    text = _own_text(error)
    if isinstance(error, BaseExceptionGroup):
        group = cast(tuple[BaseException, ...], error.exceptions)  # pyright: ignore[reportUnknownMemberType] -- of any kind
        each = (typed_text(type(one).__name__, _own_text(one)) for one in group[:_FROM_A_GROUP])
        text = f"{text}: {'; '.join(each)}"
    return shortened(text) if text.strip() else ""


def _own_text(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException as problem:  # It is anybody's code that makes the text.
        return f"(its text cannot be made: {type(problem).__name__})"


def error_text(error: BaseException) -> str:
    """Return an exception's type and text, shortened; its type alone if it has no text. Never raises."""
    return typed_text(type(error).__name__, message_of(error))


def typed_text(kind: str, message: str) -> str:
    """Return an exception's type and text; the type alone if the text is empty."""
    return f"{kind}: {message}" if message else kind


PAGE_OF_ERRORS = "docs/errors.md"
"""Where the documentation tells of each error; the one place that says so."""


class PerdureError(Exception):
    """Base of every exception that Perdure raises on purpose."""


def page_of(error: PerdureError) -> str:
    """Return where the documentation tells of an error: the page, and the anchor of its class."""
    [known, *_] = [cls for cls in type(error).__mro__ if cls.__module__ == __name__]
    return f"{PAGE_OF_ERRORS}#{known.__name__.lower()}"


class DefinitionError(PerdureError):
    """An agent tree, tool or app is defined wrongly. Raised when it is compiled; never retried."""


class DefinitionWarning(UserWarning):
    """An agent tree is valid, but can hardly be meant so. Warned of when it is compiled."""


class InvalidArguments(PerdureError):
    """A model called a tool with arguments that it cannot take. Never retried: the model gets the result instead.

    Attributes:
        result: The tool's result, which tells the model what to do better.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.result = {"error": message}


class LogError(PerdureError):
    """An event or a journal entry does not fit the log it stands in. Not retried."""


class ModelError(PerdureError):
    """A model call failed.

    Attributes:
        retryable: Whether the same call may succeed later (HTTP 408, 429, 5xx, a lost connection).
        retry_after: Seconds that the provider asked to wait, if it did.
    """

    def __init__(self, message: str, *, retryable: bool, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retryable = retryable
        self.retry_after = retry_after


class SharedStateFull(PerdureError):
    """The `user:` or `app:` keys would be too large with what was to be written; nothing was. Not retried."""


class ArtifactError(PerdureError):
    """An artifact has a name or a content that cannot be stored, or nobody said where artifacts are kept."""


class CredentialError(PerdureError):
    """A credential that a tool needs is not to be had here, or nobody said where its secrets may be kept."""


class ConnectionFailed(PerdureError):
    """No Temporal server answers at the address."""


class EncryptionError(PerdureError):
    """A payload is encrypted with a key that is not at hand, or keys are malformed. Names keys by id; holds none."""


class InvocationFailed(PerdureError):
    """An invocation stopped because one of its steps failed.

    Attributes:
        invocation_id: The invocation.
        agent: The agent whose step failed.
        step: What failed: `model` or the name of a tool or activity.
        cause: The error's own text.
        resumable: Whether `resume(invocation_id)` runs it on.
    """

    def __init__(self, invocation_id: str, *, agent: str, step: str, cause: str, resumable: bool) -> None:
        remedy = (
            f"resume it with its invocation id {invocation_id!r}"
            if resumable
            else "the app is not resumable: send a new message"
        )
        super().__init__(f"agent {agent!r} failed in step {step!r}: {cause}; {remedy}")
        self.invocation_id = invocation_id
        self.agent = agent
        self.step = step
        self.cause = cause
        self.resumable = resumable


class EffectFailed(PerdureError):
    """A step failed for good: a model call, a tool, or a function of a custom agent's.

    Attributes:
        agent: The agent that needed it.
        step: `model`, or the tool's or function's name.
        cause: The error's own text.
        beside: Failures of sibling branches, which this one stands for.
        silent: The activity ended without a word of its own: it timed out, or its worker went away.
        not_started: It is known that nothing was started: no worker has the code of it, or it could not be claimed.
        left: What a step of google.adk's leaves in the log all the same, once.
    """

    def __init__(self, agent: str, step: str, cause: str, *, silent: bool = False, not_started: bool = False) -> None:
        super().__init__(f"agent {agent!r} failed in step {step!r}: {cause}")
        self.silent = silent
        self.not_started = not_started
        self.beside: list[EffectFailed] = []
        self.left: object = None
        self.agent = agent
        self.step = step
        self.cause = cause


class HistoryDiffers(PerdureError):
    """A workflow's history does not replay: the code would do something else than what was recorded. Not retried."""


class SessionStuck(PerdureError):
    """No worker can go on with a session; its workflow task fails or times out, again and again, until that is mended.

    Attributes:
        cause: The error's own text.
        nondeterministic: Perdure does something else than what the session's history recorded.
    """

    def __init__(self, session: str, *, cause: str, nondeterministic: bool) -> None:
        different = "this version of Perdure does something else than what its history recorded"
        super().__init__(
            f"session {session!r} is stuck: {different if nondeterministic else 'its workflow fails'}: {cause}; deploy"
            " the version with which it ran, and it goes on by itself; or take it over with today's: `perdure resume"
            " --fresh`, runner.resume(…, fresh=True)"
        )
        self.cause = cause
        self.nondeterministic = nondeterministic


class RequestRefused(PerdureError):
    """A session did not take a request; nothing was logged. The same request will be refused again."""

    def __init__(self, message: str) -> None:
        """Keep what is wrong; of a text that quotes very much, its beginning."""
        super().__init__(shortened(message))


class SessionNotFound(RequestRefused):
    """There is no session of this app, user and id."""


class SessionExists(RequestRefused):
    """A session of this app, user and id exists already."""


class SessionUnreadable(RequestRefused):
    """The history of the session's workflow does not hold the whole journal, so it cannot be shown or brought back."""


class SessionFull(RequestRefused):
    """The session's log leaves Temporal no room for another message; what is open can still be answered."""


class QueueFull(RequestRefused):
    """Too many of the session's messages wait for their turn. The same one is taken when some are done."""


class InvocationNotFound(RequestRefused):
    """The session has no invocation of this id."""


class InvocationFinished(RequestRefused):
    """The invocation has ended; nothing is left to stop or resume."""


class InvocationRunning(RequestRefused):
    """The invocation is at work, so it cannot be resumed."""


class NotResumable(RequestRefused):
    """The app is not resumable (`ResumabilityConfig(is_resumable=True)` would make it so)."""


class CallNotFound(RequestRefused):
    """No long-running call of this id was ever made in the session."""


class CallAnswered(RequestRefused):
    """The call has taken an answer already, or its invocation no longer takes one; the first answer wins."""


class MixedInvocations(RequestRefused):
    """The answers of one message belong to different invocations."""


class InvalidMessage(RequestRefused):
    """A message or an answer has a form that a session does not take."""


class RequestIdTaken(RequestRefused):
    """A request's id is that of an earlier one that said something else; a repetition says the same."""


class InvalidTrajectory(RequestRefused):
    """An event log cannot be taken over, or its last event cannot drive a turn; the message says where and why."""


REFUSALS: dict[str, type[RequestRefused]] = {
    cls.__name__: cls
    for cls in (
        SessionNotFound,
        SessionExists,
        SessionUnreadable,
        SessionFull,
        QueueFull,
        InvocationNotFound,
        InvocationFinished,
        InvocationRunning,
        NotResumable,
        CallNotFound,
        CallAnswered,
        MixedInvocations,
        InvalidMessage,
        RequestIdTaken,
        InvalidTrajectory,
    )
}
"""Refusals by name, as which they cross the border between a session workflow and its client."""
