"""Worker versioning: which build of a worker goes on with a session."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from temporalio.api.workflowservice.v1 import SetWorkerDeploymentCurrentVersionRequest
from temporalio.client import Client
from temporalio.service import RPCError

from perdure.agents import App
from perdure.config import WorkerConfig
from perdure.errors import DefinitionError
from tests.workflows.support import User, agent, calls, eventually, long_running, make_app, serving, text

pytestmark = pytest.mark.server


def app_of(name: str) -> App:
    script = [calls("ask"), text("done")] * 50
    return make_app(name, agent("clerk", script, [long_running("ask")]))


async def make_current(client: Client, deployment: str, build: str) -> None:
    """Route new sessions, and those that are not pinned, to a build; it must have polled first."""
    request = SetWorkerDeploymentCurrentVersionRequest(
        namespace=client.namespace, deployment_name=deployment, build_id=build, identity="test"
    )

    async def accepted() -> bool:
        try:
            await client.workflow_service.set_worker_deployment_current_version(request)
        except RPCError:
            return False
        return True

    await eventually(accepted)


async def builds(user: User) -> list[str]:
    """Return the builds that completed the newest run's workflow tasks, each once, in order."""
    history = await user.workflow.fetch_history()
    tasks = [event.workflow_task_completed_event_attributes for event in history.events if event.event_type == 7]
    return list(dict.fromkeys(task.deployment_version.build_id for task in tasks))


@pytest.mark.parametrize("versioning", ["pinned", "auto-upgrade"])
async def test_a_session_stays_with_its_build_or_moves(client: Client, app_name: str, versioning: str) -> None:
    """A pinned one moves as it continues as new (here since it was cancelled), another with its next step."""
    options: dict[str, Any] = {"deployment": app_name, "versioning": versioning}
    async with serving(client, app_of(app_name), build_id="A", **options) as user:
        await make_current(client, app_name, "A")
        await user.create()
        first = await user.run("one")
        async with serving(client, app_of(app_name), build_id="B", **options):
            await make_current(client, app_name, "B")
            [call_id] = await user.open("ask")
            assert (await user.answered({call_id: {}})).status == "finished"
            if versioning == "auto-upgrade":
                # The server tells its task queues of a new current version one after the other.
                await eventually(lambda: _takes_a_turn_at(user, "B"))
                assert await builds(user) == ["A", "B"]
            else:
                assert await builds(user) == ["A"]
                before = (await user.workflow.describe()).run_id
                await user.workflow.cancel()
                await eventually(lambda: _continued(user, before))
                assert (await user.run("two")).status == "waiting"
                assert await builds(user) == ["B"]
            assert (await user.invocation(first.id)).status == "finished"


async def _takes_a_turn_at(user: User, build: str) -> bool:
    await user.run("one more")
    [call_id] = await user.open("ask")
    await user.answered({call_id: {}})
    return (await builds(user))[-1] == build


async def _continued(user: User, run_id: str) -> bool:
    return (await user.workflow.describe()).run_id != run_id


def test_a_version_needs_a_deployment_and_a_build() -> None:
    with pytest.raises(DefinitionError, match="give both"):
        WorkerConfig(deployment="travel")


@pytest.mark.parametrize("versioning", ["pinned", "auto-upgrade"])
def test_versioning_needs_a_deployment(versioning: Literal["pinned", "auto-upgrade"]) -> None:
    with pytest.raises(DefinitionError, match=f"versioning '{versioning}'; give a deployment and a build id"):
        WorkerConfig(versioning=versioning)
