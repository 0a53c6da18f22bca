"""The chat over HTTP: whose sessions it lists and shows, what it sends, and what it refuses."""

from __future__ import annotations

import asyncio
import json
import re
import uuid
from html import unescape
from typing import Any
from urllib.parse import urlencode

import httpx2
import pytest

from perdure.messages.keys import SessionKey
from tests.api.pages.support import HOSTILE, SAME_ORIGIN, Pages, Sent
from tests.workflows.support import User, eventually

pytestmark = pytest.mark.server


def fresh() -> str:
    return f"s-{uuid.uuid4().hex[:8]}"


async def own(pages: Pages, who: str = "") -> list[str]:
    """Return the sessions that the chat lists, newest first."""
    return re.findall(r'<li data-key="[^"]+"><a href="[^"]+"[^>]*>([^<]+)</a>', await pages.get("/chat", who))


async def begin(pages: Pages, who: str = "", headers: dict[str, str] | None = None, **fields: str) -> httpx2.Response:
    return await pages.send(Sent("/chat", {}), who, headers, **{"app": pages.app, **fields})


def said(page: str) -> list[tuple[str, str]]:
    """Return what stands in the conversation: who, and the text without its marks."""
    turns = re.findall(r'<li class="turn[^"]*" data-key.*?<span class="name">(.*?)</span>(.*?)</li>\n', page, re.DOTALL)
    return [
        (who, unescape(re.sub("<[^>]+>", "", text)))
        for who, inner in turns
        for text in re.findall(r'<(?:p|div) class="said.*?">(.*?)</(?:p|div)>', inner, re.DOTALL)
    ]


async def test_people_see_their_own_sessions_newest_first_whatever_their_role(pages: Pages) -> None:
    user = fresh()
    await pages.start("hello", "one", user)
    await pages.start("hello", "two", user)
    await pages.start("hello", other := fresh(), "dora")

    async def listed() -> bool:
        return await own(pages, f"{user} operator") == ["two", "one"]

    await eventually(listed)
    assert await own(pages, user) == ["two", "one"]

    async def listed_to_everybody() -> bool:
        # Where nobody has to say who they are.
        return {"one", "two", other} <= set(await own(pages))

    await eventually(listed_to_everybody)


async def test_a_session_is_begun_and_a_message_sent(pages: Pages) -> None:
    user = fresh()
    began = await begin(pages, user)
    path = began.headers["location"]
    assert began.status_code == 303
    assert path.startswith(f"/chat/apps/{pages.app}/users/{user}/sessions/")
    page = await pages.get(path, user)
    assert "Nothing has been said yet." in page
    form = Sent.found(page, "messages")
    sent = await pages.send(form, user, message="first line\r\nsecond")
    assert (sent.status_code, sent.headers["location"]) == (303, path)
    # The same form again is the same message.
    assert (await pages.send(form, user, message="first line\r\nsecond")).status_code == 303
    assert (await pages.send(form, user, message="another")).status_code == 409
    person = User(pages.temporal, pages.app, user, path.rpartition("/")[2])
    await person.logged("clerk: You said: first line\nsecond")
    assert said(await pages.get(path, user)) == [
        ("user", "first line\nsecond"),
        ("clerk", "You said: first line\nsecond"),
    ]
    assert (await person.log()).count("user: first line\nsecond") == 1


async def test_what_cannot_be_begun_or_sent_is_refused(pages: Pages) -> None:
    user, session = fresh(), fresh()
    await pages.start("hello", session, user)
    form = Sent.found(await pages.get(pages.chat(session, user)), "messages")
    assert (await pages.send(form, message=" \r\n ")).status_code == 400
    assert (await begin(pages, user, session=session)).status_code == 409
    assert (await begin(pages, user, session="__x")).status_code == 400
    assert (await begin(pages, user, app="nowhere")).status_code == 404
    assert (await begin(pages, user, app="no name")).status_code == 400
    assert (await begin(pages)).status_code == 400
    assert (await begin(pages, user=user, session=fresh())).status_code == 303
    await pages.get(pages.chat("nowhere", user), status=404)
    await pages.get(f"{pages.chat(session, user)}/live?seen=x", status=400)


@pytest.mark.parametrize("who", ["cleo", "mia approver"])
async def test_another_users_session_is_neither_read_nor_written_by_who_may_not(pages: Pages, who: str) -> None:
    user, session = fresh(), fresh()
    person = await pages.start("pay", session, user)
    path = pages.chat(session, user)
    form = Sent.found(await pages.get(path), "messages")
    may_read = "approver" in who
    refused = 403 if may_read else 404
    missing = await pages.get(pages.chat("nowhere", user), who, 404)
    for known in (path, f"{path}?before=1", f"{path}/live?seen=0"):
        page = await pages.get(known, who, 200 if may_read else 404)
        assert may_read or page == missing
    assert (await pages.send(form, who, message="hello")).status_code == refused
    assert (await begin(pages, who, user=user, session=fresh())).status_code == refused
    assert session not in await own(pages, who)
    stream = await pages.http.get(path.replace("/chat/", "/v1/") + "/events/stream?since=99", headers={"x-as": who})
    assert stream.status_code == (400 if may_read else 404)
    if may_read:
        page = await pages.get(path, who)
        assert "to send" in page
        assert 'action="/inbox' in page
        assert 'id="composer"' not in page
        assert "/stop" not in page
    assert (await person.log())[:1] == ["user: pay"]
    assert "user: hello" not in await person.log()


async def test_an_operator_writes_in_anybodys_session(pages: Pages) -> None:
    user, session = fresh(), fresh()
    person = await pages.start("hello", session, user)
    form = Sent.found(await pages.get(pages.chat(session, user), "root operator"), "messages")
    assert (await pages.send(form, "root operator", message="again")).status_code == 303
    await person.logged("clerk: You said: again")


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"origin": "null"},
        {"origin": "http://e.example"},
    ],
    ids=str,
)
async def test_forms_of_other_sites_are_refused(pages: Pages, headers: dict[str, str]) -> None:
    session = fresh()
    person = await pages.start("hello", session)
    form = Sent.found(await pages.get(pages.chat(session)), "messages")
    assert (await pages.send(form, headers=headers, message="forged")).status_code == 403
    assert (await begin(pages, "ann", headers, session=fresh())).status_code == 403
    assert "user: forged" not in await person.log()
    headers = {**SAME_ORIGIN, "content-type": "application/json"}
    assert (await pages.http.post(form.action, content=b"{}", headers=headers)).status_code == 415


async def test_the_chats_pages_let_nothing_in_from_elsewhere(pages: Pages) -> None:
    session, user = fresh(), fresh()
    await pages.start("pay", session, user)
    inbox = (await pages.http.get("/")).headers["content-security-policy"]
    paths = (
        "/chat",
        pages.chat(session, user),
        pages.chat("nowhere"),
        "/inbox/static/chat.js",
        "/inbox/static/chat.css",
    )
    for path in paths:
        assert (await pages.http.get(path)).headers["content-security-policy"] == inbox
    assert "script-src 'self'" in inbox
    assert "require-trusted-types-for 'script'" in inbox
    page = await pages.get(pages.chat(session, user), user)
    assert not re.search(r"<style|<script(?! src=\"/inbox/static/)| style=| on[a-z]+=|javascript:", page)
    assert (await pages.http.get("/chat")).headers["cache-control"] == "no-store"


async def test_hostile_names_and_texts_are_shown_and_nothing_more(pages: Pages) -> None:
    user = HOSTILE.replace(" ", "")
    await pages.start(HOSTILE, HOSTILE, user)
    app, user_part, session = SessionKey(pages.app, user, HOSTILE).workflow_id.split("/")
    page = await pages.get(f"/chat/apps/{app}/users/{user_part}/sessions/{session}")
    assert "<script>document" not in page
    assert "<img" not in page
    assert page.count("&lt;script&gt;document") >= 4
    assert "\\u202eevil" in page


async def test_forms_stand_in_the_chat_and_lead_back_to_it(pages: Pages) -> None:
    session = fresh()
    person = await pages.start(f"trip {session}", session)
    pages.model.gate(session).open()
    path = pages.chat(session)
    form = Sent.found(await pages.get(path), "answer")
    wrong = await pages.send(form, f0="true", f1="much")
    assert wrong.status_code == 422
    assert "Give a whole number" in wrong.text
    assert 'id="composer"' in wrong.text
    taken = await pages.send(Sent.found(wrong.text, "answer"), "mia approver", f0="true", f1="3", why="Because.")
    assert taken.headers["location"] == f"{path}?said=taken"
    page = await pages.get(taken.headers["location"])
    assert "Your answer was taken." in page
    await person.logged('clerk: It came to {"result": "booked"}.')
    page = await pages.get(path)
    assert "answers <code>ask_manager</code>" in page
    assert "answered by <strong>mia</strong> “Because.”" in page


@pytest.mark.parametrize(
    ("decision", "told", "result"),
    [
        ("approve", "approves", {"result": "paid 12"}),
        ("reject", "rejects", {"error": "This tool call is rejected."}),
    ],
)
async def test_a_confirmation_reads_as_a_question_and_its_answer(
    pages: Pages, decision: str, told: str, result: dict[str, str]
) -> None:
    session = fresh()
    person = await pages.start("pay", session)
    page = await pages.get(pages.chat(session))
    assert "asks for approval of <code>pay</code>" in page
    assert "requires confirmation" not in page
    await pages.send(Sent.found(page, "answer"), decision=decision)
    await person.logged(f"clerk: It came to {json.dumps(result)}.")
    page = await pages.get(pages.chat(session))
    assert f"{told} <code>pay</code>" in page
    assert "<code>pay</code> runs once a person has approved it" in page
    assert "adk_request_confirmation" not in page


async def test_it_is_stopped_and_resumed_and_says_who_is_at_work(pages: Pages) -> None:
    session = fresh()
    person = await pages.start(f"write {session}", session, settle=False)
    await pages.model.gate(session).reached()
    path = pages.chat(session)
    page = await pages.get(path)
    assert "<strong>clerk</strong> is at work" in page
    stop = Sent.found(page, "stop")
    assert (await pages.send(stop)).headers["location"] == f"{path}?said=stopped"
    page = await pages.get(path)
    assert "It was stopped" in page
    resume = Sent.found(page, "resume")
    assert (await pages.send(resume)).headers["location"] == f"{path}?said=resumed"
    pages.model.gate(session).open()
    await person.logged("clerk: The **first** half, and the second.")
    assert "<p>The <strong>first</strong> half, and the second.</p>" in await pages.get(path)


async def test_a_message_that_waits_for_its_turn_is_shown(pages: Pages) -> None:
    session = fresh()
    person = await pages.start(f"write {session}", session, settle=False)
    await pages.model.gate(session).reached()
    await person.send("later")
    path = pages.chat(session)
    page = await pages.get(path)
    arrived = page.partition('id="arrived"')[2].partition("</ol>")[0]
    assert ("user", "later") in said(arrived)
    assert "waits for its turn" in arrived
    pages.model.gate(session).open()
    await person.logged("clerk: You said: later")
    page = await pages.get(path)
    assert "waits for its turn" not in page
    assert [text for who, text in said(page) if who == "user"] == [f"write {session}", "later"]


async def test_live_waits_for_news_and_leaves_the_list_of_sessions_out(pages: Pages) -> None:
    session = fresh()
    person = await pages.start("ask why", session)
    page = await pages.get(pages.chat(session))
    assert 'id="sessions"' in page
    found = re.search(r'data-version="(\d+)"', page)
    assert found is not None
    waiting = asyncio.ensure_future(pages.get(f"{pages.chat(session)}/live?seen={found[1]}"))
    await asyncio.sleep(0.5)
    assert not waiting.done()
    [call] = await person.open("ask_office")
    await person.answered({call: "yes"})
    fresher = await waiting
    assert 'id="sessions"' not in fresher
    assert "answers <code>ask_office</code>" in fresher


async def test_long_texts_are_whole_and_a_long_log_comes_in_pages(
    pages: Pages, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, long = fresh(), "word " * 10_000
    person = await pages.start(long, session)
    page = await pages.get(pages.chat(session))
    assert page.count(long.strip()) == 2
    monkeypatch.setattr("perdure.api.pages.reading.MOST_EVENTS", 1)
    newest = await pages.get(pages.chat(session))
    earlier = re.search(r'href="([^"]+\?before=\d+)">Earlier', newest)
    assert earlier is not None
    page = await pages.get(unescape(earlier[1]))
    assert "The newest messages" in page
    assert 'id="composer"' not in page
    assert "data-live-url" not in page
    assert "Earlier messages" in page or (await person.log())[0].startswith("user: word")


async def test_the_inbox_and_the_chat_lead_to_each_other(pages: Pages) -> None:
    session = fresh()
    await pages.start("hello", session)
    assert f'href="{pages.chat(session)}">Chat' in await pages.get(pages.path(session))
    assert f'href="{pages.path(session)}">Timeline' in await pages.get(pages.chat(session))
    for path in ("/", "/chat"):
        page = await pages.get(path)
        assert '<a href="/chat"' in page
        assert page.count('aria-current="true"') == 1


async def test_a_slash_in_an_id_stays_in_it(pages: Pages) -> None:
    user: Any = f"a/{fresh()}"
    began = await begin(pages, user=user, session="x/y?z")
    path = began.headers["location"]
    assert path.endswith("/sessions/x%2Fy%3Fz")
    page = await pages.get(path)
    assert urlencode({"u": user})[2:] in page
    assert (await pages.send(Sent.found(page, "messages"), message="hello")).status_code == 303
    await User(pages.temporal, pages.app, user, "x/y?z").logged("clerk: You said: hello")
