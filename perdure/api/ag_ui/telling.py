"""Makes AG-UI's events of a session's: texts as they are written, tool calls and results, changes of the state.

Pure. The adapter `ag-ui-adk` maps ADK's events in the same way.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ag_ui import core

from perdure.api.ag_ui.messages import Results, as_json, reasoning_id, shown_calls, thoughts_of
from perdure.journal.events import Event
from perdure.streams.partials import ATTEMPT

_SHARED = ("app:", "user:", "temp:")
"""How keys begin that are not the session's own. A client sends back all that it was told, at any time: it would undo
what other sessions wrote meanwhile."""


def own_keys(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of a state that are the session's own."""
    return {key: value for key, value in state.items() if not key.startswith(_SHARED)}


class Telling:
    """What a client was told of one run."""

    def __init__(self) -> None:
        """Begin with nothing told."""
        self.amiss = False
        """Whether the client was told what was never said: only a snapshot of the messages makes it right."""
        self._results = Results()
        self._written: dict[str, str] = {}
        """The text so far of messages that are being written, by id."""
        self._attempts: dict[str, float] = {}

    def told(self, event: Event) -> Iterator[core.BaseEvent]:
        """Yield AG-UI's events of the next event of the run."""
        self._begin_anew(event)
        thought, text = thoughts_of(event), event.text or ""
        if event.partial:
            yield from self._write(reasoning_id(event.id), thought)
            yield from self._write(event.id, text, event.author)
            return
        yield from self._finish(reasoning_id(event.id), thought)
        yield from self._finish(event.id, text, event.author)
        for call in shown_calls(event):
            call_id = call.id or ""
            yield core.ToolCallStartEvent(
                tool_call_id=call_id, tool_call_name=call.name or "", parent_message_id=event.id
            )
            yield core.ToolCallArgsEvent(tool_call_id=call_id, delta=as_json(call.args or {}))
            yield core.ToolCallEndEvent(tool_call_id=call_id)
        yield from self.results(event)
        if delta := own_keys(event.actions.state_delta):
            yield core.StateDeltaEvent.model_validate({"delta": [_added(*item) for item in delta.items()]})

    def results(self, event: Event) -> Iterator[core.BaseEvent]:
        """Yield the results of tool calls in an event, which may be the user's answer."""
        for message_id, call_id, content in self._results.of(event):
            yield core.ToolCallResultEvent(message_id=message_id, tool_call_id=call_id, content=content, role="tool")

    def _begin_anew(self, event: Event) -> None:
        """Note that the pieces of an earlier attempt were never said."""
        attempt = (event.custom_metadata or {}).get(ATTEMPT, 1) if event.partial else None
        if attempt is None:
            return
        if attempt > self._attempts.setdefault(event.id, attempt):
            self._attempts[event.id] = attempt
            for message_id in (event.id, reasoning_id(event.id)):
                if message_id in self._written:
                    self.amiss = True
                    self._written[message_id] = ""

    def _write(self, message_id: str, text: str, author: str | None = None) -> Iterator[core.BaseEvent]:
        """Yield a piece of a text; of thoughts, which have no author, a piece of these."""
        if not text:
            return
        if message_id not in self._written:
            self._written[message_id] = ""
            if author is None:
                yield core.ReasoningStartEvent(message_id=message_id)
                yield core.ReasoningMessageStartEvent(message_id=message_id)
            else:
                yield core.TextMessageStartEvent(message_id=message_id, role="assistant", name=author or None)
        self._written[message_id] += text
        if author is None:
            yield core.ReasoningMessageContentEvent(message_id=message_id, delta=text)
        else:
            yield core.TextMessageContentEvent(message_id=message_id, delta=text)

    def _finish(self, message_id: str, text: str, author: str | None = None) -> Iterator[core.BaseEvent]:
        """Yield what is missing of a text, and its end."""
        written = self._written.get(message_id, "")
        if text.startswith(written):
            yield from self._write(message_id, text[len(written) :], author)
        else:
            self.amiss = True
        if self._written.pop(message_id, None) is None:
            return
        if author is None:
            yield core.ReasoningMessageEndEvent(message_id=message_id)
            yield core.ReasoningEndEvent(message_id=message_id)
        else:
            yield core.TextMessageEndEvent(message_id=message_id)


def _added(key: str, value: Any) -> dict[str, Any]:
    # An addition to what is there replaces it: https://www.rfc-editor.org/rfc/rfc6902#section-4.1
    return {"op": "add", "path": f"/{key.replace('~', '~0').replace('/', '~1')}", "value": value}
