"""Makes the output of a tool of what it returned. Nothing fails a tool then: a resume would run it again.

What cannot be kept is told to the model in place of the result, and a result that is too large for the log goes into an
artifact of its session.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Any, cast

from pydantic import BaseModel, ValidationError

from perdure.agents.context import ToolActions
from perdure.agents.plain_values import NotPlain, is_small_json, to_plain
from perdure.agents.tools import ToolContext
from perdure.artifacts.sealing import SealedArtifacts
from perdure.errors import ArtifactError
from perdure.journal.compact_json import payload_bytes, payload_size
from perdure.journal.events import EventActions
from perdure.journal.tool_output import ToolOutput
from perdure.logs import get_logger
from perdure.messages.keys import SessionKey
from perdure.rules.bounds import MAX_RESULT_VALUES, MAX_STATE_KEYS, excess
from perdure.rules.large_results import BEGINNING_LENGTH, NO_STORE, as_text, in_words, shortened
from perdure.rules.tool_responses import told_beside
from perdure.steps.base import Place, ToolCall
from perdure.steps.user_code import CodeRunner

_log = get_logger("perdure.worker")

_RESERVE_BYTES = 1_000
"""Beside result and actions: times, whose call it is."""

_MOST_VALUES = MAX_RESULT_VALUES - 10
"""What a tool may give: times, whose call it is, and what wraps its result come beside it."""

_BEGINNING_BYTES = 30_000
"""What a shortened result takes at the most, so that what the tool did beside it must leave as much."""

_OF_THE_SESSION = frozenset({"agent_state", "end_of_agent", "compaction", "rewind_before_invocation_id"})
"""Actions that say where agents stand, and which events count: a tool's response with one could hide itself."""

_SAVE_ATTEMPTS = 3
_SAVE_PAUSE_SECONDS = 0.5


def _check_values(value: BaseModel, most: int = _MOST_VALUES) -> None:
    """Raise `NotPlain` if a workflow would take too long over a value, or no journal could be read with it."""
    # Within one more level: what it becomes a part of has it, or what wraps it.
    problem = excess(b"[%b]" % payload_bytes(value), most)
    if problem is not None:
        raise NotPlain(f"it {problem}; return less of them, or a text")


def _is_read_at_once(result: Any, actions: object) -> bool:
    """Return whether what a tool gave runs no code of the user's when it is read, and takes no time."""
    return type(actions) is ToolActions and is_small_json([result, *vars(actions).values()])


class ToolResults:
    """Makes the outputs of the tools of one app."""

    def __init__(self, code: CodeRunner, artifacts: SealedArtifacts | None) -> None:
        self._code = code
        self._artifacts = artifacts

    async def output(
        self,
        at: Place,
        call: ToolCall,
        result: Any,
        context: ToolContext,
        *,
        wrapped: Callable[[Any], Any] = lambda plain: plain,
    ) -> ToolOutput:
        """Return the output of a tool that returned. Raises nothing: the tool has run.

        Args:
            at: Whose call it was.
            call: The call.
            result: What the function returned.
            context: What it wrote into its context.
            wrapped: What the output holds of the result, as JSON.
        """
        tool = call.tool
        try:
            if _is_read_at_once(result, context.actions):
                given = _Given(tool, result, context, call.most_bytes)
            else:
                # In a thread: an iterator, a property or a serializer is the user's code, too.
                given = await self._code.run_until(call.until, _Given, tool, result, context, call.most_bytes)
        except TimeoutError:
            return ToolOutput(result={"error": cannot_be_told(tool, "reading it took too long")})
        except (Exception, asyncio.CancelledError) as error:
            why = "its run was stopped while its result was read" if _is_stop(error) else f"{type(error).__name__}"
            return ToolOutput(result={"error": cannot_be_told(tool, why)})
        if given.problems:
            _log.warning("what a tool gave was refused", tool=tool, problems=len(given.problems))
        output = ToolOutput(result=given.told, actions=given.actions)
        output = await self.bounded(at, call, output)
        return output.model_copy(update={"result": wrapped(output.result)})

    async def bounded(self, at: Place, call: ToolCall, output: ToolOutput) -> ToolOutput:
        """Return an output that the log takes: as it is, or with the beginning of its result. Raises nothing."""
        data = payload_bytes(output)
        if len(data) <= call.most_bytes - _RESERVE_BYTES and excess(data, _MOST_VALUES) is None:
            return output
        return await self.shorten(at.key, call.tool, call.key, output, BEGINNING_LENGTH, call.until)

    async def shorten(
        self, session: SessionKey, tool: str, key: str, output: ToolOutput, length: int, end: float
    ) -> ToolOutput:
        """Return an output with the beginning of its result; the whole is kept as an artifact, if there is a place.

        Args:
            session: The session.
            tool: The tool.
            key: The call's idempotency key.
            output: Its output.
            length: How many characters of the result are left.
            end: How long to try to keep the whole, by `time.monotonic`.
        """
        if self._artifacts is None:
            return shortened(tool, output, NO_STORE, length)
        whole = output.result
        name = _artifact_name(tool, key, text=isinstance(whole, str))
        try:
            version = await self._save(self._artifacts, session, name, key, whole, end)
        except (Exception, asyncio.CancelledError) as error:
            kind = type(error).__name__
            # End users read the note, and what a store says may quote anything.
            _log.warning("a large result was not kept", tool=tool, error=kind, why=str(error)[:300])
            why = "its run was stopped" if _is_stop(error) else kind
            return shortened(tool, output, f"the rest was not kept: {why}", length)
        delta = {**output.actions.artifact_delta, name: version}
        actions = output.actions.model_copy(update={"artifact_delta": delta})
        kept = output.model_copy(update={"actions": actions})
        return shortened(tool, kept, f"all of it is kept as the artifact {name!r} of this session", length)

    async def _save(
        self, artifacts: SealedArtifacts, session: SessionKey, name: str, key: str, whole: Any, end: float
    ) -> int:
        is_text = isinstance(whole, str)

        async def save() -> int:
            return await artifacts.save_sealed(
                content=as_text(whole),
                mime_type="text/plain" if is_text else "application/json",
                app_name=session.app,
                user_id=session.user,
                session_id=session.session,
                filename=name,
                key=f"{key}:result",
            )

        for attempt in range(1, _SAVE_ATTEMPTS + 1):
            try:
                return await self._code.run_async(save(), end=end)
            except Exception:
                # The activity is not to fail of it: it would run the tool again.
                pause = _SAVE_PAUSE_SECONDS * attempt
                if attempt == _SAVE_ATTEMPTS or time.monotonic() + pause >= end:
                    raise
                await asyncio.sleep(pause)
        raise AssertionError("the loop returns or raises")


class _Given:
    """A tool's result, as plain data, and what of it cannot be kept."""

    def __init__(self, tool: str, result: Any, context: ToolContext, most: int) -> None:
        """Read it; runs code of the user's."""
        self._tool = tool
        self.problems: list[str] = []
        plain = self._result(result)
        try:
            context.check_artifacts_saved()
        except ArtifactError as error:
            self.problems.append(f"Tool {tool!r} has run, but {error}")
        self.actions = self._actions(context)
        if payload_size(self.actions) > most - _RESERVE_BYTES - _BEGINNING_BYTES:
            self._drop_actions(most)
        if self.problems:
            # The model is to read of them.
            self.actions = self.actions.model_copy(update={"skip_summarization": None})
        self.told = told_beside(" ".join(self.problems), plain) if self.problems else plain

    def _result(self, result: Any) -> Any:
        try:
            plain = to_plain(result)
            # One of too many values is shortened, as one of too many bytes is.
            _check_values(ToolOutput(result=plain), most=sys.maxsize)
        except NotPlain as error:
            self.problems.append(cannot_be_told(self._tool, str(error)))
            return None
        return plain

    def _actions(self, context: ToolContext) -> EventActions:
        fields: dict[str, Any] = {"state_delta": self._state(context)}
        for name in EventActions.model_fields:
            try:
                given = to_plain(getattr(context.actions, name, None))
                if given is not None and name in _OF_THE_SESSION:
                    raise NotPlain("it is the session's to say")
                if given is not None and name != "state_delta":
                    fields[name] = getattr(EventActions.model_validate({name: given}), name)
            except (NotPlain, ValidationError) as error:
                if name != "state_delta":
                    why = str(error) if isinstance(error, NotPlain) else _in_sentence(error.errors()[0]["msg"])
                    self.problems.append(
                        f"Tool {self._tool!r} has run, but what it set as its actions' {name} was not kept: {why}."
                    )
        return EventActions(**fields)

    def _state(self, context: ToolContext) -> dict[str, Any]:
        """Return the state that the tool wrote: all of it or nothing, since a part of it may say something wrong."""
        written: dict[str, Any] = {}
        try:
            delta: Any = context.actions.state_delta
            if not isinstance(delta, Mapping):
                raise NotPlain(f"it is no mapping, but {type(delta).__name__}")
            for key, value in cast(Mapping[Any, Any], delta).items():
                if not isinstance(key, str):
                    raise NotPlain(f"its key {str(key)[:40]!r} is of type {type(key).__name__}, and keys are texts")
                written.update(_state_key(key, value))
            if len(written) > MAX_STATE_KEYS:
                raise NotPlain(f"it has {len(written):,} keys, and {MAX_STATE_KEYS:,} are the most")
            _check_values(EventActions(state_delta=written))
        except Exception as error:
            why = str(error) if isinstance(error, NotPlain) else f"it cannot be read: {type(error).__name__}"
            self.problems.append(
                f"Tool {self._tool!r} has run, but nothing of what it wrote into the state was kept: {why}."
            )
            return {}
        return written

    def _drop_actions(self, most: int) -> None:
        size = payload_size(self.actions)
        told = f"it has {in_words(size)}, and with its result it may have {in_words(most)}"
        self.problems.append(
            f"Tool {self._tool!r} has run, but nothing of what it wrote into the state, or set as its actions, was"
            f" kept: {told}. Larger things are to be saved as artifacts."
        )
        small = {"artifact_delta", "transfer_to_agent", "escalate"}
        left = EventActions(**{name: getattr(self.actions, name) for name in small})
        self.actions = left if payload_size(left) < _BEGINNING_BYTES else EventActions()


def _in_sentence(words: str) -> str:
    return f"{words[:1].lower()}{words[1:]}"


def _state_key(key: str, value: Any) -> dict[str, Any]:
    try:
        return to_plain({key: value})
    except NotPlain as error:
        raise NotPlain(f"of key {key[:40]!r}, {error}") from error


def cannot_be_told(tool: str, why: str) -> str:
    """Return what a model is told of a tool that has run, and whose result cannot be kept."""
    return (
        f"Tool {tool!r} has run to its end, but its result cannot be passed on: {why}. It does not run again by itself;"
        " if you call it again, what it does is done twice."
    )


def _artifact_name(tool: str, key: str, *, text: bool) -> str:
    """Return a name of the session's: one a call, and a relative path whatever ids models give."""
    digest = sha256(key.encode(errors="replace")).hexdigest()[:12]
    return f"result-of-{tool}-{digest}.{'txt' if text else 'json'}"


def _is_stop(error: BaseException) -> bool:
    return isinstance(error, asyncio.CancelledError)
