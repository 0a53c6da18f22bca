"""`TokenHub`: hands what models are writing to those who follow their sessions.

A hub keeps each answer that is being written once, however many follow it. A reader takes what it has not had yet, in
one piece, so a slow one costs no memory and holds up nobody; and it always has the answer's beginning, without a gap.
Nothing here waits: a model's call only appends.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict

_MAX_BYTES = 16_000_000
_MAX_DRAFT_BYTES = 1_000_000
"""What answers that are being written take of a process together, and one of them; beyond it one comes whole."""
_PIECE_BYTES = 120
"""What a piece takes besides its text."""

_LINGER_SECONDS = 5.0
"""How long readers may take to have the rest of an answer that is complete; then its event has all of it."""

_KNOWN = 1000
"""Drafts that are remembered when they are gone, so that none begins again in the middle."""


class Draft(BaseModel):
    """An answer that a model is writing: one attempt of one model call."""

    model_config = ConfigDict(frozen=True)

    session: str
    """Workflow id of the session."""
    id: str
    """What the final event's id will be; equal in every attempt."""
    attempt: int
    """1, or more where the call was tried before."""
    offset: int
    """Events in the log that the model was called with; readers show these first."""
    author: str
    invocation_id: str
    branch: str | None = None


class Piece(NamedTuple):
    """A few words of an answer."""

    text: str
    thought: bool = False
    event: str | None = None
    """JSON of the whole partial event, where it holds more, or is to come as it is: google.adk's."""


class News(NamedTuple):
    """The part of a draft that a reader has not had yet."""

    draft: Draft
    pieces: list[Piece]
    ended: bool
    """Nothing more will come."""


_Key = tuple[str, int]


class _Entry:
    def __init__(self, draft: Draft) -> None:
        self.draft = draft
        self.pieces: list[Piece] = []
        self.size = 0
        self.cut = False
        """It grew too large, and is not written on."""
        self.ended: float | None = None


class Subscription:
    """Reads what is written in some sessions; belongs to the event loop in which it was made."""

    def __init__(self, hub: TokenHub) -> None:
        self._hub = hub
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()
        self._woken = False
        self.cursors: dict[str, dict[_Key, int]] = {}
        """By session and draft, how many pieces were taken; -1 when all were, and the draft has ended."""
        self.dirty: set[str] = set()
        """Sessions in which something is new."""

    def wake(self, session: str) -> None:
        """Tell that there is something new in a session; from any thread, while the hub is locked."""
        self.dirty.add(session)
        if not self._woken:
            self._woken = True
            try:
                self._loop.call_soon_threadsafe(self._event.set)
            except RuntimeError:
                # Its loop is closed, so nobody will read any more.
                self.dirty.clear()

    async def changed(self) -> None:
        """Return when there may be something new."""
        await self._event.wait()
        self._event.clear()
        # Before anything is taken: what is added from here on wakes again.
        self._woken = False

    def take(self) -> list[News]:
        """Return the news since the last time."""
        return self._hub.take(self)

    def add(self, session: str) -> None:
        """Read this session too, from the beginning of what is being written."""
        self._hub.join(self, session)

    def drop(self, session: str) -> None:
        """Read this session no more."""
        self._hub.leave(self, session)

    def skip_ended(self, offset: int) -> None:
        """Read nothing of answers that are complete, of models that were called with so many events or fewer."""
        self._hub.skip_ended(self, offset)

    def close(self) -> None:
        """Read nothing any more."""
        for session in list(self.cursors):
            self._hub.leave(self, session)


class Writer:
    """Writes one draft; from any thread."""

    def __init__(self, hub: TokenHub, entry: _Entry) -> None:
        self._hub = hub
        self._entry = entry

    def add(self, *pieces: Piece) -> None:
        """Append pieces."""
        self._hub.append(self._entry, pieces)

    def end(self) -> None:
        """Say that nothing more will come."""
        self._hub.end(self._entry)

    def restart(self) -> None:
        """Write the same pieces again from the first one; readers see those once that they have seen."""
        self._hub.restart(self._entry)

    @property
    def draft(self) -> Draft:
        """The draft that is being written."""
        return self._entry.draft


class TokenHub:
    """The meeting place of one process's model calls and followers. Give the same to `create_workers` and `Runner`.

    Attributes:
        on_want: Called when somebody begins or ceases to follow a session, while the hub is locked.
    """

    def __init__(self, *, max_bytes: int = _MAX_BYTES) -> None:
        """Make a hub.

        Args:
            max_bytes: What all answers together may take in memory; those beyond it come whole only. Default: 16 MB.
        """
        self.on_want: list[Callable[[], None]] = []
        self._max_bytes = max_bytes
        self._lock = threading.RLock()
        self._entries: dict[str, dict[_Key, _Entry]] = {}
        self._readers: dict[str, set[Subscription]] = {}
        self._known: OrderedDict[_Key, None] = OrderedDict()
        self._size = 0

    def begin(self, draft: Draft) -> Writer | None:
        """Begin to write; `None` if nobody follows the session, or the draft was begun before."""
        with self._lock:
            key = (draft.id, draft.attempt)
            if draft.session not in self._readers or key in self._known:
                return None
            self._prune(time.monotonic() - _LINGER_SECONDS)
            self._known[key] = None
            if len(self._known) > _KNOWN:
                self._known.popitem(last=False)
            entry = _Entry(draft)
            self._entries.setdefault(draft.session, {})[key] = entry
            self._wake(draft.session)
            return Writer(self, entry)

    def append(self, entry: _Entry, pieces: tuple[Piece, ...]) -> None:
        """Append pieces to a draft; see `Writer`."""
        if not pieces:
            return
        size = sum(len((piece.event or piece.text).encode(errors="replace")) + _PIECE_BYTES for piece in pieces)
        with self._lock:
            if entry.cut or entry.ended is not None:
                return
            if self._size + size > self._max_bytes:
                self._prune(time.monotonic())
            entry.cut = entry.size + size > _MAX_DRAFT_BYTES or self._size + size > self._max_bytes
            if not entry.cut:
                entry.pieces.extend(pieces)
                entry.size += size
                self._size += size
                self._wake(entry.draft.session)

    def end(self, entry: _Entry) -> None:
        """End a draft; see `Writer`."""
        with self._lock:
            if entry.ended is None:
                entry.ended = time.monotonic()
                self._wake(entry.draft.session)

    def restart(self, entry: _Entry) -> None:
        """Write a draft again from its beginning; see `Writer`."""
        with self._lock:
            self._size -= entry.size
            entry.pieces, entry.size, entry.cut = [], 0, False

    def subscribe(self, *sessions: str) -> Subscription:
        """Return a reader of some sessions. From now on models are asked to stream there."""
        subscription = Subscription(self)
        for session in sessions:
            self.join(subscription, session)
        return subscription

    def wanted(self, forgetting: Iterable[Writer] = ()) -> set[str]:
        """Return the sessions that somebody follows.

        Args:
            forgetting: Those of these drafts that nobody follows are forgotten, so that they can begin afresh.
        """
        with self._lock:
            for writer in forgetting:
                if writer.draft.session not in self._readers:
                    self._forget(writer.draft)
            return set(self._readers)

    def join(self, subscription: Subscription, session: str) -> None:
        """Add a session to a reader's; see `Subscription.add`."""
        with self._lock:
            if session in subscription.cursors:
                return
            # What has ended is, or is about to be, in the log.
            ended = {key: -1 for key, entry in self._entries.get(session, {}).items() if entry.ended is not None}
            subscription.cursors[session] = ended
            readers = self._readers.setdefault(session, set())
            readers.add(subscription)
            subscription.wake(session)
            if len(readers) == 1:
                self._tell()

    def skip_ended(self, subscription: Subscription, offset: int) -> None:
        """Skip complete answers for a reader; see `Subscription.skip_ended`."""
        with self._lock:
            for session, cursors in subscription.cursors.items():
                for key, entry in self._entries.get(session, {}).items():
                    if entry.ended is not None and entry.draft.offset <= offset:
                        cursors[key] = -1

    def leave(self, subscription: Subscription, session: str) -> None:
        """Remove a session from a reader's; see `Subscription.drop`."""
        with self._lock:
            readers = self._readers.get(session, set())
            subscription.cursors.pop(session, None)
            subscription.dirty.discard(session)
            readers.discard(subscription)
            if not readers and self._readers.pop(session, None) is not None:
                self._tell()

    def take(self, subscription: Subscription) -> list[News]:
        """Return a reader's news; see `Subscription.take`."""
        found: list[News] = []
        with self._lock:
            for session in sorted(subscription.dirty & subscription.cursors.keys()):
                entries = self._entries.get(session, {})
                known = subscription.cursors[session]
                cursors = subscription.cursors[session] = {key: at for key, at in known.items() if key in entries}
                for key, entry in entries.items():
                    start = cursors.get(key, 0)
                    ended = entry.ended is not None
                    # A draft that is written again may not be as far yet as its reader.
                    if start < 0 or (key in cursors and start >= len(entry.pieces) and not ended):
                        continue
                    cursors[key] = -1 if ended else len(entry.pieces)
                    found.append(News(entry.draft, entry.pieces[start:], ended))
            subscription.dirty.clear()
        return found

    def _wake(self, session: str) -> None:
        for subscription in self._readers.get(session, ()):
            subscription.wake(session)

    def _tell(self) -> None:
        for told in self.on_want:
            told()

    def _forget(self, draft: Draft) -> None:
        key = (draft.id, draft.attempt)
        self._known.pop(key, None)
        entries = self._entries.get(draft.session, {})
        entry = entries.pop(key, None)
        if entry is not None:
            # Its writer may still be at work.
            entry.ended = time.monotonic()
            self._size -= entry.size
        if not entries:
            self._entries.pop(draft.session, None)

    def _prune(self, before: float) -> None:
        """Forget the drafts that ended before a time."""
        for session, entries in list(self._entries.items()):
            for key, entry in list(entries.items()):
                if entry.ended is not None and entry.ended <= before:
                    self._size -= entry.size
                    del entries[key]
            if not entries:
                del self._entries[session]
