"""Watches a session for a conversation: shows what its log has and what models write, and says what is to be asked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import aclosing, suppress

from perdure.cli.talk.screen import Screen
from perdure.client import Runner
from perdure.errors import InvocationFailed, InvocationFinished, SessionNotFound
from perdure.journal.events import Event
from perdure.journal.open_calls import PendingCall
from perdure.messages.keys import SessionKey
from perdure.messages.session import InvocationView, SessionView

_SHOWN_BEFORE = 20
"""Events that are shown of a session that is gone on with."""

_PATIENCE = 1.0
"""Seconds for which the agents beside one whose call waits are followed, before the call is asked for."""
_ASKED_PATIENCE = 0.1
"""The same where it was asked for before."""

_REASON = "Ctrl-C in a conversation"


class Watch:
    """A session as a conversation sees it, whoever moves it.

    Attributes:
        exists: There is such a session.
        view: How it stood at the last look.
        own: Messages that stand on the screen already.
        answered: Calls that were answered here.
        put_off: Calls that are not to be asked for now.
        asked: Calls that were asked for here.
    """

    def __init__(self, runner: Runner, key: SessionKey, screen: Screen, remember: Callable[[str], None]) -> None:
        """Begin; `remember` is told what users said before."""
        self._runner, self._key, self._screen, self._remember = runner, key.arguments, screen, remember
        self.exists = True
        self.view: SessionView | None = None
        self.own: list[str] = []
        self.answered: set[str] = set()
        self.put_off: set[str] = set()
        self.asked: dict[str, str] = {}
        self._length = -1
        """Entries of the journal at the last look."""
        self._offset = 0
        """Events of the log that were shown, or passed over."""
        self._seen: dict[str, Event] = {}
        """Events beyond these that were shown, by id."""
        self._whole = asyncio.Event()
        """Nobody is in the middle of an answer."""
        self._told: object = None
        self._stop = asyncio.Event()
        self._may_stop = False

    def stop(self) -> bool:
        """Stop the invocation whose events are being shown; returns whether there is one that is not being stopped."""
        can = self._may_stop and not self._stop.is_set()
        if can:
            self._stop.set()
        return can

    async def begin(self) -> None:
        """Find the session, and pass over its earlier events but for the last."""
        try:
            total = await self._runner.event_count(**self._key)
        except SessionNotFound:
            self.exists = False
            return
        self._offset = max(0, total - _SHOWN_BEFORE)
        if self._offset:
            self._screen.line(f"({self._offset} earlier events; /events shows them)", of="quiet")

    async def news(self) -> None:
        """Wait until the session is another than at the last look."""
        if not self.exists:
            await asyncio.get_running_loop().create_future()
        await self._runner.grown(**self._key, length=self._length)

    async def rest(self) -> PendingCall | None:
        """Show what comes until nothing is at work, or a call waits beside it; returns the call to be asked for."""
        while self.exists:
            # Before the look, so that nothing is missed that comes after it.
            self._length = await self._runner.grown(**self._key, length=-1)
            await self._catch_up()
            self.view = view = await self._runner.get_session(**self._key)
            call = self._to_ask(view)
            working = working_in(view)
            if not working:
                if view.event_count > self._offset:
                    # It has gone on since: what waits is asked for behind the event that says so.
                    continue
                self._tell(view)
                return call
            patience = None if call is None else _ASKED_PATIENCE if call.id in self.asked else _PATIENCE
            if not await self._turn(working[0].id, patience) and call is not None:
                return call
        return None

    def _to_ask(self, view: SessionView) -> PendingCall | None:
        """Return the oldest call that is to be asked for, and say what waits no longer."""
        calls = [call for one in view.invocations if one.status != "stopped" for call in one.pending]
        self._tell_answered(self.asked.keys() - {call.id for call in calls})
        wanted = [call for call in calls if call.id not in self.put_off | self.answered]
        return min(wanted, key=lambda call: call.since, default=None)

    def _tell(self, view: SessionView) -> None:
        """Say how the newest invocation stands, if that was not said and is more than that it is over, or waits."""
        newest = view.invocations[-1] if view.invocations else None
        standing = (newest.id, newest.status, newest.settled) if newest is not None else None
        if newest is None or standing == self._told:
            return
        self._told = standing
        for failure in newest.failures:
            self._screen.line(f"{failure.agent} failed in {failure.step}: {failure.cause}", of="bad", lines=True)
        if newest.status == "stopped" or (newest.status == "waiting" and newest.resumable):
            self._screen.line(f"{newest.status}: {newest.reason or 'nobody said why'}", of="quiet")
        if newest.resumable:
            self._screen.line("/resume runs it on from where it was.", of="quiet")

    async def _catch_up(self) -> None:
        """Show what the log has and the screen has not."""
        async with aclosing(self._runner.events(**self._key, since=self._offset)) as events:
            async for event in events:
                self._offset += 1
                # What is kept, and not in the log yet, stays among those that were seen.
                if self._seen.pop(event.id, None) != event:
                    self._show(event)

    def _show(self, event: Event) -> None:
        answered = {response.id or "" for response in event.get_function_responses()} if event.is_users else set[str]()
        if event.is_users:
            if event.text in self.own:
                self.own.remove(event.text)
                return
            if answered and answered <= self.answered:
                return
            self._remember(event.text or "")
        self._screen.event(event)
        self._tell_answered(self.asked.keys() & answered)

    def _tell_answered(self, calls: Iterable[str]) -> None:
        """Say that calls which were asked for here take no answer any more."""
        for id in list(calls):
            tool = self.asked.pop(id)
            if id not in self.answered:
                self._screen.line(f"{tool} waits no longer: the first answer counts.", of="asks")

    async def _turn(self, invocation_id: str, patience: float | None) -> bool:
        """Show an invocation's events as they come until it gives up the turn; `stop` stops it.

        Args:
            invocation_id: The invocation.
            patience: Seconds after which it is not followed any longer. Default: as long as no other call waits.

        Returns:
            Whether it gave up the turn.
        """
        hurry = asyncio.Event()
        self._whole.set()
        # Beside a prompt only what is whole is shown.
        following = asyncio.create_task(self._follow(invocation_id, hurry, streaming=patience != _ASKED_PATIENCE))
        stop = asyncio.create_task(self._stop.wait())
        waits = asyncio.create_task(self._pause(patience, hurry))
        self._may_stop = True
        try:
            await asyncio.wait({following, stop, waits}, return_when=asyncio.FIRST_COMPLETED)
            if stop.done() and not following.done():
                self._screen.line("stopping …", of="quiet")
                with suppress(InvocationFinished):
                    await self._runner.stop(**self._key, invocation_id=invocation_id, reason=_REASON)
                await following
            if following.done():
                following.result()
        except InvocationFailed as error:
            # Of a step that failed the invocation itself tells; not so if the session's workflow was closed.
            if error.agent == "?":
                self._screen.line(str(error), of="bad")
        finally:
            self._may_stop = False
            self._stop.clear()
            ended = following.done()
            for task in (following, stop, waits):
                task.cancel()
            await asyncio.gather(following, stop, waits, return_exceptions=True)
            self._screen.close()
        return ended

    async def _pause(self, patience: float | None, hurry: asyncio.Event) -> None:
        """Wait as long as `_turn` says, and then until nobody is in the middle of an answer."""
        if patience is None:
            await hurry.wait()
        await asyncio.sleep(_PATIENCE if patience is None else patience)
        await self._whole.wait()

    async def _follow(self, invocation_id: str, hurry: asyncio.Event, *, streaming: bool) -> None:
        self._screen.working()
        follow = self._runner.follow(**self._key, invocation_id=invocation_id, since=self._offset, streaming=streaming)
        async with aclosing(follow) as events:
            async for event in events:
                seen = event.id in self._seen if event.partial else self._seen.get(event.id) == event
                if seen or (event.partial and self._stop.is_set()):
                    continue
                self._show(event)
                if event.partial:
                    self._whole.clear()
                    continue
                self._whole.set()
                self._seen[event.id] = event
                self._screen.working()
                if event.long_running_tool_ids:
                    hurry.set()


def working_in(view: SessionView) -> list[InvocationView]:
    """Return the invocations that are at work, or about to be, in the order of their turns."""
    found = [one for one in view.invocations if one.status in ("running", "queued")]
    return sorted(found, key=lambda one: one.status == "queued")
