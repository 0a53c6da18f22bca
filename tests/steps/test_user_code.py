"""Where the code of steps runs: threads for plain functions, one loop for async ones."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator
from contextvars import ContextVar

import pytest

from perdure.steps.user_code import CodeRunner


async def test_functions_that_hold_all_threads_hold_up_none_of_another_kind() -> None:
    tools = CodeRunner("tools", 1)
    models = tools.with_threads("models", 1)
    over = threading.Event()
    blocked = asyncio.create_task(tools.run(over.wait))
    try:
        async with asyncio.timeout(10):
            assert await models.run(lambda: "goes on") == "goes on"
        assert not blocked.done()
    finally:
        over.set()
    assert await blocked
    tools.close()


async def test_async_functions_share_one_loop() -> None:
    tools = CodeRunner("tools", 1)
    models = tools.with_threads("models", 1)

    async def loop() -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    assert await tools.run(loop) is await models.run(loop)
    assert await tools.run(loop) is not asyncio.get_running_loop()
    tools.close()


@pytest.mark.parametrize("end", [SystemExit, KeyboardInterrupt])
@pytest.mark.parametrize("how", ["gather", "task", "group", "alone"])
async def test_a_task_that_asks_the_process_to_exit_ends_its_call_and_no_other(
    how: str, end: type[BaseException]
) -> None:
    """Python ends the loop on which such a task ran: all that others had there would wait for ever."""
    tools = CodeRunner("tools", 1)
    begun, over = threading.Event(), asyncio.Event()

    async def leave() -> None:
        raise end

    async def calls() -> None:
        match how:
            case "gather":
                await asyncio.gather(leave())
            case "task":
                await asyncio.create_task(leave())
            case "group":
                async with asyncio.TaskGroup() as group:
                    group.create_task(leave())
            case _:
                await leave()

    async def waits() -> str:
        begun.set()
        await over.wait()
        return "goes on"

    async def let_go() -> None:
        over.set()

    async with asyncio.timeout(20):
        other = asyncio.create_task(tools.run(waits))
        await asyncio.to_thread(begun.wait)
        with pytest.raises(RuntimeError, match="the code asked the process to exit"):
            await tools.run(calls)
        await tools.run(let_go)
        assert await other == "goes on"
    tools.close()


async def test_what_is_suspended_when_its_loop_ends_is_ended_there_and_not_by_the_collector() -> None:
    """Python 3.11 crashes where the collector ends code that sets a context variable while another one is set."""
    tools = CodeRunner("tools", 1)
    ended: list[tuple[str, str]] = []
    var: ContextVar[str] = ContextVar("var", default="the collector's")

    async def events() -> AsyncGenerator[int]:
        try:
            yield 1
        finally:
            ended.append((threading.current_thread().name, var.get()))

    async def suspend() -> None:
        var.set("its own")
        kept = events()
        await anext(kept)
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            ended.append((threading.current_thread().name, var.get()))

    async def begin() -> None:
        asyncio.get_running_loop().suspended = asyncio.create_task(suspend())  # pyright: ignore[reportAttributeAccessIssue]
        await asyncio.sleep(0)

    await tools.run_async(begin())
    tools.close()
    assert [name for name, _ in ended] == ["perdure-tools-loop"] * 2
    assert ended[0][1] == "its own"
