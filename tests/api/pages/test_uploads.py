"""Files that a message of the chat brings: in the message, as artifacts, or refused; and how they are shown."""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from google.genai import types
from playwright.async_api import Browser, expect
from temporalio.client import Client

from perdure.artifacts import FileArtifactService
from tests.api.pages.browsing import accessibility, opened
from tests.api.pages.support import PNG, SAME_ORIGIN, Clerk, Pages, Sent, clerk_app, served_pages
from tests.workflows.support import User

pytestmark = pytest.mark.server

_MOST = 1_250_000


def fresh() -> str:
    return f"s-{uuid.uuid4().hex[:8]}"


@pytest.fixture(scope="module")
async def keeping(client: Client, tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Pages]:
    """The pages of an app whose artifacts are kept."""
    model, kept = Clerk(), FileArtifactService(tmp_path_factory.mktemp("artifacts"))
    app = clerk_app(f"app_{uuid.uuid4().hex[:12]}", model)
    async with served_pages(client, app, model, artifacts=kept) as pages:
        yield pages


async def begun(pages: Pages) -> User:
    person = User(pages.temporal, pages.app, "ann", fresh())
    await person.create()
    return person


def name_of(person: User) -> str:
    return person.key.rpartition("/")[2]


async def post(
    pages: Pages, person: User, files: list[tuple[str, bytes, str]], message: str = "", form: Sent | None = None
) -> httpx2.Response:
    """Send a message as a browser sends it."""
    form = form or Sent.found(await pages.get(pages.chat(name_of(person))), "messages")
    given: list[Any] = [("file", file) for file in files]
    fields = {**form.hidden, "message": message}
    return await pages.http.post(form.action, data=fields, files=given, headers=SAME_ORIGIN)


async def said(person: User) -> list[types.Part]:
    """Return the parts of the first message."""
    return list((await person.events())[0].parts)


@pytest.mark.parametrize(
    ("file", "name", "kind"),
    [
        (("a map.png", PNG, "image/png"), "a map.png", "image/png"),
        (("../../notes.md", b"# x", "application/octet-stream"), "notes.md", "text/markdown"),
        (("C:\\tmp\\b.csv", b"1,2", ""), "b.csv", "text/csv"),
        (("odd", b"\x00", "text/html; charset=x"), "odd", "text/html"),
        (("..", b"x", "no kind"), "file", "application/octet-stream"),
    ],
)
async def test_a_small_file_is_a_part_of_the_message(
    pages: Pages, file: tuple[str, bytes, str], name: str, kind: str
) -> None:
    person = await begun(pages)
    assert (await post(pages, person, [file], "look")).status_code == 303
    await person.logged(f"clerk: You said: look {name}.")
    text, part = await said(person)
    assert text.text == "look"
    assert part.inline_data == types.Blob(data=file[1], mime_type=kind, display_name=name)


async def test_a_message_may_be_files_alone_and_the_same_form_is_the_same_message(pages: Pages) -> None:
    person = await begun(pages)
    form = Sent.found(await pages.get(pages.chat(name_of(person))), "messages")
    files = [("a.png", PNG, "image/png"), ("b.txt", b"b", "text/plain")]
    for _ in range(2):
        assert (await post(pages, person, files, form=form)).status_code == 303
    assert (await post(pages, person, files[:1], form=form)).status_code == 409
    await person.logged("clerk: You said:  a.png. b.txt.")
    assert len(await said(person)) == 2
    assert sum(event.is_users for event in await person.events()) == 1


async def test_files_are_shown_and_given_back_as_they_came(pages: Pages) -> None:
    person = await begun(pages)
    await post(pages, person, [("a map.png", PNG, "image/png"), ("page.html", b"<b>x</b>", "text/html")], "look")
    await person.logged("clerk: You said: look a map.png. page.html.")
    for path in (pages.chat(name_of(person)), pages.path(name_of(person))):
        page = await pages.get(path)
        files = f"{pages.path(name_of(person))}/files/0"
        assert f'<a href="{files}/1">a map.png</a>, image/png, {len(PNG)} bytes' in page
        assert f'<img class="picture" src="{files}/1"' in page
        assert f'<a href="{files}/2">page.html</a>, text/html, 8 bytes' in page
        assert page.count("<img") == 1
    picture = await pages.http.get(f"{files}/1")
    assert (picture.content, picture.headers["content-type"]) == (PNG, "image/png")
    kept = await pages.http.get(f"{files}/2")
    assert kept.headers["content-disposition"] == "attachment; filename*=UTF-8''page.html"
    assert kept.headers["content-type"] == "application/octet-stream"


async def test_what_is_too_large_is_refused_and_nothing_is_sent(pages: Pages) -> None:
    person = await begun(pages)
    fits, more = ("a.bin", b"a" * (_MOST - 5), ""), ("b.bin", b"b" * 6, "")
    refused = await post(pages, person, [fits, more], "look")
    assert refused.status_code == 413
    assert "the files have 1.25 MB, and those of a message may have 1.25 MB" in refused.text
    assert "--artifacts" in refused.text
    assert await person.log() == []
    assert (await post(pages, person, [fits, ("b.bin", b"b" * 5, "")], "x" * 50_000)).status_code == 303
    assert (await post(pages, person, [(f"{at}", b"", "") for at in range(51)])).status_code == 400
    assert "1.25 MB in all." in await pages.get(pages.chat(name_of(person)))


async def test_a_large_file_is_kept_as_an_artifact_once(keeping: Pages) -> None:
    """As google.adk's plugin for files does it."""
    person = await begun(keeping)
    form = Sent.found(await keeping.get(keeping.chat(name_of(person))), "messages")
    large, small = b"x" * (_MOST + 1), ("a.png", PNG, "image/png")
    for _ in range(2):
        sent = await post(keeping, person, [small, ("big.txt", large, "text/plain")], "look", form)
        assert sent.status_code == 303
    await person.logged('clerk: You said: look [Uploaded Artifact: "big.txt"] a.png.')
    text, picture, named = await said(person)
    assert (text.text, picture.inline_data and picture.inline_data.data) == ("look", PNG)
    assert named.text == '[Uploaded Artifact: "big.txt"]'
    artifact = f"{keeping.path(name_of(person))}/artifacts/big.txt"
    assert (await keeping.http.get(f"{artifact}/0")).content == large
    assert (await keeping.http.get(f"{artifact}/1")).status_code == 404
    assert "are kept as artifacts" in await keeping.get(keeping.chat(name_of(person)))
    assert (await post(keeping, person, [("c", b"x" * 9_990_000, "")])).status_code == 413


async def test_who_may_not_write_saves_nothing(keeping: Pages, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.api.pages.uploads.MOST_IN_MESSAGE", 10)
    person = await begun(keeping)
    form = Sent.found(await keeping.get(keeping.chat(name_of(person))), "messages")
    large: list[Any] = [("file", ("big.txt", b"x" * 11, "text/plain"))]
    for who, status in (("mia approver", 403), ("cleo", 404)):
        headers = {**SAME_ORIGIN, "x-as": who}
        sent = await keeping.http.post(form.action, data=form.hidden, files=large, headers=headers)
        assert sent.status_code == status
    assert (await keeping.http.post(form.action, data=form.hidden, files=large)).status_code == 403
    listed = await keeping.http.get(f"/apps/{keeping.app}/users/ann/sessions/{name_of(person)}/artifacts")
    assert listed.json() == []


@pytest.mark.process
async def test_files_are_attached_in_a_browser(pages: Pages, browser: Browser, tmp_path: Path) -> None:
    person = await begun(pages)
    for name, content in (("a map.png", PNG), ("notes.txt", b"n" * 2000), ("big.bin", b"b" * (_MOST + 1))):
        (tmp_path / name).write_bytes(content)
    async with opened(browser, pages, "ann", may_fail="Failed to load resource") as page:
        await page.goto(pages.chat(name_of(person)))
        files, box, chosen = page.get_by_label("Attach files"), page.locator("#message"), page.locator("#chosen")
        await files.set_input_files([tmp_path / "a map.png", tmp_path / "notes.txt"])
        await expect(chosen.get_by_role("listitem")).to_have_text(["a map.png 68 bytes ×", "notes.txt 2000 bytes ×"])
        await expect(chosen).to_contain_text("2068 bytes of 1.25 MB")
        assert await accessibility(page) == []
        # What is too large is told at once, and the others stay.
        await files.set_input_files(tmp_path / "big.bin")
        await expect(page.get_by_role("alert")).to_contain_text("Too large: big.bin (1.25 MB).")
        await expect(chosen.get_by_role("listitem")).to_have_count(2)
        await chosen.get_by_role("button", name="Remove notes.txt").click()
        await expect(box).to_be_focused()
        await paste(page, "pasted.txt", "p")
        await drop(page, "dropped.txt", "d")
        await expect(chosen.locator(".name")).to_have_text(["a map.png", "pasted.txt", "dropped.txt"])
        # A message that could not be sent keeps its files.
        await page.route("**/messages", lambda route: route.abort(), times=1)
        await box.fill("look")
        await box.press("Enter")
        await expect(page.locator("#unsent")).to_contain_text("was not sent")
        await expect(chosen.get_by_role("listitem")).to_have_count(3)
        await box.press("Enter")
        await expect(chosen).to_be_hidden()
        picture = page.locator("#timeline .picture")
        await expect(picture).to_be_visible()
        assert await picture.evaluate("(one) => one.decode().then(() => one.naturalWidth)") == 1
        await expect(page.locator("#timeline")).to_contain_text("You said: look a map.png. pasted.txt. dropped.txt.")
        # By keyboard, and without a text.
        async with page.expect_file_chooser() as chooser:
            await files.focus()
            await page.keyboard.press("Space")
        await (await chooser.value).set_files(tmp_path / "notes.txt")
        await expect(box).to_be_focused()
        await page.keyboard.press("Enter")
        await expect(page.locator("#timeline")).to_contain_text("notes.txt, text/plain, 2,000 bytes")
        # With neither, nothing is sent.
        await page.keyboard.press("Enter")
    first, second = [event for event in await person.events() if event.is_users]
    names = [part.inline_data.display_name for part in (*first.parts, *second.parts) if part.inline_data]
    assert names == ["a map.png", "pasted.txt", "dropped.txt", "notes.txt"]


async def paste(page: Any, name: str, text: str) -> None:
    await _given(page, "#message", f"new ClipboardEvent('paste', {{clipboardData: {_transfer(name, text)}}})")


async def drop(page: Any, name: str, text: str) -> None:
    await _given(page, "#main", f"new DragEvent('drop', {{dataTransfer: {_transfer(name, text)}}})")


def _transfer(name: str, text: str) -> str:
    return f"(() => {{ const t = new DataTransfer(); t.items.add(new File(['{text}'], '{name}')); return t; }})()"


async def _given(page: Any, where: str, event: str) -> None:
    await page.locator(where).evaluate(f"(one) => one.dispatchEvent({event})")


@pytest.mark.process
async def test_files_are_sent_without_javascript(pages: Pages, browser: Browser, tmp_path: Path) -> None:
    person = await begun(pages)
    (tmp_path / "a.png").write_bytes(PNG)
    async with opened(browser, pages, "ann", java_script_enabled=False) as page:
        await page.goto(pages.chat(name_of(person)))
        await page.get_by_label("Attach files").set_input_files(tmp_path / "a.png")
        await page.get_by_role("button", name="Send").click()
        await person.logged("clerk: You said:  a.png.")
        await page.goto(pages.chat(name_of(person)))
        await expect(page.locator("#timeline .picture")).to_be_visible()
