"""The inbox over HTTP: what it lists, who sees it, what its forms do, and what they refuse."""

from __future__ import annotations

import asyncio
import re
import time
import uuid
from datetime import datetime
from html import escape, unescape
from typing import Any
from urllib.parse import urlencode

import pytest
from temporalio.client import Client

from perdure.api.auth.identity import ANYONE, Identity
from perdure.api.base.attribution import answer_metadata, attribution_of
from perdure.client import Runner
from perdure.config import WorkerConfig
from perdure.errors import SessionStuck
from perdure.journal.attribution import ATTRIBUTION as ANSWER
from perdure.journal.events import Event
from perdure.messages.keys import SessionKey
from perdure.worker import create_workers
from tests.api.pages.support import HOSTILE, SAME_ORIGIN, Clerk, Pages, Sent, clerk_app
from tests.workflows.support import User, eventually, responses, serving

pytestmark = pytest.mark.server


def fresh() -> str:
    return f"s-{uuid.uuid4().hex[:8]}"


def as_json(text: str) -> dict[str, Any]:
    """Return what the switch for JSON sends."""
    return {"as": "json", "json": text}


async def listed(pages: Pages, query: str = "", who: str = "") -> list[str]:
    """Return the sessions whose calls the inbox lists."""
    page = await pages.get(f"/?app={pages.app}{query}", who)
    waiting = page.partition('id="waiting"')[2].partition("</section>")[0]
    return re.findall(r"<dt>Session</dt><dd><a [^>]*>([^<]+)</a>", waiting)


async def test_the_inbox_lists_what_waits_oldest_first_and_by_app_user_and_tool(pages: Pages) -> None:
    first, second = fresh(), fresh()
    await pages.start("pay", first)
    await pages.start("ask why", second, "bob")

    async def both() -> bool:
        return [name for name in await listed(pages) if name in (first, second)] == [first, second]

    # Temporal's listing may be a moment behind.
    await eventually(both)
    assert second not in await listed(pages, "&tool=pay")
    assert first in await listed(pages, "&tool=pay")
    assert second in await listed(pages, "&user=bob")
    assert first not in await listed(pages, "&user=bob")
    page = await pages.get(f"/?app={pages.app}")
    assert f'<a href="{pages.path(second, "bob")}">{second}</a>' in page.partition("<table>")[2]
    assert f"<option selected>{pages.app}</option>" in page


async def test_people_see_their_own_sessions_and_approvers_all(pages: Pages) -> None:
    own, other = fresh(), fresh()
    await pages.start("pay", own, "cleo")
    await pages.start("pay", other, "dora")

    async def seen() -> bool:
        return {own, other} <= set(await listed(pages, who="mia approver"))

    await eventually(seen)
    assert await listed(pages, who="cleo") == [own]
    await pages.get(f"/?app={pages.app}&user=dora", "cleo", 404)
    missing = await pages.get(pages.path("nowhere", "dora"), "cleo", 404)
    hidden = await pages.get(pages.path(other, "dora"), "cleo", 404)
    assert re.sub("nowhere|dora", "?", missing) == re.sub(f"{other}|dora", "?", hidden)
    await pages.get(f"{pages.path(other, 'dora')}/live?seen=0", "cleo", 404)
    await pages.get(pages.path(other, "dora"), "mia approver")


async def test_another_users_session_is_neither_answered_nor_stopped(pages: Pages) -> None:
    session = fresh()
    person = await pages.start("pay", session, "dora")
    answer, stop = await pages.form(session, "dora"), await pages.form(session, "dora", "stop")
    assert (await pages.send(answer, "cleo", decision="approve")).status_code == 404
    assert (await pages.send(stop, "cleo")).status_code == 404
    # An approver answers, and no more.
    assert (await pages.send(stop, "mia approver")).status_code == 403
    assert 'action="' not in (await pages.get(pages.path(session, "dora"), "mia approver")).partition("Invocations")[2]
    assert list(await person.pending()) == ["adk_request_confirmation"]
    assert (await pages.send(answer, "mia approver", decision="approve")).status_code == 303


async def test_an_approval_records_who_when_and_why(pages: Pages) -> None:
    session = fresh()
    person = await pages.start("pay", session)
    form = await pages.form(session, who="mia approver")
    answer = await pages.send(form, "mia approver", decision="reject", why="Not <i>now</i>.")
    assert answer.headers["location"] == f"{pages.path(session)}?said=taken"
    assert "Your answer was taken." in await pages.get(answer.headers["location"])
    await person.logged('clerk: It came to {"error": "This tool call is rejected."}.')
    [event] = [event for event in await person.events() if attribution_of(event)]
    told = attribution_of(event)
    assert told is not None
    assert (told.who, told.why) == ("mia", "Not <i>now</i>.")
    assert abs(datetime.fromisoformat(told.when).timestamp() - event.timestamp) < 30
    page = await pages.get(pages.path(session))
    assert "answered by <strong>mia</strong>: “Not &lt;i&gt;now&lt;/i&gt;.”" in page


def test_without_a_sign_in_nobody_is_named() -> None:
    told = answer_metadata(ANYONE)[ANSWER]
    assert (told["who"], told["why"]) == (None, None)
    assert attribution_of(Event(custom_metadata={ANSWER: "forged"})) is None
    odd = attribution_of(Event(custom_metadata={ANSWER: {"who": 7, "when": [], "why": ""}}))
    assert odd is not None
    assert (odd.who, odd.when, odd.why) == (None, "", None)
    assert answer_metadata(Identity("ann"), "since")[ANSWER]["who"] == "ann"


async def test_fields_become_the_answer_and_wrong_ones_are_shown_again(pages: Pages) -> None:
    session = fresh()
    person = await pages.start(f"trip {session}", session)
    form = await pages.form(session)
    wrong = await pages.send(form, "ann", f0="", f1="much", f2='"window"', why="Thinking.")
    assert wrong.status_code == 422
    assert 'action="/sign-out"' in wrong.text
    assert "Give a value; it is required." in wrong.text
    assert "Give a whole number, such as 12." in wrong.text
    assert 'value="much"' in wrong.text
    assert re.search(r'value="&#34;window&#34;" checked', wrong.text)
    assert re.search(r"<textarea [^>]*name=\"why\"[^>]*>\nThinking\.</textarea>", wrong.text)
    assert 'aria-invalid="true"' in wrong.text
    assert list(await person.pending()) == ["ask_manager"]
    pages.model.gate(session).open()
    assert (await pages.send(Sent.found(wrong.text, "answer"), f0="true", f1="300")).status_code == 303
    await person.logged('clerk: It came to {"result": "booked"}.')
    assert responses(await person.events(), "ask_manager")[-1] == {"approved": True, "limit": 300}


async def test_an_answer_of_which_nothing_is_declared_is_text_or_json_and_its_mistakes_are_said(pages: Pages) -> None:
    session = fresh()
    person = await pages.start("ask why", session)
    form = await pages.form(session)
    for text, said in (("", "Give an answer"), ("{no}", "This is no JSON"), ('"\\ud800"', "This is no JSON")):
        answer = await pages.send(form, value=text)
        assert answer.status_code == 422
        assert said in answer.text
        assert ("begins as JSON" in answer.text) is bool(text)
    long = await pages.send(form, value="1", why="x" * 2001)
    assert "2000 characters at the most" in long.text
    assert (await pages.send(form, value="[1, null]")).status_code == 303
    await person.logged('clerk: It came to {"result": [1, null]}.')


async def test_an_answer_in_plain_text_is_taken_as_it_stands(pages: Pages) -> None:
    session = fresh()
    person = await pages.start("ask why", session)
    assert (await pages.send(await pages.form(session), value=" 007\r\ntrue ")).status_code == 303
    await person.logged('clerk: It came to {"result": "007\\ntrue"}.')


async def test_json_stands_behind_a_switch_and_is_of_the_declared_type(pages: Pages) -> None:
    session = fresh()
    person = await pages.start(f"trip {session}", session)
    form = await pages.form(session)
    for text, said in (
        ("{", "This is no JSON"),
        ("", "Give an answer"),
        ('{"approved": 1}', "approved: Give true or false"),
    ):
        wrong = await pages.send(form, **as_json(text))
        assert wrong.status_code == 422
        assert said in wrong.text
        assert '<details class="as-json" open>' in wrong.text
    pages.model.gate(session).open()
    sent = await pages.send(form, **as_json('{"approved": true, "seat": "window"}'))
    assert sent.status_code == 303
    await person.logged('clerk: It came to {"result": "booked"}.')
    assert responses(await person.events(), "ask_manager")[-1] == {"approved": True, "seat": "window"}


@pytest.mark.parametrize(
    ("message", "does"),
    [
        ("trip NAME", "Ask the manager."),
        ("ask why <b>", "Ask the office."),
        ("pay", "Pay."),
    ],
)
async def test_a_call_tells_what_its_tool_does_and_what_the_user_wrote(pages: Pages, message: str, does: str) -> None:
    session, user = fresh(), fresh()
    message = message.replace("NAME", session)
    await pages.start(message, session, user)

    async def is_listed() -> bool:
        return session in await listed(pages, f"&user={user}")

    await eventually(is_listed)
    page = await pages.get(f"/?app={pages.app}&user={user}")
    link = re.search(r'<a href="([^"]+)">Link to this call</a>', page)
    assert link is not None
    for html in (page, await pages.get(unescape(link[1]))):
        card = html.partition('<li class="card call"')[2].partition("</li>")[0]
        assert f'<p class="hint">{does}</p>' in card
        assert f"<blockquote>{escape(message, quote=False)}</blockquote>" in card
        assert f"{user} wrote:" in card
    await pages.get(unescape(link[1]), "cleo", 404)


async def test_the_page_of_a_call_answers_it_and_then_tells_what_became_of_it(pages: Pages) -> None:
    session = fresh()
    person = await pages.start("ask why", session)
    [call] = (await person.pending()).values()
    path = f"{pages.path(session)}/calls/{call}"
    form = Sent.found(await pages.get(path, "mia approver"), "answer")
    wrong = await pages.send(form, "mia approver", value="[no")
    assert (wrong.status_code, "A call that waits for a person" in wrong.text) == (422, True)
    sent = await pages.send(form, "mia approver", value="yes, fine by me", why="Asked around.")
    assert sent.headers["location"] == f"{path}?said=taken"
    await person.logged('clerk: It came to {"result": "yes, fine by me"}.')
    after = await pages.get(path)
    assert "It takes no answer any more" in after
    assert "answered by <strong>mia</strong>: “Asked around.”" in after
    late = await pages.send(form, "mia approver", value="no")
    assert late.headers["location"] == f"{path}?said=answered"
    await pages.get(f"{pages.path(session)}/calls/other", status=404)


async def test_a_form_that_is_sent_twice_answers_once(pages: Pages) -> None:
    session = fresh()
    person = await pages.start("ask why", session)
    form, later = await pages.form(session), await pages.form(session)
    sent = await asyncio.gather(*(pages.send(form, value='"yes"') for _ in range(4)))
    assert {answer.status_code for answer in sent} == {303}
    again = await pages.send(later, value='"no"')
    assert again.headers["location"].endswith("?said=answered")
    await person.logged('clerk: It came to {"result": "yes"}.')
    assert (await person.log()).count("user answers ask_office") == 1


async def test_a_call_in_doubt_has_a_form_of_its_own(pages: Pages) -> None:
    session = fresh()
    person = await pages.start("send", session)
    page = await pages.get(pages.path(session))
    assert "the line to Oslo was cut" in page
    assert (await pages.send(Sent.found(page, "resume"))).headers["location"].endswith("?said=resumed")
    await person.open("perdure_reconcile")
    form = await pages.form(session)
    page = await pages.get(pages.path(session))
    assert "What became of <code>send_once</code>?" in page
    assert (await pages.send(form)).status_code == 422
    assert (await pages.send(form, verdict="happened", result="{")).status_code == 422
    assert (await pages.send(form, verdict="happened", result='"sent"')).status_code == 303
    await person.logged('clerk: It came to {"result": "sent"}.')


async def test_stop_and_resume(pages: Pages) -> None:
    session = fresh()
    person = await pages.start("ask why", session)
    stop = await pages.form(session, what="stop")
    assert (await pages.send(stop, reason="Lunch <b>")).headers["location"].endswith("?said=stopped")
    page = await pages.get(pages.path(session))
    assert "Lunch &lt;b&gt;" in page
    assert "on a resume" in page or "waits until all of its calls are answered" in page
    resume = Sent.found(page, "resume")
    assert (await pages.send(resume)).headers["location"].endswith("?said=resumed")
    assert (await person.view()).status == "waiting"
    assert (await pages.send(await pages.form(session), value="[1]")).status_code == 303
    await person.logged('clerk: It came to {"result": [1]}.')
    assert (await pages.send(stop)).headers["location"].endswith("?said=ended")


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"sec-fetch-site": "none"},
        {"origin": "null"},
        {"origin": "http://evil.example"},
        {"origin": "http://127.0.0.1:1"},
    ],
    ids=str,
)
async def test_forms_of_other_sites_are_refused(pages: Pages, headers: dict[str, str]) -> None:
    session = fresh()
    person = await pages.start("pay", session)
    form, stop = await pages.form(session), await pages.form(session, what="stop")
    assert (await pages.send(form, headers=headers, decision="approve")).status_code == 403
    assert (await pages.send(stop, headers=headers)).status_code == 403
    assert list(await person.pending()) == ["adk_request_confirmation"]
    # A browser over plain HTTP says its origin only.
    assert (await pages.send(form, headers={"origin": pages.url}, decision="approve")).status_code == 303


async def test_what_is_no_form_is_refused(pages: Pages) -> None:
    session = fresh()
    await pages.start("pay", session)
    path = (await pages.form(session)).action

    async def status(content: bytes, kind: str) -> int:
        headers = {**SAME_ORIGIN, "content-type": kind}
        return (await pages.http.post(path, content=content, headers=headers)).status_code

    form = "application/x-www-form-urlencoded"
    assert await status(b"{}", "application/json") == 415
    assert await status(b"decision=%ff", form) == 400
    assert await status(b"decision=\xff", form) == 400
    assert await status(b"&".join(b"a=1" for _ in range(501)), form) == 400
    assert await status(b"", form) == 422
    gone = path.replace(session, "nowhere")
    assert (await pages.http.post(gone, data={"value": "1"}, headers=SAME_ORIGIN)).status_code == 404


async def test_pages_let_nothing_in_from_elsewhere(pages: Pages) -> None:
    session = fresh()
    await pages.start("pay", session)
    for path in (
        f"/?app={pages.app}",
        pages.path(session),
        "/inbox/static/inbox.js",
        "/inbox/apps/x/users/y/sessions/z",
    ):
        answer = await pages.http.get(path)
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
    page = await pages.get(pages.path(session))
    assert not re.search(
        r"<style|<script(?! src=\"/inbox/static/)| style=| on[a-z]+=|https?://(?!localhost:8233/)", page
    )
    assert "no-store" in (await pages.http.get(f"/?app={pages.app}")).headers["cache-control"]
    assert (await pages.http.get("/inbox/static/..%2froutes.py")).status_code == 404


async def test_hostile_names_and_texts_are_shown_and_nothing_more(pages: Pages) -> None:
    user = HOSTILE.replace(" ", "")
    person = await pages.start(f"ask {HOSTILE}", HOSTILE, user)
    page = await pages.get("/?" + urlencode({"app": pages.app, "user": user}))
    found = re.findall(r'href="(/inbox/apps/[^"]+)"', page)
    assert found
    session = await pages.get(found[0])
    for text in (page, session):
        assert "<script>document" not in text
        assert "<img" not in text
        assert "\u202e" not in text.partition("<main")[2].replace('value="', "").split("<table")[0] or text is page
    assert "&lt;script&gt;document.title" in session
    # What would turn the order of an argument's letters is written out.
    assert "\\u202eevil" in session
    assert list(await person.pending()) == ["ask_office"]
    errors = await pages.get(f"/inbox/apps/{'%3Cscript%3E'}/users/u/sessions/s", status=400)
    assert "<script>&" not in errors
    assert "&lt;script&gt;" in errors


async def test_a_page_links_to_its_workflow(pages: Pages) -> None:
    session = fresh()
    await pages.start("pay", session, "a/b")
    page = await pages.get(pages.path(session, "a%2Fb"))
    key = f"{pages.app}%2Fa%252Fb%2F{session}"
    assert f'href="http://localhost:8233/namespaces/default/workflows/{key}"' in page


async def test_live_waits_for_news(pages: Pages) -> None:
    session = fresh()
    person = await pages.start("ask why", session)
    page = await pages.get(pages.path(session))
    found = re.search(r'data-version="(\d+)".* data-live-url="([^"]+)"', page)
    assert found is not None
    waiting = asyncio.ensure_future(pages.get(f"{found[2]}?seen={found[1]}"))
    await asyncio.sleep(0.5)
    assert not waiting.done()
    [call] = await person.open("ask_office")
    await person.answered({call: "yes"})
    fresher = re.search(r'data-version="(\d+)"', await waiting)
    assert fresher is not None
    assert int(fresher[1]) > int(found[1])
    await pages.get(f"{found[2]}?seen=x", status=400)


async def test_a_long_timeline_comes_in_pages(pages: Pages, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.api.pages.reading.MOST_EVENTS", 2)
    session = fresh()
    await pages.start("ask why", session)
    newest = await pages.get(pages.path(session))
    assert newest.count('<li class="entry') == 2
    earlier = re.search(r'href="([^"]+\?before=\d+)"', newest)
    assert earlier is not None
    page = await pages.get(earlier[1])
    assert "ask why" in page
    assert "The newest events" in page
    assert "data-live-url" not in page
    assert '<li class="entry' not in await pages.get(f"{pages.path(session)}?before=0")


async def test_a_closed_session_is_shown_and_brought_back_by_an_answer(pages: Pages) -> None:
    session = fresh()
    person = await pages.start("ask why", session)
    await person.workflow.terminate()
    page = await pages.get(pages.path(session))
    assert "Its workflow is terminated" in page
    version = re.search(r'data-version="(\d+)"', page)
    assert version is not None
    live = asyncio.ensure_future(pages.get(f"{pages.path(session)}/live?seen={version[1]}"))
    assert (await pages.send(Sent.found(page, "answer"), value='"yes"')).status_code == 303
    assert "Its workflow is" not in await live
    await person.logged('clerk: It came to {"result": "yes"}.')


async def test_what_waits_without_a_worker_is_shown_and_said_to(
    pages: Pages, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone, session = f"app_{uuid.uuid4().hex[:12]}", fresh()
    async with serving(client, clerk_app(gone, Clerk())):
        person = User(client, gone, session, session)
        await person.create()
        await person.run("pay")
        await pages.start("pay", session, session)

        async def told() -> bool:
            page = await pages.get(f"/?user={session}")
            return page.count(f">{session}</a>") == 4

        await eventually(told)
    # Its worker is gone; what waits there is shown, and can be answered, all the same.
    monkeypatch.setattr("perdure.sessions.pollers._POLL_SECONDS", 1)
    await asyncio.sleep(1.5)
    page = await pages.get(f"/?user={session}&app={gone}")
    assert f"No worker serves {gone}: what is answered there goes on as soon as one does." in page
    assert page.count(f">{session}</a>") == 2
    assert "does not go on: no worker serves app" in await pages.get(
        pages.path(session, session).replace(pages.app, gone)
    )


async def test_a_session_that_never_had_a_worker_has_its_page_at_once(pages: Pages, client: Client) -> None:
    app, session = f"app_{uuid.uuid4().hex[:12]}", fresh()
    person = User(client, app, "ann", session)
    await person.create()
    began = time.monotonic()
    path = f"/inbox/apps/{app}/users/ann/sessions/{session}"
    assert "does not go on: no worker serves app" in await pages.get(path)
    await pages.get(f"{path}/calls/c", status=404)
    # It is given up after as long.
    assert time.monotonic() - began < 15
    await person.workflow.terminate()


async def test_a_session_that_is_stuck_leaves_the_others_in_the_inbox(
    pages: Pages, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, session, user = f"app_{uuid.uuid4().hex[:12]}", fresh(), fresh()
    # As in production: a defect does not fail a session's workflow.
    (worker,) = create_workers(client, [clerk_app(app, Clerk())], WorkerConfig(max_cached_workflows=10))
    async with worker:
        person = User(client, app, user, session)
        await person.create()
        await person.run("trip x")
        # No code can read what it was started with.
        stuck = await client.start_workflow(
            app, {"state": 5}, id=SessionKey(app, user, "stuck").workflow_id, task_queue=app
        )
        query = f"/?app={app}&user={user}"

        async def told() -> bool:
            return "ask_manager" in (page := await pages.get(query)) and ">stuck</a>" in page

        async def fails(self: Runner, **names: str) -> None:
            raise SessionStuck(session, cause="another code", nondeterministic=True)

        with monkeypatch.context() as patched:
            # It tells what it waits for, and no more.
            patched.setattr(Runner, "plan", fails)
            await eventually(told)
            assert "Whether the trip may be booked." not in await pages.get(query)
        page = await pages.get(query)
        assert f"1 session of {app} cannot be read now" in page
        assert "Whether the trip may be booked." in page
        await stuck.terminate()


async def test_of_very_many_the_oldest_are_shown(pages: Pages, monkeypatch: pytest.MonkeyPatch) -> None:
    user = fresh()
    for session in ("one", "two"):
        await pages.start("ask why", session, user)
    query = f"/?app={pages.app}&user={user}"

    async def both() -> bool:
        return "more sessions" not in (page := await pages.get(query)) and page.count("awaits an answer") == 2

    await eventually(both)
    monkeypatch.setattr("perdure.api.pages.reading.MOST_ASKED", 1)
    page = await pages.get(query)
    assert "1 more sessions wait" in page
    assert "1 more sessions wait" in await pages.get(f"{query}&tool=ask_office")
    assert "more sessions" not in await pages.get(f"{query}&tool=pay"), "none of them waits for it"
    assert re.findall(r"<dt>Session</dt><dd><a [^>]*>([^<]+)</a>", page) == ["one"]
