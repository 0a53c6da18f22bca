"""`perdure explain`: what it prints of sessions that wait, fail or are closed, and that it changes nothing."""

from __future__ import annotations

from typing import Any

import pytest
from temporalio.client import Client

from perdure.agents import FunctionTool
from tests.cli.support import Perdure, perdure
from tests.workflows import support
from tests.workflows.support import Counted, agent, calls, long_running, make_app, serving, text

__all__ = ["perdure"]

pytestmark = pytest.mark.server


async def test_it_tells_what_a_session_awaits_and_what_a_resume_would_do(
    perdure: Perdure, client: Client, temporal_server: str, app_name: str
) -> None:
    """A waiting invocation, a failed one with a kept result, and the same by an invocation's id and as JSON."""
    good, bad = Counted("good", "kept"), Counted("bad", fail=1)
    script = [calls("ask"), calls("good", "bad"), text("done")]
    clerk = agent("clerk", script, [long_running("ask"), FunctionTool(good.fn), bad.once])
    at = ("--address", temporal_server, "--user", "u")
    async with serving(client, make_app(app_name, clerk)) as user:
        await user.create()
        waiting = await user.run("a")
        done = await perdure("explain", app_name, "s", *at)
        assert done.code == 0, done.err
        call = waiting.pending[0].id
        for words in (
            "session s of user u in app " + app_name + " is waiting",
            "awaits ask() of agent clerk",
            "takes a value: any JSON",
            f"perdure respond {app_name} --user u --session s --address {temporal_server} {call}=",
            "a resume would do nothing: it waits, and only an answer moves it on",
            f"ask {call}: awaits an answer",
        ):
            assert words in done.out

        events = len(await user.events())
        failed = await user.run("b")
        assert failed.status == "failed"
        done = await perdure("explain", app_name, failed.id, *at)
        assert done.code == 0, done.err
        assert waiting.id not in done.out
        for words in (
            f"invocation {failed.id} is failed, begun by agent clerk",
            "failed: agent 'clerk' in 'bad': RuntimeError: call 1 of bad fails",
            f'      File "{support.__file__}", line ',
            '        raise RuntimeError(f"call {len(self.keys)} of {name} fails")',
            "a resume would run it on: its agents are entered again where they were",
            ": result kept",
            ": runs (1 attempts so far)",
            "kept, and not run again: good adk-",
            f"perdure resume {app_name} --user u --session s",
        ):
            assert words in done.out
        (told,) = (await perdure("explain", app_name, "--session", "s", "--json", *at)).json_lines
        assert [found["id"] for found in told["invocations"]] == [waiting.id, failed.id]
        assert [(raised["step"], raised["invocation_id"]) for raised in told["raised"]] == [("bad", failed.id)]
        step: dict[str, Any] = told["invocations"][1]["resume"]["step"]
        assert [found["next"] for found in step["calls"]] == ["result kept", "runs"]
        # Looking has changed nothing, and what was told comes true.
        assert (await user.status(failed.id), len(await user.events()) > events) == ("failed", True)
        assert (await user.resumed(failed.id)).status == "finished"
        assert (len(good.keys), len(bad.keys)) == (1, 2)

        await user.workflow.terminate("a test")
        done = await perdure("explain", app_name, "s", *at)
        assert "its workflow is terminated, and the next message, answer or resume brings it back" in done.out


async def test_an_unknown_id_is_refused(perdure: Perdure, client: Client, temporal_server: str, app_name: str) -> None:
    async with serving(client, make_app(app_name, agent("clerk", [text("x")]))) as user:
        await user.create()
        at = ("--address", temporal_server, "--user", "u")
        done = await perdure("explain", app_name, "e-nope", *at)
        assert (done.code, done.out) == (1, "")
        assert "has neither a session nor an invocation 'e-nope'" in done.err
        done = await perdure("explain", app_name, "--session", "s", "e-nope", *at)
        assert (done.code, done.out) == (1, "")
        assert "session 's' has no invocation 'e-nope'" in done.err
        done = await perdure("explain", app_name, "s", *at)
        assert "it has no invocations" in done.out


async def test_an_id_is_needed(perdure: Perdure) -> None:
    done = await perdure("explain", "app")
    assert (done.code, done.out) == (64, "")
    assert "name a session or an invocation" in done.err
