"""The timeline of a session: decisions, state, files, artifacts, failures, Markdown and times as people read them."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest
from google.genai import types
from playwright.async_api import Browser, expect
from temporalio.client import Client

from perdure.agents import App
from perdure.agents.tools import ToolContext
from perdure.api.pages.formats import timeline
from perdure.artifacts import FileArtifactService
from perdure.journal.events import REQUEST_CONFIRMATION, Event
from tests.api.pages.browsing import accessibility, opened
from tests.api.pages.support import PNG, Pages
from tests.api.support import Obedient, served
from tests.workflows.support import agent, calls, make_app, serving, text

pytestmark = pytest.mark.server


def fresh() -> str:
    return f"s-{uuid.uuid4().hex[:8]}"


@pytest.mark.parametrize(
    ("response", "decision"),
    [({"confirmed": True}, "approves"), ({"confirmed": False}, "rejects"), ({"odd": 1}, ""), (None, "")],
)
def test_an_answer_to_an_approval_is_a_decision(response: dict[str, Any] | None, decision: str) -> None:
    answer = types.FunctionResponse(name=REQUEST_CONFIRMATION, id="q", response=response)
    event = Event(author="user", content=types.Content(role="user", parts=[types.Part(function_response=answer)]))
    [entry] = timeline([event])
    assert entry.pieces[0].decision == decision


async def test_a_confirmation_reads_as_a_question_and_its_answer(pages: Pages) -> None:
    session = fresh()
    person = await pages.start("pay", session)
    page = await pages.get(pages.path(session))
    assert "asks for approval of <code>pay</code>" in page
    assert "requires confirmation" not in page
    await pages.send(await pages.form(session), decision="approve")
    await person.logged('clerk: It came to {"result": "paid 12"}.')
    page = await pages.get(pages.path(session))
    assert "<strong>approves</strong> <code>pay</code>" in page
    assert "requires confirmation" not in page


async def test_a_failure_stands_behind_the_last_event_of_its_invocation(pages: Pages) -> None:
    session = fresh()
    await pages.start("send", session)
    log = (await pages.get(pages.path(session))).partition('id="timeline"')[2]
    assert log.index("calls <code>send_once</code>") < log.index("failed in <code>send_once</code>")


@pytest.mark.process
async def test_markdown_is_rendered_and_times_are_the_readers(pages: Pages, browser: Browser) -> None:
    session = fresh()
    person = await pages.start("**mine** and `theirs`", session)
    await person.logged("clerk: You said: **mine** and `theirs`")
    async with opened(browser, pages, timezone_id="Asia/Tokyo", locale="en-GB") as page:
        await page.goto(pages.path(session))
        # What people write is left as it is.
        await expect(page.locator("#timeline .from-agent strong")).to_have_text("mine")
        await expect(page.locator("#timeline .from-user .said")).to_have_text("**mine** and `theirs`")
        time = page.locator("#timeline time").first
        title = await time.get_attribute("title") or ""
        hour = (int(title[11:13]) + 9) % 24
        assert title.endswith(" UTC")
        await expect(time).to_contain_text(f"{hour:02}:{title[14:16]}")
        assert await accessibility(page) == []


async def draw(tool_context: ToolContext) -> str:
    """Draw a picture."""
    for name in ("a map.png", "notes.html"):
        kind = "image/png" if name.endswith("png") else "text/html"
        await tool_context.save_artifact(name, types.Part(inline_data=types.Blob(data=PNG, mime_type=kind)))
    tool_context.state["drawn"] = {"by": "<b>hand</b>"}
    return "drawn"


async def test_state_files_and_artifacts_are_shown(client: Client, app_name: str, tmp_path: Path) -> None:
    app: App = make_app(app_name, agent("painter", [calls("draw"), text("Done.")], [draw]))
    kept = FileArtifactService(tmp_path)
    async with serving(client, app, artifacts=kept), served(client, app, Obedient(), artifacts=kept) as api:
        session = await api.create()
        await api.frames(session, "draw")
        path = f"/inbox{api.path(session)}"
        page = (await api.http.get(path)).text
        assert "sets <code>drawn</code>" in page
        assert "&lt;b&gt;hand" in page
        assert f'<img class="picture" src="{path}/artifacts/a%20map.png/0"' in page
        assert f'<a href="{path}/artifacts/notes.html/0">' in page
        picture = await api.http.get(f"{path}/artifacts/a%20map.png/0")
        assert (picture.content, picture.headers["content-type"]) == (PNG, "image/png")
        # What could run is kept, and never shown.
        notes = await api.http.get(f"{path}/artifacts/notes.html/0")
        assert notes.headers["content-type"] == "application/octet-stream"
        assert notes.headers["content-disposition"].startswith("attachment")
        for missing in ("artifacts/other/0", "files/0/7", "files/999/0"):
            assert (await api.http.get(f"{path}/{missing}")).status_code == 404
