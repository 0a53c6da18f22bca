"""Checks a Temporal server: that it answers, its namespace, search attributes and limits, and who serves an app."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from datetime import timedelta

from temporalio.api.enums.v1 import IndexedValueType, TaskQueueType
from temporalio.api.operatorservice.v1 import ListSearchAttributesRequest
from temporalio.api.taskqueue.v1 import PollerInfo, TaskQueue
from temporalio.api.workflowservice.v1 import (
    DescribeNamespaceRequest,
    DescribeNamespaceResponse,
    DescribeTaskQueueRequest,
    GetSystemInfoRequest,
)
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from perdure.config import ConnectionConfig, connect
from perdure.doctor.checks import Check
from perdure.errors import ConnectionFailed
from perdure.journal.entries import MAX_PAYLOAD_BYTES
from perdure.messages.build_ids import BuildId
from perdure.messages.search_attributes import KEYS
from perdure.plan.nodes import MAX_STEPS, Plan
from perdure.rules.large_results import MAX_RESULT_BYTES

_POLL_SECONDS = 90
"""A worker asks for work at least this often; the server remembers one that is gone for some minutes."""

_SHORT_RETENTION = timedelta(days=1)


async def check_server(config: ConnectionConfig, app: str | None, plan: Plan | None) -> AsyncIterator[Check]:
    """Yield the checks of the server, the namespace, and the workers of an app.

    Args:
        config: Which server.
        app: The app whose workers are looked for. Default: none.
        plan: The plan of the app's code at hand, to be compared with its workers'.
    """
    later = ["namespace", "search attributes", "payload limits", *(["worker", "plan"] if app is not None else [])]
    try:
        resolved = config.resolve()
        client = await connect(resolved)
        info = await client.workflow_service.get_system_info(GetSystemInfoRequest())
    except (ConnectionFailed, RPCError) as error:
        words, _, remedy = str(error).partition("; ")
        yield Check(name="server", verdict="failure", words=words, remedy=remedy or None)
        for name in later:
            yield _skipped(name)
        return
    yield Check(name="server", verdict="ok", words=f"Temporal {info.server_version} at {resolved.address}")
    try:
        request = DescribeNamespaceRequest(namespace=client.namespace)
        described = await client.workflow_service.describe_namespace(request)
    except RPCError as error:
        yield _namespace_refused(client.namespace, error)
        if error.status == RPCStatusCode.NOT_FOUND:
            for name in later[1:]:
                yield _skipped(name)
            return
    else:
        yield _namespace(described)
        yield _limits(described)
    yield await _search_attributes(client)
    if app is not None:
        for check in await _workers(client, app, plan):
            yield check


def _skipped(name: str) -> Check:
    return Check(name=name, verdict="skipped", words="cannot be looked up")


def _namespace_refused(namespace: str, error: RPCError) -> Check:
    if error.status == RPCStatusCode.NOT_FOUND:
        return Check(
            name="namespace",
            verdict="failure",
            words=f"there is no namespace {namespace!r}",
            remedy=f"temporal operator namespace create --namespace {namespace}, or name another by --namespace",
        )
    return Check(name="namespace", verdict="warning", words=f"{namespace!r} cannot be looked up: {error.message}")


def _namespace(described: DescribeNamespaceResponse) -> Check:
    name = described.namespace_info.name
    retention = timedelta(seconds=described.config.workflow_execution_retention_ttl.seconds)
    words = f"{name!r}; a session whose workflow is closed can be brought back for {_days(retention)}"
    if retention < _SHORT_RETENTION:
        remedy = f"temporal operator namespace update --namespace {name} --retention 30d"
        return Check(name="namespace", verdict="warning", words=words, remedy=remedy)
    return Check(name="namespace", verdict="ok", words=words)


def _days(duration: timedelta) -> str:
    hours = duration.total_seconds() / 3600
    return f"{hours:g} h" if hours < 48 else f"{hours / 24:g} days"


def _limits(described: DescribeNamespaceResponse) -> Check:
    most = described.namespace_info.limits.blob_size_limit_error
    needed = f"a message, a tool's result or a model's answer may have {MAX_RESULT_BYTES / 1e6:.2f} MB"
    if not most:
        return Check(name="payload limits", verdict="skipped", words=f"the server does not tell its own; {needed}")
    if most < MAX_PAYLOAD_BYTES:
        words = f"the server takes payloads of {most / 1e6:.1f} MB at the most, while to Perdure {needed}"
        return Check(
            name="payload limits", verdict="warning", words=words, remedy="raise limit.blobSize.error on the server"
        )
    return Check(name="payload limits", verdict="ok", words=f"payloads of {most / 1e6:.1f} MB; {needed}")


async def _search_attributes(client: Client) -> Check:
    name = "search attributes"
    try:
        request = ListSearchAttributesRequest(namespace=client.namespace)
        found = (await client.operator_service.list_search_attributes(request)).custom_attributes
    except RPCError as error:
        return Check(name=name, verdict="warning", words=f"cannot be looked up: {error.message}")
    missing = [key for key in KEYS if key.name not in found]
    wrong = [key.name for key in KEYS if key.name in found and found[key.name] != int(key.indexed_value_type)]
    if wrong:
        return Check(
            name=name,
            verdict="failure",
            words=f"{', '.join(wrong)} exist with another type",
            remedy="remove them, and let a worker register them",
        )
    if not missing:
        return Check(name=name, verdict="ok", words=", ".join(key.name for key in KEYS))
    commands = " ".join(f"--name {key.name} --type {_type_name(int(key.indexed_value_type))}" for key in missing)
    return Check(
        name=name,
        verdict="warning",
        words=f"{', '.join(key.name for key in missing)} missing; listings then show no status",
        remedy="a worker registers them with its first invocation where it may, else: temporal operator"
        f" search-attribute create --namespace {client.namespace} {commands}",
    )


def _type_name(number: int) -> str:
    name = IndexedValueType.Name(IndexedValueType.ValueType(number)).removeprefix("INDEXED_VALUE_TYPE_")
    return "".join(word.capitalize() for word in name.split("_"))


async def _workers(client: Client, app: str, plan: Plan | None) -> list[Check]:
    try:
        workflows = await _pollers(client, app, TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW)
        activities = await _pollers(client, app, TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY)
    except RPCError as error:
        return [
            Check(name="worker", verdict="warning", words=f"task queue {app!r} cannot be looked up: {error.message}")
        ]
    if not workflows or not activities:
        return [
            Check(
                name="worker",
                verdict="failure",
                words=f"no worker serves app {app!r}; messages wait for one",
                remedy="perdure worker TARGET, or perdure dev TARGET",
            ),
            _skipped("plan"),
        ]
    names = ", ".join(sorted({poller.identity for poller in workflows}))
    return [Check(name="worker", verdict="ok", words=f"app {app!r} is served by {names}"), _plans(workflows, plan)]


async def _pollers(client: Client, app: str, kind: TaskQueueType.ValueType) -> list[PollerInfo]:
    """Return who asked for work lately."""
    request = DescribeTaskQueueRequest(namespace=client.namespace, task_queue=TaskQueue(name=app), task_queue_type=kind)
    answer = await client.workflow_service.describe_task_queue(request)
    since = time.time() - _POLL_SECONDS
    return [poller for poller in answer.pollers if poller.last_access_time.seconds >= since]


def _with_steps(plan: Plan, steps: int) -> Plan:
    return Plan.model_validate({**dict(plan), "steps_per_activity": steps})


def _plans(pollers: list[PollerInfo], plan: Plan | None) -> Check:
    """Return whether the workers have the plan of the code at hand: an unversioned worker's build id holds it."""
    named = (BuildId.parse(poller.worker_version_capabilities.build_id) for poller in pollers)
    served = {build.plan for build in named if build is not None}
    versioned = {poller.deployment_options.build_id for poller in pollers if poller.deployment_options.deployment_name}
    if versioned:
        return Check(name="plan", verdict="skipped", words=f"the workers are versioned: {', '.join(sorted(versioned))}")
    known = ", ".join(sorted(served))
    if plan is None:
        return Check(name="plan", verdict="ok", words=f"the workers have {known}")
    digest = plan.digest[:12]
    if served == {digest}:
        return Check(name="plan", verdict="ok", words=f"{digest}, in the code here and in the workers")
    for steps in range(1, MAX_STEPS + 1):
        # A worker may be given another number than the app's.
        if served == {_with_steps(plan, steps).digest[:12]}:
            taken = "1 step" if steps == 1 else f"{steps} steps"
            words = f"{digest}, in the code here, and in the workers, whose activities take {taken}"
            return Check(name="plan", verdict="ok", words=words)
    return Check(
        name="plan",
        verdict="warning",
        words=f"the code here has {digest}, the workers have {known}",
        remedy="restart the workers with this code, unless a rollout is under way",
    )
