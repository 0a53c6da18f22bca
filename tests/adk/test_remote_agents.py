"""Remote agents of google.adk's, asked by A2A: each turn of one is a step."""

from __future__ import annotations

import socket
import threading
import time
import warnings
from collections.abc import Generator
from typing import Any

import httpx
import pytest
from temporalio.client import Client

from perdure.adk.compile import look_at
from perdure.adk.internals import MAJOR
from perdure.agents import LlmAgent
from perdure.client import Runner
from perdure.models.scripted import ScriptedModel
from perdure.testing.script import call as script_call
from perdure.testing.script import say as script_say
from tests.adk.support import agent, call, make_app, say
from tests.workflows.support import long_running, serving
from tests.workflows.support import make_app as make_perdure_app

pytest.importorskip("a2a", reason="google-adk[a2a] is not installed")
pytestmark = pytest.mark.filterwarnings("ignore")

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import uvicorn
    from google.adk.a2a.utils.agent_to_a2a import to_a2a
    from google.adk.agents.remote_a2a_agent import RemoteA2aAgent

    from tests.api.support import Obedient, served


@pytest.fixture
def far() -> Generator[str]:
    """Serve an agent by A2A; yields its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    app = to_a2a(agent("far", *[say("It is far.")] * 9, description="far"), host="127.0.0.1", port=port)
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=port, log_level="warning"))
    thread = threading.Thread(target=server.run)
    thread.start()
    deadline = time.monotonic() + 20
    while not server.started:
        assert time.monotonic() < deadline, "the agent is not served"
        time.sleep(0.05)
    yield f"http://127.0.0.1:{port}"
    server.should_exit = True
    thread.join()


def remote(address: str, name: str = "far", **fields: Any) -> RemoteA2aAgent:
    """Return an agent that keeps no connection: google.adk closes none, and another test would be told of it."""
    keeps_none = httpx.AsyncClient(limits=httpx.Limits(max_keepalive_connections=0), timeout=60)
    card = f"{address}/.well-known/agent-card.json"
    return RemoteA2aAgent(name=name, agent_card=card, httpx_client=keeps_none, **fields)


@pytest.mark.server
async def test_a_remote_agent_is_asked_in_a_step(client: Client, app_name: str, far: str) -> None:
    desk = agent("desk", call("transfer_to_agent", agent_name="far"), say("Back."), sub_agents=[remote(far)])
    async with serving(client, make_app(app_name, desk)) as user:
        await user.create()
        view = await user.run("how far?")
        assert view.status == "finished", view.failures
        assert (await user.log())[-1] == "far: It is far."
        assert (await user.run("and now?")).status == "finished"
        assert (await user.log())[-1] == "desk: Back."


@pytest.mark.server
async def test_one_that_does_not_answer_says_so_in_the_log(client: Client, app_name: str) -> None:
    desk = agent("desk", call("transfer_to_agent", agent_name="far"), sub_agents=[remote("http://127.0.0.1:9")])
    async with serving(client, make_app(app_name, desk)) as user:
        await user.create()
        await user.run("how far?")
        told = (await user.events())[-1]
        assert (told.author, told.content) == ("far", None)
        assert "agent card" in (told.error_message or "").lower()


def test_check_says_what_is_repeated() -> None:
    seen = look_at(make_app("shop", remote("http://127.0.0.1:9")))
    assert [(part.kind, part.verdict, part.reason) for part in seen.parts] == [
        ("RemoteA2aAgent", "coarser", "its turn is one step: the remote agent is asked again if that is cut off")
    ]


def test_a_mode_of_one_is_refused_by_name() -> None:
    desk = agent("desk", sub_agents=[remote("http://127.0.0.1:9", mode="task")])
    refused = look_at(make_app("shop", desk)).refused
    assert refused is not None
    assert "mode='task' of a remote agent is not supported yet" in (refused.reason or "")


NODES = pytest.mark.skipif(MAJOR < 2, reason="google.adk 1 has no graphs")


def graph(*leaves: RemoteA2aAgent) -> Any:
    """Return a graph of remote agents, at once if there are several, and of a function behind them."""
    from google.adk import Workflow
    from google.adk.workflow import JoinNode

    def louder(node_input: Any) -> str:
        return str(node_input).upper()

    join = [JoinNode(name="join")] if len(leaves) > 1 else []
    return Workflow(name="survey", edges=[("START", leaves, *join, louder)])


@NODES
@pytest.mark.server
@pytest.mark.usefixtures("suspended")
@pytest.mark.parametrize("count", [1, 2])
async def test_nodes_of_a_graph_give_it_what_they_are_answered(
    client: Client, app_name: str, far: str, count: int
) -> None:
    from tests.adk.test_graphs import by_adk, shown

    def leaves() -> list[RemoteA2aAgent]:
        return [remote(far, name=name) for name in ("near", "far")[:count]]

    truth = await by_adk(graph(*leaves()), "how far?")
    async with serving(client, make_app(app_name, graph(*leaves()))) as user:
        await user.create()
        view = await user.run("how far?")
        assert view.status == "finished", view.failures
        events = [event.model_dump(mode="json", by_alias=True, exclude_none=True) for event in await user.events()]
    assert shown(events[1:]) == truth
    assert any("IT IS FAR." in str(event.get("output")) for event in truth)


def test_a_task_of_one_as_a_node_is_refused_as_in_google_adk() -> None:
    """google.adk refuses it as the graph is built."""
    if MAJOR >= 2:
        with pytest.raises(Exception, match="task mode"):
            graph(remote("http://127.0.0.1:9", mode="task"))


@NODES
@pytest.mark.server
@pytest.mark.process
async def test_one_as_a_node_waits_and_is_answered_over_a_restart(client: Client, app_name: str) -> None:
    """In an app that is not resumable, too, as graphs do."""
    script = ScriptedModel([script_call("approve", sum=12), script_say("Approved.")])
    clerk = LlmAgent(name="clerk", model=script, tools=[long_running("approve")])
    far_app = make_perdure_app(f"far_{app_name}", clerk)
    async with served(client, far_app, Obedient()) as api:
        app = make_app(app_name, graph(remote(f"{api.url}/a2a/{api.app}")))
        async with serving(client, far_app), serving(client, app) as user:
            await user.create()
            view = await user.run("how far?")
            [pending] = view.pending
            assert (view.status, pending.name, pending.args) == ("waiting", "approve", {"sum": 12})
        async with serving(client, far_app), serving(client, app):
            view = await user.answered({pending.id: {"ok": True}})
            assert view.status == "finished", view.failures
            assert (await user.events())[-1].output == "APPROVED."


@pytest.mark.server
@pytest.mark.process
async def test_one_of_perdures_own_waits_and_is_answered_over_a_restart(client: Client, app_name: str) -> None:
    """Its task is an invocation in a session of the far app; the call that waits there waits here, too."""
    script = ScriptedModel([script_call("approve", sum=12), script_say("Approved.")])
    clerk = LlmAgent(name="clerk", model=script, tools=[long_running("approve")])
    far_app = make_perdure_app(f"far_{app_name}", clerk)
    async with served(client, far_app, Obedient()) as api:
        leaf = remote(f"{api.url}/a2a/{api.app}")
        app = make_app(
            app_name, agent("desk", call("transfer_to_agent", agent_name="far"), sub_agents=[leaf]), resumable=True
        )
        async with serving(client, far_app), serving(client, app) as user:
            await user.create()
            view = await user.run("how far?")
            [pending] = view.pending
            assert (view.status, pending.name, pending.args) == ("waiting", "approve", {"sum": 12})
        async with serving(client, far_app), serving(client, app):
            view = await user.answered({pending.id: {"ok": True}})
            assert view.status == "finished", view.failures
            assert (await user.log())[-1] == "far: Approved."
            [(_, there)] = [
                (one.id, one.status)
                for listed in await Runner(api.app, client).list_sessions()
                for one in (await Runner(api.app, client).get_session(user_id="user", session_id=listed.id)).invocations
            ]
            assert there == "finished"
