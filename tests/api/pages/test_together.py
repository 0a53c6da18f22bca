"""Several calls of one tool that are answered at once, and the keys of the inbox: over HTTP, and in a browser."""

from __future__ import annotations

import uuid
from typing import Any
from urllib.parse import urlencode

import pytest
from playwright.async_api import Browser, expect

from perdure.api.base.attribution import attribution_of
from perdure.api.pages.together import MOST
from tests.api.pages.browsing import accessibility, focused, opened
from tests.api.pages.support import Pages, Sent
from tests.workflows.support import User, eventually

pytestmark = pytest.mark.server


def fresh() -> str:
    return f"s-{uuid.uuid4().hex[:8]}"


async def waiting(pages: Pages, message: str, *sessions: str, user: str = "ann") -> dict[User, str]:
    """Return people by whose messages sessions wait, each with how a form names its call."""
    people = [await pages.start(message, session, user) for session in sessions]
    return {
        one: f"{pages.app}/{user}/{one.who['session_id']}/{next(iter((await one.pending()).values()))}"
        for one in people
    }


def path(*calls: str) -> str:
    return f"/inbox/together?{urlencode([('call', call) for call in calls])}"


async def test_one_answer_is_given_to_several_calls_and_each_tells_what_became_of_it(pages: Pages) -> None:
    chosen = await waiting(pages, "pay", fresh(), fresh(), fresh())
    early, *others = chosen
    page = await pages.get(path(*chosen.values()), "mia approver")
    assert "One answer for 3 calls of <code>pay</code>" in page
    [call] = (await early.pending()).values()
    await early.answered({call: {"confirmed": False}})
    form = Sent.found(page, "together")
    sent = await pages.send(form, "mia approver", decision="approve", why="All within the budget.")
    assert "2 of 3 answers were taken" in sent.text
    assert "<strong>not taken</strong>, it takes no answer any more" in sent.text
    for person in others:
        await person.logged('clerk: It came to {"result": "paid 12"}.')
        told = [told for event in await person.events() if (told := attribution_of(event))]
        assert [(one.who, one.why) for one in told] == [("mia", "All within the budget.")]
    # Sent again, as by a reload, it is no other answer.
    await pages.send(form, "mia approver", decision="reject")
    await early.logged('clerk: It came to {"error": "This tool call is rejected."}.')
    for person in others:
        assert len([event for event in await person.events() if attribution_of(event)]) == 1
    assert "None of them takes an answer any more" in await pages.get(path(*chosen.values()))


async def test_fields_are_checked_before_any_answer_is_sent(pages: Pages) -> None:
    first, second = fresh(), fresh()
    chosen = await waiting(pages, f"trip {first}", first) | await waiting(pages, f"trip {second}", second)
    form = Sent.found(await pages.get(path(*chosen.values())), "together")
    wrong = await pages.send(form, f0="", f1="much")
    assert wrong.status_code == 422
    assert "Give a value; it is required." in wrong.text
    for person in chosen:
        assert list(await person.pending()) == ["ask_manager"]
        pages.model.gate(person.who["session_id"]).open()
    assert "2 of 2" in (await pages.send(Sent.found(wrong.text, "together"), f0="true", f1="300")).text
    for person in chosen:
        await person.logged('clerk: It came to {"result": "booked"}.')


async def test_what_cannot_be_answered_together_is_refused(pages: Pages) -> None:
    [pay] = (await waiting(pages, "pay", fresh(), user="dora")).values()
    [ask] = (await waiting(pages, "ask why", fresh(), user="dora")).values()
    assert "several tools" in await pages.get(path(pay, ask), status=400)
    assert "choose calls" in await pages.get(path(), status=400)
    assert "names no call" in await pages.get(path("nonsense"), status=400)
    assert f"{MOST} calls" in await pages.get(path(*[pay] * (MOST + 1)), status=400)
    # Another user's is neither shown nor answered.
    await pages.get(path(pay), "cleo", 404)
    form = Sent.found(await pages.get(path(pay), "mia approver"), "together")
    assert (await pages.send(form, "cleo", decision="approve")).status_code == 404
    assert (await pages.send(form, headers={"sec-fetch-site": "cross-site"}, decision="approve")).status_code == 403


@pytest.mark.process
@pytest.mark.parametrize("width", [1280, 380])
async def test_several_calls_are_answered_by_keyboard_alone(pages: Pages, browser: Browser, width: int) -> None:
    user = fresh()
    chosen = await waiting(pages, "pay", fresh(), fresh(), user=user)

    async def is_listed() -> bool:
        page = await pages.get(f"/?app={pages.app}&user={user}")
        return page.count("Approve <code>") == 2

    await eventually(is_listed)
    viewport: Any = {"width": width, "height": 800}
    async with opened(browser, pages, viewport=viewport) as page:
        await page.goto(f"/?app={pages.app}&user={user}")
        await page.keyboard.press("?")
        await expect(page.get_by_text("to its button that rejects")).to_be_visible()
        assert await accessibility(page) == []
        for key in ("j", "a"):
            await page.keyboard.press(key)
        assert await focused(page) == "Approve"
        for key in ("Escape", "x", "j", "e", "j", "Escape", "x"):
            await page.keyboard.press(key)
        # What is typed into a field is no key.
        assert await page.locator("textarea[name=why]").nth(1).input_value() == "j"
        await expect(page.locator("#chosen")).to_have_text("Answer 2 together")
        await page.locator("#chosen").focus()
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("heading", level=1)).to_contain_text("One answer for 2 calls")
        assert await accessibility(page) == []
        assert await page.evaluate("document.documentElement.scrollWidth") <= width
        await page.get_by_role("button", name="Approve").focus()
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("heading", level=1)).to_have_text("2 of 2 answers were taken")
    for person in chosen:
        await person.logged('clerk: It came to {"result": "paid 12"}.')


@pytest.mark.process
async def test_the_keys_are_turned_off_and_stay_so(pages: Pages, browser: Browser) -> None:
    async with opened(browser, pages) as page:
        await page.goto(f"/?app={pages.app}")
        await page.get_by_text("Keys", exact=True).click()
        await page.get_by_label("Use these keys").uncheck()
        await page.reload()
        await page.keyboard.press("?")
        await expect(page.get_by_label("Use these keys")).to_be_hidden()
        await page.get_by_text("Keys", exact=True).click()
        await expect(page.get_by_label("Use these keys")).not_to_be_checked()
