"""google.adk's own web page over Perdure's API, in a browser."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from fastapi import FastAPI
from playwright.async_api import Browser, Page, expect

from perdure.adk import get_fast_api_app

pytestmark = pytest.mark.server

AGENT = """
from google.adk.agents import LlmAgent
from google.adk.apps.app import App, ResumabilityConfig
from google.adk.tools import FunctionTool, LongRunningFunctionTool
from tests.adk.support import Script, call, say

def ask_manager(amount: int) -> None:
    '''Ask the manager.'''

def pay(amount: int) -> str:
    '''Pay.'''
    return "paid"

trip = [call("ask_manager", amount=900), say("The trip is booked.")]
script = Script(*trip, call("pay", amount=900), say("It is paid."))
tools = [LongRunningFunctionTool(func=ask_manager), FunctionTool(pay, require_confirmation=True)]
clerk = LlmAgent(name="clerk", model=script, tools=tools, output_key="said")
app = App(name="{name}", root_agent=clerk, resumability_config=ResumabilityConfig(is_resumable=True))
"""


@asynccontextmanager
async def served(app: FastAPI) -> AsyncGenerator[str]:
    """Serve an application; yields its address."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield f"http://localhost:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        await serving


@pytest.fixture
async def at(
    tmp_path: Path, app_name: str, temporal_server: str, monkeypatch: pytest.MonkeyPatch
) -> AsyncGenerator[str]:
    monkeypatch.setenv("TEMPORAL_ADDRESS", temporal_server)
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "agents" / app_name
    folder.mkdir(parents=True)
    (folder / "agent.py").write_text(AGENT.replace("{name}", app_name))
    (folder / "__init__.py").write_text("from . import agent\n")
    async with served(get_fast_api_app(agents_dir=tmp_path / "agents", web=True)) as address:
        yield address


async def _message(page: Page, text: str) -> None:
    box = page.locator("textarea").last
    await box.fill(text)
    await box.press("Enter")


async def test_it_chats_and_answers_after_a_reload(at: str, app_name: str, browser: Browser) -> None:
    context = await browser.new_context()
    page = await context.new_page()
    failed: list[str] = []
    page.on("response", lambda got: failed.append(got.url) if got.status >= 500 and got.url.startswith(at) else None)
    asked: list[str] = []
    page.on("response", lambda got: asked.append(got.url) if got.status == 404 and got.url.startswith(at) else None)
    await page.goto(f"{at}/dev-ui/?app={app_name}", wait_until="domcontentloaded")
    await _message(page, "900 for a trip")
    await expect(page.get_by_role("button", name="ask_manager(900)").first).to_be_visible(timeout=20_000)
    await page.reload(wait_until="domcontentloaded")
    answer = page.get_by_placeholder("Enter your response...")
    await expect(answer).to_be_visible(timeout=20_000)
    await answer.fill("approved")
    await answer.press("Enter")
    await expect(page.get_by_text("The trip is booked.").first).to_be_visible(timeout=20_000)
    await _message(page, "Pay for it")
    decision = page.get_by_role("button", name="Submit")
    await expect(decision).to_be_visible(timeout=20_000)
    await page.reload(wait_until="domcontentloaded")
    await expect(decision).to_be_visible(timeout=20_000)
    await page.get_by_role("checkbox").first.check()
    await decision.click()
    await expect(page.get_by_text("It is paid.").first).to_be_visible(timeout=20_000)
    await context.close()
    assert failed == []
    # A stylesheet that is not in google.adk's package either.
    assert [url for url in asked if not url.endswith(".css")] == []


async def test_what_only_the_page_asks_for_is_there(at: str, app_name: str, browser: Browser) -> None:
    context = await browser.new_context()
    got: dict[str, Any] = {}
    for path in (
        f"/dev/apps/{app_name}/graph",
        f"/dev/apps/{app_name}/eval_sets",
        f"/apps/{app_name}/eval-results",
        f"/dev/apps/{app_name}/debug/trace/session/s",
        "/config/telemetry",
        "/dev-ui/assets/config/runtime-config.json",
    ):
        answer = await context.request.get(at + path)
        assert answer.status == 200, path
        got[path] = await answer.json()
    assert "clerk" in got[f"/dev/apps/{app_name}/graph"]["dotSrc"]
    assert "ask_manager" in got[f"/dev/apps/{app_name}/graph"]["dotSrc"]
    assert got["/config/telemetry"] == {"telemetry": False}
    assert (await context.request.get(f"{at}/dev/apps/nobody/graph")).status == 404
    led = await context.request.get(f"{at}/dev-ui")
    assert "Agent Development Kit" in await led.text()
    await context.close()
