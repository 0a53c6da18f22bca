"""The inbox in a real browser: answering, watching a run go on, stopping, resuming, reloading; by keyboard, too."""

from __future__ import annotations

import re
import uuid
from typing import Any

import pytest
from playwright.async_api import Browser, expect

from perdure.api.base.attribution import attribution_of
from tests.api.pages.browsing import accessibility, focused, opened
from tests.api.pages.support import HOSTILE, Pages
from tests.workflows.support import eventually, responses

pytestmark = [pytest.mark.server, pytest.mark.process]


def fresh() -> str:
    return f"s-{uuid.uuid4().hex[:8]}"


async def is_listed(pages: Pages, *sessions: str) -> None:
    async def look() -> bool:
        page = await pages.get(f"/?app={pages.app}")
        waiting = page.partition('id="waiting"')[2].partition("</section>")[0]
        return all(f">{session}</a>" in waiting for session in sessions)

    await eventually(look)


async def test_answer_watch_reload_stop_and_resume(pages: Pages, browser: Browser) -> None:
    session = fresh()
    person = await pages.start(f"trip {session}", session)
    await is_listed(pages, session)
    async with opened(browser, pages) as page:
        await page.goto(f"/?app={pages.app}")
        card = page.get_by_role("listitem").filter(has=page.get_by_role("link", name=session))
        await card.get_by_label("Yes").check()
        await card.get_by_label("Limit").fill("300")
        await card.get_by_label("Note for the record").fill("Within the budget")
        await card.get_by_role("button", name="Send the answer").click()
        await expect(page.get_by_text("Your answer was taken.")).to_be_visible()
        await page.get_by_role("link", name="See how the session goes on").click()

        await expect(page.get_by_role("heading", level=1)).to_have_text(session)
        await pages.model.gate(session).reached()
        timeline = page.locator("#timeline")
        await expect(timeline).to_contain_text("calls book")
        await expect(page.locator("#status")).to_have_text("running")
        # A reload in the middle loses nothing, and stops nothing.
        await page.reload()
        await expect(page.locator("#status")).to_have_text("running")
        await expect(timeline.get_by_text("answered by mia: “Within the budget”")).to_be_visible()
        await expect(page.locator(".tree")).to_contain_text("at work")

        await page.get_by_label("Reason to stop").fill("lunch")
        await page.get_by_role("button", name="Stop").click()
        await expect(page.get_by_text("The invocation is stopped.")).to_be_visible()
        await expect(page.locator("#status")).to_have_text("stopped")
        await expect(page.locator("#invocations")).to_contain_text("lunch")
        assert pages.model.gate(session).cancelled == 1

        await page.get_by_role("button", name="Resume").click()
        await expect(page.get_by_text("The invocation runs on.")).to_be_visible()
        await expect(page).not_to_have_url(re.compile("said="))
        await pages.model.gate(session).reached(2)
        pages.model.gate(session).open()
        # Without a reload.
        await expect(timeline).to_contain_text('It came to {"result": "booked"}.')
        await expect(page.locator("#status")).to_have_text("idle")
        await expect(page.locator(".tree")).not_to_contain_text("at work")
        await expect(page.get_by_role("button", name="Stop")).to_have_count(0)
    answers = [told for event in await person.events() if (told := attribution_of(event))]
    assert [(told.who, told.why) for told in answers] == [("mia", "Within the budget")]
    assert responses(await person.events(), "ask_manager")[-1]["limit"] == 300


async def test_news_leave_what_is_being_written_alone(pages: Pages, browser: Browser) -> None:
    session = fresh()
    person = await pages.start("ask first", session)
    async with opened(browser, pages) as page:
        await page.goto(pages.path(session))
        field = page.get_by_role("textbox", name="Answer")
        await field.fill('"half of an answ')
        await field.focus()
        await person.send("ask second")
        await expect(page.locator("#waiting > li")).to_have_count(2)
        await expect(page.locator("#news")).to_contain_text("a call waits for an answer")
        assert await field.first.input_value() == '"half of an answ'
        assert await field.first.evaluate("field => field === document.activeElement")
        # The other one is answered elsewhere, and goes.
        calls = [call for view in (await person.view()).invocations for call in view.pending]
        await person.answered({calls[1].id: "elsewhere"})
        await expect(page.locator("#waiting > li")).to_have_count(1)
        assert await field.input_value() == '"half of an answ'
        await page.keyboard.press("End")
        await page.keyboard.type('er"')
        await page.get_by_role("button", name="Send the answer").click()
        await expect(page.locator("#timeline")).to_contain_text('"half of an answer"')


async def test_the_inbox_renews_itself(pages: Pages, browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.api.pages.session_page.POLL", 1)
    session, user = fresh(), fresh()
    async with opened(browser, pages) as page:
        await page.goto(f"/?app={pages.app}&user={user}")
        await expect(page.get_by_text("Nothing waits here")).to_be_visible()
        person = await pages.start("pay", session, user)
        await expect(page.get_by_role("heading", name="Approve pay?")).to_be_visible()
        await expect(page.get_by_text("Nothing waits here")).to_have_count(0)
        assert await page.title() == "(1) Inbox · Perdure"
        [call] = (await person.pending()).values()
        await person.answered({call: {"confirmed": False}})
        await expect(page.get_by_text("Nothing waits here")).to_be_visible()


async def test_the_filters_stand_open_where_there_is_room(pages: Pages, browser: Browser) -> None:
    """On a phone they would fill the first screen; there they are folded, and open by keyboard, too."""
    session, user = fresh(), fresh()
    await pages.start("pay", session, user)
    await is_listed(pages, session)
    for width in (1280, 390):
        viewport: Any = {"width": width, "height": 844}
        async with opened(browser, pages, viewport=viewport) as page:
            await page.goto(f"/?user={user}")
            summary, tool = page.get_by_text(f"Narrow down: {user}"), page.get_by_label("Tool")
            call = page.get_by_role("heading", name="Approve pay?")
            if width == 390:
                await expect(summary).to_be_visible()
                await expect(tool).not_to_be_visible()
                await expect(call).to_be_in_viewport()
                await page.get_by_role("button", name="Sign out").focus()
                await page.keyboard.press("Tab")
                await page.keyboard.press("Enter")
                assert await accessibility(page) == []
            else:
                await expect(summary).not_to_be_visible()
            await expect(tool).to_be_visible()
            await tool.fill("ask_office")
            await tool.press("Enter")
            await expect(page.get_by_text("Nothing waits here")).to_be_visible()


async def test_an_answer_is_given_by_keyboard_alone(pages: Pages, browser: Browser) -> None:
    session = fresh()
    person = await pages.start("pay", session)
    async with opened(browser, pages) as page:
        await page.goto(pages.path(session))
        await page.keyboard.press("Tab")
        assert await focused(page) == "Skip to the content"
        await page.keyboard.press("Enter")
        for _ in range(10):
            await page.keyboard.press("Tab")
            if await focused(page) == "textarea why":
                break
        await page.keyboard.type("By hand.")
        # Enter in the reason neither approves nor rejects.
        await page.keyboard.press("Enter")
        assert list(await person.pending()) == ["adk_request_confirmation"]
        await page.keyboard.press("Tab")
        assert await focused(page) == "Approve"
        outline = await page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline == "solid"
        await page.keyboard.press("Tab")
        assert await focused(page) == "Reject"
        await page.keyboard.press("Enter")
        await expect(page.get_by_text("Your answer was taken.")).to_be_visible()
        await expect(page.locator("#timeline")).to_contain_text("rejects pay")


async def test_a_mistake_is_shown_at_its_field_and_has_the_focus(pages: Pages, browser: Browser) -> None:
    session = fresh()
    await pages.start(f"trip {session}", session)
    async with opened(browser, pages) as page:
        await page.goto(pages.path(session))
        await page.get_by_label("Yes").check()
        await page.get_by_label("Limit").fill("-3")
        await page.get_by_role("button", name="Send the answer").click()
        limit = page.get_by_label("Limit")
        await expect(limit).to_be_focused()
        await expect(limit).to_have_value("-3")
        await expect(limit).to_have_accessible_description(re.compile("Give a number that is at least 0"))
        await expect(page.get_by_label("Yes")).to_be_checked()
        assert await accessibility(page) == []


async def test_the_pages_work_without_javascript(pages: Pages, browser: Browser) -> None:
    session = fresh()
    person = await pages.start("pay", session)
    async with opened(browser, pages, java_script_enabled=False) as page:
        await page.goto(pages.path(session))
        await page.get_by_role("button", name="Approve").click()
        await expect(page.get_by_text("Your answer was taken.")).to_be_visible()
        await person.logged('clerk: It came to {"result": "paid 12"}.')
        await page.goto(pages.path(session))
        await expect(page.locator("#timeline")).to_contain_text("paid 12")


@pytest.mark.parametrize("width", [1280, 380])
async def test_one_call_is_answered_by_its_link(
    pages: Pages, browser: Browser, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.api.pages.session_page.POLL", 1)
    session = fresh()
    person = await pages.start(f"trip {session}", session)
    viewport: Any = {"width": width, "height": 800}
    async with opened(browser, pages, viewport=viewport) as page:
        await page.goto(pages.path(session))
        await page.get_by_role("link", name="Link to this call").click()
        await expect(page.get_by_text("Ask the manager.")).to_be_visible()
        await expect(page.locator("blockquote")).to_have_text(f"trip {session}")
        assert await accessibility(page) == []
        assert await page.evaluate("document.documentElement.scrollWidth") <= width
        async with opened(browser, pages) as other:
            await other.goto(page.url)
            # What the form asks for does not keep the JSON back.
            await page.get_by_text("As JSON").click()
            await page.get_by_label("JSON", exact=True).fill('{"approved": false}')
            await page.get_by_role("button", name="Send the JSON").click()
            await expect(page.get_by_text("Your answer was taken.")).to_be_visible()
            # Who has the page open, too, learns it.
            await expect(other.get_by_text("It takes no answer any more")).to_be_visible()
            await expect(other.get_by_role("button", name="Send the answer")).to_have_count(0)
    assert responses(await person.events(), "ask_manager")[-1] == {"approved": False}


async def test_hostile_content_does_nothing(pages: Pages, browser: Browser) -> None:
    user = fresh()
    person = await pages.start(f"ask {HOSTILE}", HOSTILE, user)
    [call] = (await person.pending()).values()
    async with opened(browser, pages) as page:
        await page.goto(f"/?app={pages.app}&user={user}")
        await page.locator("#sessions a").click()
        await expect(page.locator("#timeline")).to_contain_text("<script>document.title='owned'</script>")
        await person.answered({call: {HOSTILE: [HOSTILE]}})
        await expect(page.locator("#timeline")).to_contain_text("answers ask_office")
        # None of its scripts has run: they would have set the title to this.
        assert await page.title() != "owned"
        assert await page.evaluate("document.querySelectorAll('main script, main img').length") == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 380])
async def test_the_pages_are_accessible(pages: Pages, browser: Browser, scheme: Any, width: int) -> None:
    waiting, failed, user = fresh(), fresh(), fresh()
    await pages.start(f"trip {waiting}", waiting, user)
    await pages.start("send", failed, user)
    viewport: Any = {"width": width, "height": 800}
    async with opened(browser, pages, color_scheme=scheme, viewport=viewport) as page:
        for path in (f"/?app={pages.app}&user={user}", pages.path(waiting, user), pages.path(failed, user)):
            await page.goto(path)
            assert await accessibility(page) == [], path
            assert await page.evaluate("document.documentElement.scrollWidth") <= width, path
