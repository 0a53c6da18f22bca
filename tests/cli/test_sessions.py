"""The commands about one session, and the calls that wait over all of them."""

from __future__ import annotations

import io
from collections.abc import AsyncGenerator

import pytest
from temporalio.client import Client

from perdure.journal.events import REQUEST_CONFIRMATION
from tests.api.support import Obedient, obedient_app
from tests.cli.support import Perdure, perdure
from tests.workflows.support import User, eventually, serving

pytestmark = pytest.mark.server

__all__ = ["perdure"]


@pytest.fixture
def at(temporal_server: str) -> tuple[str, ...]:
    return ("--address", temporal_server)


@pytest.fixture
async def user(client: Client, app_name: str) -> AsyncGenerator[User]:
    """A user whose agent does as it is told."""
    async with serving(client, obedient_app(app_name, Obedient())) as user:
        yield user


async def test_a_session_is_made_shown_changed_and_deleted(perdure: Perdure, user: User, at: tuple[str, ...]) -> None:
    one = ("--user", "u", "--session", "s", *at)
    made = await perdure("session", "create", user.app, "--state", "city=Oslo", *one)
    assert (made.code, made.out) == (0, "s\n")
    assert (await perdure("session", "create", user.app, *one)).code == 1
    written = await perdure("session", "state", user.app, "nights=3", *one)
    assert (written.code, written.out) == (0, "written: nights\n")
    started = await perdure("run", user.app, "ask", "--no-wait", *one)
    assert (started.code, started.out) == (0, "")
    invocation = (await user.view()).invocations[0].id
    await user.settled(invocation)
    shown = await perdure("session", "show", user.app, *one)
    assert f"session s of user u in app {user.app} is waiting" in shown.out
    assert "  city = 'Oslo'\n  nights = 3\n" in shown.out
    assert "waits for approve(sum=12) of clerk" in shown.out
    [view] = (await perdure("session", "show", user.app, "--json", *one)).json_lines
    assert (view["state"], view["status"], view["event_count"]) == ({"city": "Oslo", "nights": 3}, "waiting", 4)
    only = ("--invocation", invocation, *one)
    [told] = (await perdure("session", "show", user.app, "--json", *only)).json_lines
    assert told["id"] == invocation
    assert f"invocation {invocation} is waiting" in (await perdure("session", "show", user.app, *only)).out
    [plan] = (await perdure("session", "show", user.app, "--plan", "--json", *only)).json_lines
    assert plan["plan"]["root"]["name"] == "clerk"
    assert "clerk" in (await perdure("session", "show", user.app, "--plan", *only)).out
    assert (await perdure("session", "show", user.app, "--plan", *one)).code == 64
    [listed] = [line for line in (await perdure("apps", "--json", *at)).json_lines if line["app_name"] == user.app]
    assert listed == {"app_name": user.app}
    assert len((await perdure("events", user.app, "--limit", "2", "--json", *one)).json_lines) == 2
    gone = await perdure("session", "delete", user.app, "--yes", "--json", *one)
    assert gone.json_lines[0]["deleted"] is True
    assert (await perdure("session", "show", user.app, *one)).code == 1


async def test_a_deletion_is_asked_for_twice(
    perdure: Perdure, user: User, at: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    await user.create()
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    kept = await perdure("session", "delete", user.app, "--user", "u", "--session", "s", *at)
    assert kept.code == 130
    assert (await user.view()).status == "idle"


async def test_a_payment_is_approved_or_rejected_with_a_reason(
    perdure: Perdure, user: User, at: tuple[str, ...]
) -> None:
    await user.create()
    one = ("--user", "u", "--session", "s", *at)
    for option, outcome in (("--approve", "done"), ("--reject", "rejected")):
        await user.run("pay")
        call = (await user.pending())[REQUEST_CONFIRMATION]
        answer = ("respond", user.app, option, call, "--why", "as agreed", "--request-id", f"r{option}", *one)
        for _ in range(2):
            assert (await perdure(*answer)).code == 0
        events = await user.events()
        [said] = [event for event in events if event.author == "user" and call in str(event.content)]
        assert (said.custom_metadata or {})["perdure:answer"]["why"] == "as agreed"
        ledger = (await perdure("effects", user.app, "--json", *one)).json_lines
        assert ledger[-1]["outcome"] == outcome
    await user.run("ask")
    call = (await user.pending())["approve"]
    wrong = await perdure("respond", user.app, "--approve", call, *one)
    assert (wrong.code, "not an approval" in wrong.err) == (1, True)
    for given in ([], [f"{call}=1", "--approve", call], ["--approve", call, "--reject", call]):
        assert (await perdure("respond", user.app, *given, *one)).code == 64


async def test_calls_that_wait_are_found_by_tool_and_age(perdure: Perdure, user: User, at: tuple[str, ...]) -> None:
    await user.create()
    await user.run("pay")

    async def found(*options: str) -> list[str]:
        done = await perdure("pending", user.app, "--json", *options, *at)
        assert done.code == 0, done.err
        return [line["call"]["name"] for line in done.json_lines]

    async def listed() -> bool:
        return await found("--tool", "pay") == [REQUEST_CONFIRMATION]

    await eventually(listed)
    assert await found("--tool", "approve") == []
    assert await found("--older-than", "PT1H") == await found("--older-than", "3600") == []
    for session in (["--user", "u", "--session", "s"], ["--user", "u"]):
        assert await found("--older-than", "0", *session) == [REQUEST_CONFIRMATION]
        assert await found("--older-than", "1000", *session) == []
    assert (await perdure("pending", user.app, "--older-than", "soon", *at)).code == 64


async def test_what_waits_is_told_without_a_worker(
    perdure: Perdure, client: Client, app_name: str, at: tuple[str, ...]
) -> None:
    async with serving(client, obedient_app(app_name, Obedient())) as user:
        await user.create()
        await user.run("ask")

    async def listed() -> bool:
        done = await perdure("pending", app_name, "--json", *at)
        assert (done.code, "cannot be read" in done.err) == (0, False)
        return [line["call"]["name"] for line in done.json_lines] == ["approve"]

    await eventually(listed)
