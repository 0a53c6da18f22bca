"""The chat with agents of google.adk, in a real browser: words come as they are written, and a call is answered."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import pytest
from playwright.async_api import Browser, expect
from pydantic import PrivateAttr
from temporalio.client import Client

from tests.api.pages.browsing import opened
from tests.api.pages.support import Pages, served_pages
from tests.workflows.support import Gate

pytest.importorskip("google.adk")

from google.adk.agents import LlmAgent
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.tools.long_running_tool import LongRunningFunctionTool
from google.genai import types

from tests.adk.support import make_app

pytestmark = [pytest.mark.server, pytest.mark.process]


def ask_manager(trip: str) -> None:
    """Ask the manager."""


class Writer(BaseLlm):
    """Asks the manager; then writes one half, waits at a gate, and writes the other."""

    _gate: Gate = PrivateAttr(default_factory=Gate)

    @property
    def gate(self) -> Gate:
        return self._gate

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        last = (llm_request.contents[-1].parts or [])[-1]
        if last.function_response is None:
            call = types.FunctionCall(name="ask_manager", args={"trip": "Oslo"})
            yield answer(types.Part(function_call=call))
            return
        if stream:
            yield answer(types.Part(text="The first half, "), partial=True)
            await self._gate.pass_through("half")
        yield answer(types.Part(text="The first half, and the second."))


def answer(part: types.Part, **fields: Any) -> LlmResponse:
    return LlmResponse(content=types.Content(role="model", parts=[part]), **fields)


@pytest.fixture
async def writing(client: Client, app_name: str) -> AsyncGenerator[tuple[Pages, Writer]]:
    """The pages of a google.adk app, and its model."""
    model = Writer(model="writer")
    clerk = LlmAgent(name="clerk", model=model, tools=[LongRunningFunctionTool(ask_manager)])
    async with served_pages(client, make_app(app_name, clerk, resumable=True)) as pages:
        yield pages, model


async def test_a_call_is_answered_in_place_and_words_come_as_they_are_written(
    writing: tuple[Pages, Writer], browser: Browser
) -> None:
    pages, model = writing
    async with opened(browser, pages, "ann") as page:
        await page.goto("/chat")
        await page.get_by_label("App").select_option(pages.app)
        await page.get_by_label("Name").fill("trip")
        await page.get_by_role("button", name="Begin").click()
        await expect(page.locator("#message")).to_be_focused()
        await page.locator("#message").fill("To Oslo")
        await page.locator("#message").press("Enter")
        card = page.locator("#waiting > li")
        await expect(card).to_contain_text("ask_manager awaits an answer")
        await card.get_by_role("textbox", name="Answer").fill('{"approved": true}')
        await card.get_by_role("button", name="Send the answer").click()
        await expect(page.locator("#writing .spoken")).to_have_text("The first half, ")
        await expect(page.locator("#timeline")).not_to_contain_text("The first half")
        model.gate.open()
        await expect(page.locator("#timeline")).to_contain_text("The first half, and the second.")
        await expect(page.locator("#writing > li")).to_have_count(0)
        await expect(page.locator("#status")).to_have_text("idle")
