"""Notices over real HTTP and SMTP: what they say, how they are signed, and what becomes of those that are refused."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from standardwebhooks.webhooks import Webhook as Verifier

from perdure.journal.entries import Failure
from perdure.journal.events import REQUEST_CONFIRMATION
from perdure.journal.open_calls import PendingCall
from perdure.messages.keys import SessionKey
from perdure.messages.session import InvocationView
from perdure.notices.notice import Notice, of_call, of_failure
from perdure.notices.sending import NotDelivered, send
from perdure.notices.settings import NoticeSettings
from tests.notices.mailboxes import mailbox
from tests.notices.test_settings import SECRET
from tests.notices.webhooks import webhook

KEY = SessionKey("travel", "ann <b>", "trip 1")
LINK = "https://agents.example.com"
APPROVAL = PendingCall(
    id="adk-1",
    name=REQUEST_CONFIRMATION,
    args={"originalFunctionCall": {"id": "c1", "name": "pay", "args": {"amount": 5}}, "toolConfirmation": {}},
    agent="clerk",
    invocation_id="e-1",
    since=1_000.0,
    deadline=90_000.0,
    message="pay it\x1b[31m",
)
ASKED = PendingCall(id="c2", name="ask_<!channel>", agent="clerk", invocation_id="e-1", since=1_000.0)


def settings(**given: Any) -> NoticeSettings:
    return NoticeSettings.model_validate(given)


def test_a_notice_says_who_waits_for_what_and_no_content_unless_asked_to() -> None:
    notice = of_call(KEY, APPROVAL, "call.waiting", settings(link=LINK), at=2_000.0)
    link = f"{LINK}/inbox/apps/travel/users/ann%20%3Cb%3E/sessions/trip%201/calls/adk-1"
    told = "clerk waits for an approval of pay, by 1970-01-02T01:00:00+00:00 (travel/ann%20%3Cb%3E/trip%201)"
    assert (notice.text, notice.link) == (told, link)
    assert json.loads(notice.json()) == {
        "type": "call.waiting",
        "timestamp": "1970-01-01T00:33:20+00:00",
        "text": told,
        "data": {
            "app": "travel",
            "user": "ann <b>",
            "session": "trip 1",
            "invocation": "e-1",
            "agent": "clerk",
            "call": "adk-1",
            "tool": "pay",
            "asks": "confirmation",
            "since": "1970-01-01T00:16:40+00:00",
            "deadline": "1970-01-02T01:00:00+00:00",
            "link": link,
        },
    }
    with_content = of_call(KEY, APPROVAL, "call.due", settings(content=True), at=2_000.0)
    assert (with_content.data["args"], with_content.data["message"]) == ({"amount": 5}, "pay it\x1b[31m")
    assert with_content.text.startswith("clerk still waits for")
    assert "\x1b" not in with_content.mail()
    assert with_content.id != notice.id


def test_names_bring_no_markup_into_a_chat() -> None:
    notice = of_call(KEY, ASKED, "call.waiting", settings(), at=2_000.0)
    assert notice.text == "clerk waits for an answer to ask_??channel? (travel/ann%20%3Cb%3E/trip%201)"
    body = notice.filled_in('{"text": "$text", "user": "$user", "tool": "$tool"}')
    assert json.loads(body) == {"text": notice.text, "user": "ann <b>", "tool": "ask_<!channel>"}


def failed(*failures: Failure) -> InvocationView:
    return InvocationView(id="e-1", status="failed", failures=failures, resumable=True)


def test_a_failure_says_where_and_why_only_if_asked_to() -> None:
    view = failed(Failure(agent="clerk", step="pay", cause="RuntimeError: card 4111"))
    notice = of_failure(KEY, view, 7, settings(link=LINK), at=2_000.0)
    assert notice.text == "an invocation has failed at pay of clerk (travel/ann%20%3Cb%3E/trip%201)"
    assert notice.link == f"{LINK}/inbox/apps/travel/users/ann%20%3Cb%3E/sessions/trip%201"
    assert "4111" not in notice.json() + notice.mail()
    assert of_failure(KEY, view, 8, settings(), at=2_000.0).id != notice.id
    assert "4111" in of_failure(KEY, view, 7, settings(content=True), at=2_000.0).mail()
    assert of_failure(KEY, failed(), 7, settings(), at=2_000.0).text.startswith("an invocation has failed (")


def some_notice() -> Notice:
    return of_call(KEY, APPROVAL, "call.waiting", settings(link=LINK), at=time.time())


async def test_a_webhook_is_signed_as_standard_webhooks_says() -> None:
    notice = some_notice()
    with webhook() as told:
        await send(notice, "webhook", settings(webhook={"url": told.url, "secret": SECRET}))
        [(headers, body)] = told.got
    assert Verifier(SECRET).verify(body, headers) == json.loads(notice.json())
    assert (headers["webhook-id"], headers["content-type"]) == (notice.id, "application/json")


async def test_a_webhook_has_a_body_of_its_own() -> None:
    notice = some_notice()
    with webhook() as told:
        await send(notice, "webhook", settings(webhook={"url": told.url, "body": '{"content": "$text"}'}))
        [(headers, body)] = told.got
    assert json.loads(body) == {"content": f"{notice.text} {notice.link}"}
    assert "webhook-signature" not in headers


@pytest.mark.parametrize(
    ("status", "headers", "again", "pause"),
    [
        (500, {}, True, None),
        (503, {"retry-after": "7"}, True, 7.0),
        (429, {"retry-after": "999999"}, True, 3600.0),
        (429, {"retry-after": "soon"}, True, None),
        (404, {}, False, None),
        (302, {"location": "http://127.0.0.1:1/"}, False, None),
    ],
)
async def test_what_a_webhook_refuses_is_sent_again_where_that_may_help(
    status: int, headers: dict[str, str], again: bool, pause: float | None
) -> None:
    with webhook() as told:
        told.answers.append((status, headers))
        with pytest.raises(NotDelivered, match=f"status {status}") as caught:
            await send(some_notice(), "webhook", settings(webhook={"url": told.url}))
    assert (caught.value.again, caught.value.pause, len(told.got)) == (again, pause, 1)


async def test_an_address_that_nobody_answers_is_kept_out_of_the_error() -> None:
    with webhook() as told:
        url = f"{told.url}/T0/SECRET"
    with pytest.raises(NotDelivered, match="cannot be reached: ConnectError") as caught:
        await send(some_notice(), "webhook", settings(webhook={"url": url}))
    assert "SECRET" not in str(caught.value)
    assert caught.value.again


def mail(url: str) -> dict[str, Any]:
    return {"smtp": url, "from": "Agents <agents@example.com>", "to": ["a@example.com", "b@example.com"]}


async def test_a_mail_is_sent_to_all() -> None:
    notice = some_notice()
    async with mailbox() as box:
        await send(notice, "mail", settings(mail=mail(box.url)))
    [got] = box.got
    assert box.receivers == [["a@example.com", "b@example.com"]]
    assert (got["subject"], got["message-id"]) == (notice.text, f"<{notice.id}@example.com>")
    assert [line for line in got.get_content().splitlines() if line][:2] == [notice.text, notice.link]


@pytest.mark.parametrize(("answer", "again"), [("451 later", True), ("554 no", False)])
async def test_what_a_mail_server_refuses_is_sent_again_where_that_may_help(answer: str, again: bool) -> None:
    async with mailbox() as box:
        box.answer = answer
        with pytest.raises(NotDelivered, match=f"the mail server answers with {answer[:3]}") as caught:
            await send(some_notice(), "mail", settings(mail=mail(box.url)))
    assert (caught.value.again, box.got) == (again, [])


async def test_no_mail_goes_to_another_machine_without_tls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.notices.sending._HERE", frozenset[str]())
    async with mailbox() as box:
        with pytest.raises(NotDelivered, match="SMTPNotSupportedError"):
            await send(some_notice(), "mail", settings(mail=mail(box.url)))
    assert box.got == []


async def test_a_channel_that_the_process_has_not_is_told() -> None:
    with pytest.raises(NotDelivered, match=r"no \[mail\]"):
        await send(some_notice(), "mail", settings())
