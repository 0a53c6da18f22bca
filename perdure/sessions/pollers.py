"""Which apps have workers: who asks a task queue for work, and whose workers the server knows."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from difflib import SequenceMatcher
from heapq import nlargest

from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import PollerInfo, TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest, ListWorkersRequest
from temporalio.client import Client
from temporalio.service import RPCError

from perdure.messages.build_ids import BuildId
from perdure.sessions.listing import list_apps

_POLL_SECONDS = 90
"""A worker asks for work at least this often; the server remembers one that is gone for some minutes."""

_PAUSE = 0.2

_MOST = 100
"""Apps that are looked at."""


async def pollers_of(client: Client, app: str) -> list[PollerInfo]:
    """Return who asked for an app's workflow tasks in the last minutes.

    Raises:
        RPCError: The server does not say.
    """
    request = DescribeTaskQueueRequest(
        namespace=client.namespace,
        task_queue=TaskQueue(name=app),
        task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW,
    )
    return list((await client.workflow_service.describe_task_queue(request)).pollers)


async def is_served(client: Client, app: str, patience: float = 0.0) -> bool:
    """Return whether a worker of an app asks for work, or begins to within some seconds; so, too, if nobody can say."""
    until = time.monotonic() + patience
    while True:
        try:
            pollers = await pollers_of(client, app)
        except RPCError:
            return True
        since = time.time() - _POLL_SECONDS
        if any(poller.last_access_time.seconds >= since for poller in pollers):
            return True
        if time.monotonic() >= until:
            return False
        await asyncio.sleep(_PAUSE)


async def served_code(client: Client, app: str) -> frozenset[str]:
    """Return the digests of the code that an app's workers say that they have; none if nobody says.

    Raises:
        RPCError: The server does not say.
    """
    since = time.time() - _POLL_SECONDS
    asked = [poller for poller in await pollers_of(client, app) if poller.last_access_time.seconds >= since]
    builds = [BuildId.parse(poller.worker_version_capabilities.build_id) for poller in asked]
    if not all(build is not None and build.code for build in builds):
        # One that says nothing of its code may have any.
        return frozenset()
    return frozenset(build.code for build in builds if build is not None and build.code)


async def served_apps(client: Client, near: str) -> list[str]:
    """Return the names of the apps that have workers, as far as the server knows of them, or of sessions of theirs.

    Of very many, those whose names are like `near`.
    """
    names = dict.fromkeys([name async for name in _known(client)])
    apps = nlargest(_MOST, names, key=lambda name: SequenceMatcher(None, name, near).ratio())
    served = await asyncio.gather(*(is_served(client, app) for app in apps))
    return sorted(app for app, is_one in zip(apps, served, strict=True) if is_one)


async def _known(client: Client) -> AsyncIterator[str]:
    try:
        answer = await client.workflow_service.list_workers(ListWorkersRequest(namespace=client.namespace))
        for worker in answer.workers_info:
            # Temporal has queues of its own, and others have theirs; an app's name is an identifier.
            if worker.worker_heartbeat.task_queue.isidentifier():
                yield worker.worker_heartbeat.task_queue
    except RPCError:
        # An older server does not list workers.
        pass
    try:
        for app in await list_apps(client):
            yield app
    except RPCError:
        # The namespace lacks Perdure's search attributes.
        pass
