"""The chat in a real browser: what is written as it is written, answers in place, and nothing lost or twice."""

from __future__ import annotations

import asyncio
import re
import uuid
from typing import Any

import pytest
from playwright.async_api import Browser, FilePayload, Locator, Page, expect

from perdure.api.base.attribution import attribution_of
from tests.api.pages.browsing import accessibility, focused, opened
from tests.api.pages.support import HOSTILE, Pages
from tests.workflows.support import User, eventually

pytestmark = [pytest.mark.server, pytest.mark.process]

WHOLE = "The first half, and the second."
ANN = "ann"


def fresh() -> str:
    return f"s-{uuid.uuid4().hex[:8]}"


def message(page: Page) -> Locator:
    return page.locator("#message")


async def turns(page: Page) -> list[str]:
    """Return what stands in the conversation, entry by entry, without times."""
    await page.evaluate("document.querySelectorAll('.when').forEach((one) => (one.hidden = true))")
    return [" ".join(text.split()) for text in await page.locator("#timeline > li").all_inner_texts()]


async def test_a_session_is_begun_and_its_answer_comes_as_it_is_written(pages: Pages, browser: Browser) -> None:
    name = fresh()
    async with opened(browser, pages, ANN) as page:
        await page.goto("/chat")
        await page.get_by_label("App").select_option(pages.app)
        await page.get_by_label("Name").fill(name)
        await page.get_by_role("button", name="Begin").click()
        await expect(page.get_by_role("heading", level=1)).to_have_text(name)
        await expect(message(page)).to_be_focused()
        await page.keyboard.type(f"write {name}")
        await page.keyboard.press("Enter")
        await expect(message(page)).to_have_value("")
        await expect(page.locator("#timeline")).to_contain_text(f"write {name}")
        # As text, while it is not whole.
        await expect(page.locator("#writing .spoken")).to_have_text("The **first** half, ")
        await expect(page.locator("#writing .name")).to_have_text("clerk")
        await expect(page.locator("#standing")).to_contain_text("clerk is at work")
        await expect(page.locator(".tree")).to_contain_text("at work")
        pages.model.gate(name).open()
        answer = page.locator("#timeline .prose")
        await expect(answer).to_have_text(WHOLE)
        await expect(answer.locator("strong")).to_have_text("first")
        await expect(page.locator("#writing > li")).to_have_count(0)
        await expect(page.locator("#status")).to_have_text("idle")
        await expect(page.locator("#standing")).to_have_text("")
        seen = await turns(page)
        await page.reload()
        assert await turns(page) == seen == [f"user write {name}", f"clerk {WHOLE}"]


async def test_two_windows_show_the_same_and_one_that_comes_late_has_the_beginning(
    pages: Pages, browser: Browser
) -> None:
    """A session that a program has started."""
    session = fresh()
    person = User(pages.temporal, pages.app, "ann", session)
    await person.create()
    async with opened(browser, pages, ANN) as first:
        await first.goto(pages.chat(session))
        await expect(first.locator("#silence")).to_contain_text("Nothing has been said")
        await eventually(lambda: person.key in pages.server.streams.wanted())
        await person.send(f"write {session}")
        await expect(first.locator("#writing .spoken")).to_have_text("The **first** half, ")
        second = await first.context.new_page()
        await second.goto(pages.chat(session))
        await expect(second.locator("#writing .spoken")).to_have_text("The **first** half, ")
        await message(second).fill("hello")
        await message(second).press("Enter")
        for page in (first, second):
            await expect(page.locator("#arrived")).to_contain_text("hello")
        pages.model.gate(session).open()
        for page in (first, second):
            await expect(page.locator("#timeline")).to_contain_text("You said: hello")
            await expect(page.locator("#arrived > li")).to_have_count(0)
            await expect(page.locator("#status")).to_have_text("idle")
        expected = [f"user write {session}", f"clerk {WHOLE}", "user hello", "clerk You said: hello"]
        assert await turns(first) == await turns(second) == expected


async def test_calls_are_answered_in_place(pages: Pages, browser: Browser) -> None:
    session = fresh()
    person = User(pages.temporal, pages.app, "ann", session)
    await person.create()
    pages.model.gate(session).open()
    async with opened(browser, pages, ANN) as page:
        await page.goto(pages.chat(session))
        await message(page).fill(f"trip {session}")
        await message(page).press("Enter")
        # A form of the declared type, with its mistakes at the field; what is being written stays.
        await message(page).fill("half of a mess")
        card = page.locator("#waiting > li")
        await card.get_by_label("Yes").check()
        await card.get_by_label("Limit").fill("-3")
        await card.get_by_role("button", name="Send the answer").click()
        limit = page.get_by_label("Limit")
        await expect(limit).to_be_focused()
        await expect(limit).to_have_accessible_description(re.compile("at least 0"))
        await expect(card.get_by_label("Yes")).to_be_checked()
        await limit.fill("300")
        await card.get_by_role("button", name="Send the answer").click()
        await expect(page.locator("#said")).to_have_text("Your answer was taken.")
        await expect(page.locator("#timeline")).to_contain_text('It came to {"result": "booked"}.')
        await expect(card).to_have_count(0)
        await expect(message(page)).to_have_value("half of a mess")
        await expect(message(page)).to_be_focused()
        # An approval, with a reason; and plain text, where nothing is declared.
        await message(page).fill("pay")
        await message(page).press("Enter")
        await card.get_by_label("Reason").fill("Too much.")
        await card.get_by_role("button", name="Reject").click()
        await expect(page.locator("#timeline")).to_contain_text("This tool call is rejected.")
        await message(page).fill("ask why")
        await message(page).press("Enter")
        await card.get_by_role("textbox", name="Answer").fill("Because it is so.")
        await card.get_by_role("button", name="Send the answer").click()
        await expect(page.locator("#timeline")).to_contain_text('It came to {"result": "Because it is so."}.')
    told = [(one.who, one.why) for event in await person.events() if (one := attribution_of(event))]
    assert told == [("ann", None), ("ann", "Too much."), ("ann", None)]


async def test_an_answer_from_elsewhere_takes_the_form_away(pages: Pages, browser: Browser) -> None:
    session = fresh()
    person = await pages.start("ask why", session)
    async with opened(browser, pages, ANN) as page:
        await page.goto(pages.chat(session))
        await expect(page.locator("#waiting > li")).to_have_count(1)
        [call] = await person.open("ask_office")
        await person.answered({call: "elsewhere"})
        await expect(page.locator("#waiting > li")).to_have_count(0)
        await expect(page.locator("#timeline")).to_contain_text('It came to {"result": "elsewhere"}.')


async def test_the_server_restarts_in_the_middle(pages: Pages, browser: Browser) -> None:
    """What could not be sent stays in the box; the page goes on where it was, nothing twice, nothing lost."""
    session = fresh()
    person = User(pages.temporal, pages.app, "ann", session)
    await person.create()
    async with opened(browser, pages, ANN, may_fail="Failed to load resource") as page:
        await page.goto(pages.chat(session))
        await message(page).fill(f"write {session}")
        await message(page).press("Enter")
        await expect(page.locator("#writing .spoken")).to_have_text("The **first** half, ")
        await pages.server.stop()
        try:
            await message(page).fill("are you there?")
            await message(page).press("Enter")
            unsent = page.locator("#unsent")
            await expect(unsent).to_contain_text("was not sent. The server cannot be reached.")
            await expect(unsent).to_have_role("alert")
            await expect(message(page)).to_have_value("are you there?")
            await expect(page.locator("#offline")).to_be_visible()
        finally:
            await pages.server.start()
        # The answer that is being written comes again from its beginning, and takes the place of what was there.
        await expect(page.locator("#offline")).to_be_hidden()
        await expect(page.locator("#writing .spoken")).to_have_text("The **first** half, ")
        await message(page).press("Enter")
        await expect(message(page)).to_have_value("")
        await expect(unsent).to_be_hidden()
        await expect(page.locator("#arrived")).to_contain_text("are you there?")
        pages.model.gate(session).open()
        await expect(page.locator("#timeline")).to_contain_text("You said: are you there?")
        await expect(page.locator("#writing > li")).to_have_count(0)
        seen = await turns(page)
        expected = [f"user write {session}", f"clerk {WHOLE}", "user are you there?", "clerk You said: are you there?"]
        assert seen == expected
        await page.reload()
        assert await turns(page) == expected
    assert len(await person.log()) == 4


async def test_a_message_whose_answer_was_lost_is_sent_once(pages: Pages, browser: Browser) -> None:
    session = fresh()
    person = User(pages.temporal, pages.app, "ann", session)
    await person.create()
    async with opened(browser, pages, ANN, may_fail="Failed to load resource") as page:
        await page.goto(pages.chat(session))

        async def lose(route: Any) -> None:
            await route.fetch()
            await route.abort()

        await page.route("**/messages", lose, times=1)
        await message(page).fill("hello")
        await message(page).press("Enter")
        await expect(page.locator("#unsent")).to_be_visible()
        await page.get_by_role("button", name="Send").click()
        await expect(message(page)).to_have_value("")
        await expect(page.locator("#timeline")).to_contain_text("You said: hello")
        # Who writes something else after such a failure sends something else.
        await page.route("**/messages", lose, times=1)
        await message(page).fill("one")
        await message(page).press("Enter")
        await expect(page.locator("#unsent")).to_be_visible()
        await message(page).fill("two")
        await message(page).press("Enter")
        await expect(page.locator("#timeline")).to_contain_text("You said: two")
    assert [line for line in await person.log() if line.startswith("user")] == ["user: hello", "user: one", "user: two"]


async def test_messages_are_written_and_sent_while_one_is_on_its_way(pages: Pages, browser: Browser) -> None:
    session = fresh()
    person = User(pages.temporal, pages.app, "ann", session)
    await person.create()
    async with opened(browser, pages, ANN, may_fail="Failed to load resource") as page:
        await page.goto(pages.chat(session))
        held, released = asyncio.Event(), asyncio.Event()

        async def hold(route: Any) -> None:
            held.set()
            await released.wait()
            await route.continue_()

        await page.route("**/messages", hold)
        await message(page).press_sequentially("one")
        await message(page).press("Enter")
        await held.wait()
        await message(page).press_sequentially("two")
        await message(page).press("Enter")
        await expect(message(page)).to_have_value("")
        await message(page).press_sequentially("three")
        released.set()
        await expect(page.locator("#timeline")).to_contain_text("You said: two")
        await expect(message(page)).to_have_value("three")
        # What follows a message that fails comes back behind it, in one piece.
        held.clear()
        released.clear()
        await page.unroute("**/messages")

        async def fail(route: Any) -> None:
            held.set()
            await released.wait()
            await route.abort()

        await page.route("**/messages", fail, times=1)
        await message(page).press("Enter")
        await held.wait()
        await message(page).press_sequentially("four")
        await message(page).press("Enter")
        await message(page).press_sequentially("five")
        released.set()
        await expect(page.locator("#unsent")).to_be_visible()
        await expect(message(page)).to_have_value("three\nfour\nfive")
        await message(page).press("Enter")
        await expect(page.locator("#timeline")).to_contain_text("You said: three four five")
    said = [line for line in await person.log() if line.startswith("user")]
    assert said == ["user: one", "user: two", "user: three\nfour\nfive"]


async def test_what_is_refused_is_said_and_kept_over_a_reload(pages: Pages, browser: Browser) -> None:
    session = fresh()
    await pages.start("hello", session)
    async with opened(browser, pages, ANN, may_fail="status of 403") as page:
        await page.goto(pages.chat(session))

        async def refuse(route: Any) -> None:
            await route.fulfill(status=403, content_type="text/html", body="<p id=detail>No &lt;b&gt;.</p>")

        await page.route("**/messages", refuse, times=1)
        await message(page).fill("kept")
        await message(page).press("Enter")
        await expect(page.locator("#unsent")).to_contain_text("The message was not sent. No <b>.")
        await page.reload()
        await expect(message(page)).to_have_value("kept")
        await message(page).press("Enter")
        await expect(page.locator("#timeline")).to_contain_text("You said: kept")
        await page.reload()
        await expect(message(page)).to_have_value("")


async def test_what_is_written_before_the_scripts_have_come_stays(pages: Pages, browser: Browser) -> None:
    """On a slow line a page can be written in before its scripts run."""
    session = fresh()
    person = await pages.start("hello", session)
    written = asyncio.Event()
    async with opened(browser, pages, ANN) as page:

        async def late(route: Any) -> None:
            await written.wait()
            await route.continue_()

        await page.route("**/static/files.js*", late)
        await page.route("**/static/chat.js*", late)
        await page.goto(pages.chat(session), wait_until="commit")
        await message(page).fill("early")
        note = FilePayload(name="note.txt", mimeType="text/plain", buffer=b"seven")
        await page.get_by_label("Attach files").set_input_files([note])
        written.set()
        await expect(page.locator("#chosen")).to_contain_text("note.txt")
        await expect(message(page)).to_have_value("early")
        await message(page).press("Enter")
        await expect(page.locator("#timeline")).to_contain_text("You said: early")
        await expect(page.locator("#timeline")).to_contain_text("note.txt")
        await page.reload()
        await expect(message(page)).to_have_value("")
    assert [line for line in await person.log() if line.startswith("user")] == ["user: hello", "user: early"]


async def test_an_invocation_is_stopped_and_resumed(pages: Pages, browser: Browser) -> None:
    session = fresh()
    person = await pages.start(f"trip {session}", session)
    async with opened(browser, pages, ANN) as page:
        await page.goto(pages.chat(session))
        [call] = await person.open("ask_manager")
        await person.answer({call: {"approved": True}})
        standing = page.locator("#standing")
        await pages.model.gate(session).reached()
        await expect(page.locator("#timeline")).to_contain_text("calls book")
        await standing.get_by_role("button", name="Stop").click()
        await expect(standing).to_contain_text("It was stopped")
        await expect(page.locator("#said")).to_contain_text("The invocation is stopped.")
        assert pages.model.gate(session).cancelled == 1
        await standing.get_by_role("button", name="Resume").click()
        await pages.model.gate(session).reached(2)
        await expect(standing).to_contain_text("is at work")
        pages.model.gate(session).open()
        await expect(page.locator("#timeline")).to_contain_text('It came to {"result": "booked"}.')
        await expect(standing.get_by_role("button")).to_have_count(0)


async def test_pieces_of_an_answer_that_never_comes_go(pages: Pages, browser: Browser) -> None:
    session = fresh()
    person = User(pages.temporal, pages.app, "ann", session)
    await person.create()
    async with opened(browser, pages, ANN) as page:
        await page.goto(pages.chat(session))
        await message(page).fill(f"write {session}")
        await message(page).press("Enter")
        await expect(page.locator("#writing .spoken")).to_have_text("The **first** half, ")
        await page.locator("#standing").get_by_role("button", name="Stop").click()
        await expect(page.locator("#writing > li")).to_have_count(0)
        assert await turns(page) == [f"user write {session}"]
        await page.locator("#standing").get_by_role("button", name="Resume").click()
        pages.model.gate(session).open()
        await expect(page.locator("#timeline .prose")).to_have_text(WHOLE)


async def test_it_is_used_by_keyboard_alone(pages: Pages, browser: Browser) -> None:
    session = fresh()
    person = await pages.start("hello", session)
    async with opened(browser, pages, ANN) as page:
        await page.goto(pages.chat(session))
        await expect(message(page)).to_be_focused()
        await page.keyboard.press("Enter")
        await page.keyboard.type("one")
        await page.keyboard.press("Shift+Enter")
        await page.keyboard.type("two")
        await expect(message(page)).to_have_value("one\ntwo")
        await page.keyboard.press("Enter")
        await expect(page.locator("#timeline")).to_contain_text("You said: one two")
        await page.keyboard.type("pay")
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("heading", name="Approve pay?")).to_be_visible()
        for _ in range(6):
            await page.keyboard.press("Shift+Tab")
            if await focused(page) == "Approve":
                break
        assert await page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
        await page.keyboard.press("Enter")
        await expect(page.locator("#timeline")).to_contain_text("paid 12")
        await expect(message(page)).to_be_focused()
    assert (await person.log()).count("user: one\ntwo") == 1


async def test_it_follows_the_end_and_leaves_who_reads_above_alone(pages: Pages, browser: Browser) -> None:
    session = fresh()
    person = await pages.start("line\n" * 60, session)
    viewport: Any = {"width": 1200, "height": 600}
    async with opened(browser, pages, ANN, viewport=viewport) as page:
        await page.goto(pages.chat(session))
        assert await is_at_end(page)
        await person.run("more\n" * 60)
        await expect(page.locator("#timeline > li")).to_have_count(4)
        await eventually(lambda: is_at_end(page))
        await page.locator(".scrolls").evaluate("(one) => one.scrollTo(0, 100)")
        await person.run("again")
        await expect(page.locator("#timeline > li")).to_have_count(6)
        assert await page.locator(".scrolls").evaluate("(one) => one.scrollTop") == 100
        # A form is read from its top.
        await message(page).fill(f"trip {session}")
        await message(page).press("Enter")
        await expect(page.get_by_role("heading", name="ask_manager")).to_be_visible()
        await eventually(lambda: is_at_top(page))


async def is_at_top(page: Page) -> bool:
    """Return whether the first form begins near the top of the part that scrolls."""
    above = """(one) => one.getBoundingClientRect().top -
        document.querySelector(".scrolls").getBoundingClientRect().top"""
    return 0 <= await page.locator("#waiting > li").first.evaluate(above) < 120


async def is_at_end(page: Page) -> bool:
    left = "(one) => one.scrollHeight - one.clientHeight - one.scrollTop"
    return await page.locator(".scrolls").evaluate(left) < 2


async def test_the_list_of_sessions_renews_itself(pages: Pages, browser: Browser) -> None:
    user, session = fresh(), fresh()
    await pages.start("hello", session, user)
    async with opened(browser, pages, user) as page:
        await page.goto(pages.chat(session, user))
        await expect(page.locator("#sessions [aria-current=page]")).to_have_text(session)
        await pages.start("pay", "another", user)
        await expect(page.locator("#sessions")).to_contain_text("waiting")
        await page.get_by_role("link", name="another").click()
        await expect(page.get_by_role("heading", name="Approve pay?")).to_be_visible()


async def test_it_works_without_javascript(pages: Pages, browser: Browser) -> None:
    session = fresh()
    person = await pages.start("hello", session)
    async with opened(browser, pages, ANN, java_script_enabled=False) as page:
        await page.goto(pages.chat(session))
        await message(page).fill("pay")
        await page.get_by_role("button", name="Send").click()
        await person.open("adk_request_confirmation")
        await page.goto(pages.chat(session))
        await page.get_by_role("button", name="Approve").click()
        await expect(page.get_by_text("Your answer was taken.")).to_be_visible()
        await person.logged('clerk: It came to {"result": "paid 12"}.')
        await page.goto(pages.chat(session))
        await expect(page.locator("#timeline")).to_contain_text("paid 12")


async def test_hostile_content_does_nothing(pages: Pages, browser: Browser) -> None:
    user = fresh()
    person = await pages.start(f"{HOSTILE} [a](javascript:document.title='owned')", HOSTILE, user)
    async with opened(browser, pages, f"{user} operator") as page:
        await page.goto("/chat")
        await page.locator("#sessions a").click()
        await expect(page.locator("#timeline .prose")).to_contain_text("<script>document.title='owned'</script>")
        await person.run(f"ask {HOSTILE}")
        await expect(page.locator("#waiting > li")).to_have_count(1)
        assert await page.title() != "owned"
        assert (
            await page.evaluate("document.querySelectorAll('main script, main img, main [href^=javascript]').length")
            == 0
        )


async def test_who_may_only_answer_has_no_box_and_answers(pages: Pages, browser: Browser) -> None:
    session = fresh()
    await pages.start("pay", session)
    async with opened(browser, pages, "mia approver") as page:
        await page.goto(pages.chat(session))
        await expect(message(page)).to_have_count(0)
        await expect(page.locator(".foot")).to_contain_text("ann’s to send")
        await page.get_by_role("button", name="Approve").click()
        await expect(page.locator("#timeline")).to_contain_text("answered by mia")
        await expect(page.locator("#timeline")).to_contain_text("paid 12")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 1000, 380])
async def test_the_chat_is_accessible(pages: Pages, browser: Browser, scheme: Any, width: int) -> None:
    waiting, failed, working, user = fresh(), fresh(), fresh(), fresh()
    await pages.start(f"trip {waiting}", waiting, user)
    await pages.start("send", failed, user)
    person = await pages.start(
        "## Title\n\n| a | b |\n| - | - |\n| 1 | 2 |\n\n```\ncode\n```\n> *quoted*", working, user
    )
    viewport: Any = {"width": width, "height": 800}
    async with opened(
        browser, pages, f"{user} operator", color_scheme=scheme, viewport=viewport, reduced_motion="reduce"
    ) as page:
        for path in ("/chat", *(pages.chat(session, user) for session in (waiting, failed, working))):
            await page.goto(path)
            assert await accessibility(page) == [], path
            assert await page.evaluate("document.documentElement.scrollWidth") <= width, path
            # No word of it is broken.
            assert await page.locator(".places").evaluate("(one) => one.offsetHeight") < 45, path
        await message(page).fill(f"write {working}")
        await message(page).press("Enter")
        await expect(page.locator("#writing .spoken")).to_have_text("The **first** half, ")
        assert await accessibility(page) == []
        pages.model.gate(working).open()
        await person.logged("clerk: The **first** half, and the second.")
