"""Where the code of steps runs: threads for plain functions, one loop for async ones."""

from __future__ import annotations

import asyncio
import threading

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
