"""Clients of google-genai's that are collected begin no task in a workflow."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from google.genai import Client
from temporalio import workflow

from perdure.temporal.collected_clients import keep_clients_out


@pytest.mark.parametrize("within", [True, False])
async def test_a_client_that_is_collected_begins_a_task_outside_of_workflows_only(
    within: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_clients_out()
    keep_clients_out()
    begun: list[asyncio.Task[Any]] = []
    loop = asyncio.get_running_loop()
    client: Any = Client(api_key="none")
    monkeypatch.setattr(workflow, "in_workflow", lambda: within)
    begin = loop.create_task

    def create_task(coro: Any, **options: Any) -> asyncio.Task[Any]:
        begun.append(begin(coro, **options))
        return begun[-1]

    monkeypatch.setattr(loop, "create_task", create_task)
    client._api_client.__del__()
    await asyncio.gather(*begun)
    assert len(begun) == (0 if within else 1)
