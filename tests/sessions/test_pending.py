"""What waits for a person, over all sessions of all apps: found by page, whatever has become of the sessions."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from typing import Any

import pytest
from temporalio.client import Client

from perdure.agents import App, FunctionTool
from perdure.errors import InvalidMessage
from perdure.journal.open_calls import PendingCall
from perdure.messages.keys import SessionKey
from perdure.sessions.listing import ListedSession
from perdure.sessions.pending import Silence, Wanted, all_waiting, ask_waiting, count_waiting, find_waiting
from perdure.sessions.requests import WorkflowRequests
from tests.workflows.support import User, agent, calls, eventually, long_running, make_app, serving, text

pytestmark = pytest.mark.server


def pay(amount: int) -> int:
    """Pay."""
    return amount


def asking(name: str, *tools: str) -> App:
    script = [calls(*tools), text("done")]
    own = [FunctionTool(pay, require_confirmation=True) if tool == "pay" else long_running(tool) for tool in tools]
    if "pay" in tools:
        script = [{"calls": [{"name": "pay", "args": {"amount": 5}}]}, text("done")]
    return make_app(name, agent("clerk", script, own))


async def waiting(client: Client, **wanted: object) -> set[tuple[str, str]]:
    """Return user and session of each call that is found, over all pages of one session each."""
    found: list[tuple[str, str]] = []
    cursor: str | None = None
    while True:
        page = await find_waiting(client, Wanted(**wanted), limit=1, cursor=cursor)  # pyright: ignore[reportArgumentType] -- of the fields' types
        assert page.unanswered == ()
        found += [(session.user_id, session.id) for session, _ in page.calls]
        cursor = page.next
        if cursor is None:
            assert len(set(found)) == len(found), "no call comes twice"
            return set(found)


async def finds(client: Client, expected: set[tuple[str, str]], **wanted: object) -> None:
    async def found() -> bool:
        return await waiting(client, **wanted) == expected

    await eventually(found)


async def listed_with_its_call(user: User) -> list[ListedSession]:
    """Return the app's one session, as soon as its listing has the call; what was sent here is found before that."""
    sessions: list[ListedSession] = []

    async def has_it() -> bool:
        sessions[:] = await user.runner.list_sessions()
        return [session.pending_tools for session in sessions] == [("pick",)]

    await eventually(has_it)
    return sessions


async def test_calls_are_found_by_app_user_tool_and_age(client: Client, app_name: str) -> None:
    async with serving(client, asking(app_name, "pick")) as user, serving(client, asking(f"{app_name}_b", "pay")) as b:
        strange = "d'Arc \\ 50%/ä"
        for who in (user, user.other("v"), user.other(strange, "s%2F'"), b):
            await who.create()
            assert (await who.run("a")).status == "waiting"
        await user.other("idle").create()
        everywhere = {("u", "s"), ("v", "s"), (strange, "s%2F'")}
        mine = f"u-{app_name}"
        for who in (user.other(mine), b.other(mine)):
            await who.create()
            await who.run("a")
        everywhere.add((mine, "s"))
        await finds(client, everywhere, app=app_name)
        await finds(client, {("u", "s")}, app=app_name, user_id="u")
        await finds(client, {(strange, "s%2F'")}, app=app_name, user_id=strange)
        # Of all apps; there are other tests' sessions of other users.
        pages = [page async for page in all_waiting(client, Wanted(user_id=mine))]
        assert {session.app_name for page in pages for session, _ in page.calls} == {app_name, f"{app_name}_b"}
        await finds(client, everywhere, app=app_name, tool="pick")
        assert await waiting(client, app=app_name, tool="pay") == set()
        await finds(client, {("u", "s"), (mine, "s")}, app=f"{app_name}_b", tool="pay")
        await finds(client, {(mine, "s")}, tool="pay", user_id=mine)
        assert await waiting(client, app=app_name, older_than=timedelta(hours=1)) == set()
        await finds(client, everywhere, app=app_name, older_than=timedelta(0))
        counts: list[tuple[dict[str, Any], int | None]] = [
            ({"app": app_name}, 4),
            ({"app": app_name, "user_id": strange}, 1),
            ({"app": app_name, "user_id": "nobody"}, 0),
            ({"app": app_name, "tool": "pick"}, 4),
            ({"app": app_name, "tool": "pay"}, 0),
            ({"user_id": mine}, 2),
            # Nothing that a query can hold.
            ({"app": app_name, "tool": "p'"}, None),
            ({"user_id": strange}, None),
        ]
        for wanted, count in counts:
            assert await count_waiting(client, Wanted(**wanted)) == count, wanted
        [page] = [page async for page in all_waiting(client, Wanted(app=app_name))]
        assert [call.since for _, call in page.calls] == sorted(call.since for _, call in page.calls)


async def test_a_session_that_came_back_is_found_once_and_a_deleted_one_never(client: Client, app_name: str) -> None:
    async with serving(client, asking(app_name, "pick")) as user:
        back, gone, closed = user, user.other("v"), user.other("w")
        for who in (back, gone, closed):
            await who.create()
            view = await who.run("a")
            await finds(client, {("u", "s")}, app=app_name, user_id="u")
            if who is not gone:
                await who.workflow.terminate()
            if who is back:
                await who.stop(view.id)
                await who.resumed(view.id)
        await user.runner.delete_session(**gone.who)
        await finds(client, {("u", "s"), ("w", "s")}, app=app_name)


async def test_an_imported_session_is_found_before_it_ran(client: Client, app_name: str) -> None:
    async with serving(client, asking(app_name, "pick")) as user:
        await user.create()
        await user.run("a")
        lines = [line async for line in user.runner.export_session(**user.who, journal=True)]
        await user.runner.import_session(lines, session_id="copy")
        await finds(client, {("u", "s"), ("u", "copy")}, app=app_name)


async def test_what_waits_is_told_without_a_worker(client: Client, app_name: str) -> None:
    app = asking(app_name, "pick")
    async with serving(client, app) as user:
        for number in range(3):
            other = user.other("u", f"s{number}")
            await other.create()
            await other.run("a")
        await finds(client, {("u", "s0"), ("u", "s1"), ("u", "s2")}, app=app_name)
    page = await find_waiting(client, Wanted(app=app_name))
    assert (len(page.calls), page.unanswered) == (3, ())
    assert len(await user.runner.pending(user_id="u")) == 3
    assert len(await user.runner.pending(user_id="u", session_id="s0")) == 1
    halted = (await user.runner.explain(user_id="u", session_id="s0")).halted
    assert halted is None or "no worker serves" in halted


@pytest.fixture
def unlisted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that waits is small enough for a session's memo."""
    monkeypatch.setattr("perdure.workflows.visibility.MOST_WAITING_BYTES", 0)


async def not_read(self: WorkflowRequests, key: SessionKey, *args: Any, **options: Any) -> Any:
    raise AssertionError(f"the session {key.session!r} was read")


async def test_no_session_is_asked_and_no_history_read(
    client: Client, app_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The listing has all of what a reader of the history would tell: of one call or several, and of the next ones."""
    app = make_app(
        app_name,
        agent(
            "clerk",
            [calls("pick", "fetch"), calls("pick"), text("done")],
            [long_running("pick"), long_running("fetch")],
        ),
    )
    async with serving(client, app) as user:
        mine = user.other(f"u-{app_name}")
        await mine.create()
        first = await mine.run("a")
        # Of whom the sessions were sent nothing.
        reader = Client(client.service_client, namespace=client.namespace, data_converter=client.data_converter)
        for tools in (["pick", "fetch"], ["pick"]):
            await mine.open(*tools)
            expected = [call for _, call in await mine.runner.pending(**mine.who)]
            assert [call.name for call in expected] == tools

            async def listed(expected: list[PendingCall] = expected) -> bool:
                page = await find_waiting(reader, Wanted(app=app_name))
                return [call for _, call in page.calls] == expected

            with monkeypatch.context() as patched:
                patched.setattr(WorkflowRequests, "look", not_read)
                await eventually(listed)
            if tools == ["pick", "fetch"]:
                await mine.answer({call.id: 1 for call in first.pending})


async def test_what_was_answered_here_waits_no_more_though_the_listing_is_late(client: Client, app_name: str) -> None:
    async with serving(client, asking(app_name, "pick")) as user:
        await user.create()
        view = await user.run("a")
        sessions = await listed_with_its_call(user)
        await user.answer({view.pending[0].id: 1})
        page = await ask_waiting(client, Wanted(), sessions, patience=timedelta(minutes=1), silence=Silence())
        assert (page.calls, page.unanswered) == ((), ())


@pytest.mark.usefixtures("unlisted")
async def test_what_is_too_large_for_a_listing_is_read_from_the_history(client: Client, app_name: str) -> None:
    async with serving(client, asking(app_name, "pick")) as user:
        await user.create()
        await user.run("a")
        [session] = await listed_with_its_call(user)
        assert await session.listed_calls(client) is None


@pytest.mark.usefixtures("unlisted")
async def test_sessions_that_cannot_be_read_are_counted_and_hold_up_no_other(
    client: Client, app_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that takes long is not read again at once by those who remember it."""
    app = asking(app_name, "pick")
    async with serving(client, app) as user:
        for name in ("slow", "quick"):
            await user.other("u", name).create()
            await user.other("u", name).run("a")
        await finds(client, {("u", "slow"), ("u", "quick")}, app=app_name)
        sessions = await user.runner.list_sessions()
        look, asked = WorkflowRequests.look, list[str]()

        async def late(self: WorkflowRequests, key: SessionKey, *args: Any, **options: Any) -> Any:
            asked.append(key.session)
            if key.session == "slow":
                await asyncio.sleep(60)
            return await look(self, key, *args, **options)

        monkeypatch.setattr(WorkflowRequests, "look", late)
        silence = Silence()
        for patience in (1, 60):
            page = await ask_waiting(client, Wanted(), sessions, patience=timedelta(seconds=patience), silence=silence)
            assert [session.id for session, _ in page.calls] == ["quick"]
            assert [session.id for session in page.unanswered] == ["slow"]
        assert sorted(asked) == ["quick", "quick", "slow"]
        found = await find_waiting(client, Wanted(app=app_name), patience=timedelta(seconds=1))
        assert [session.id for session in found.unanswered] == ["slow"]


@pytest.mark.usefixtures("unlisted")
async def test_sessions_for_which_there_was_no_time_are_read_by_the_next_look(
    client: Client, app_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.sessions.pending._AT_ONCE", 1)
    look = WorkflowRequests.look

    async def slowly(self: WorkflowRequests, *args: Any, **options: Any) -> Any:
        await asyncio.sleep(1)
        return await look(self, *args, **options)

    async with serving(client, asking(app_name, "pick")) as user:
        for number in range(6):
            person = user.other(session_id=str(number))
            await person.create()
            await person.run("a")
        await finds(client, {("u", str(number)) for number in range(6)}, app=app_name)
        sessions, silence = await user.runner.list_sessions(), Silence()
        with monkeypatch.context() as patched:
            patched.setattr(WorkflowRequests, "look", slowly)
            page = await ask_waiting(client, Wanted(), sessions, patience=timedelta(seconds=4), silence=silence)
        assert page.calls
        assert page.unanswered
        assert not any(session in silence for session in page.unanswered)
        page = await ask_waiting(client, Wanted(), sessions, patience=timedelta(minutes=1), silence=silence)
        assert len(page.calls) == 6


async def test_an_app_that_nobody_has_served_is_not_waited_for(client: Client, app_name: str) -> None:
    user = User(client, app_name)
    await user.create()

    async def is_listed() -> bool:
        return len(await user.runner.list_sessions()) == 1

    await eventually(is_listed)
    sessions = await user.runner.list_sessions()
    began = time.monotonic()
    page = await ask_waiting(client, Wanted(), sessions, patience=timedelta(minutes=1), silence=Silence())
    assert time.monotonic() - began < 30
    assert (page.calls, page.unanswered) == ((), ())
    await user.workflow.terminate()


async def test_all_of_it_without_search_attributes(small_client: Client, app_name: str) -> None:
    async with serving(small_client, asking(app_name, "pick")) as user:
        mine = user.other(f"u-{app_name}")
        await mine.create()
        await mine.run("a")
        await user.other("v").create()
        filters: list[dict[str, Any]] = [
            {"app": app_name, "tool": "pick"},
            {"user_id": f"u-{app_name}"},
            {"app": app_name},
        ]
        for wanted in filters:
            await finds(small_client, {(f"u-{app_name}", "s")}, **wanted)
            assert await count_waiting(small_client, Wanted(**wanted)) is None


async def test_a_cursor_is_one_of_before(client: Client) -> None:
    for made_up in ("", "ä", "A", "AAAA", "QUJDREVGR0hJSktMTU5PUA=="):
        with pytest.raises(InvalidMessage, match="the cursor is none"):
            await find_waiting(client, Wanted(), cursor=made_up)
