"""Checks that a process is alive and ready, and serves that over HTTP without a web framework."""

from __future__ import annotations

import asyncio
import json
import math
import time
import uuid
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from http import HTTPStatus
from types import TracebackType
from typing import Self

from temporalio.api.common.v1 import WorkflowExecution, WorkflowType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import (
    DeleteWorkflowExecutionRequest,
    GetSystemInfoRequest,
    StartWorkflowExecutionRequest,
)
from temporalio.client import Client
from temporalio.service import RPCError

__all__ = ["PROBE", "SELDOM", "WRITES", "HealthServer", "Pulse"]

PROBE = "perdure:probe"
"""Type, task queue and beginning of the id of the workflow by which it is tried whether Temporal writes."""

WRITES = timedelta(seconds=10)
"""How long it is believed that Temporal writes, after it did."""

SELDOM = timedelta(minutes=5)
"""The same for workers: there may be many, and none of them is asked to take requests."""

_TIMEOUT = timedelta(seconds=3)
_DELAY = timedelta(minutes=10)
_KEPT_SECONDS = 1.0
_READ_SECONDS = 5
_MAX_HEAD = 16_000


class Pulse:
    """A check that Temporal answers, and takes what is written; made seldom, however often somebody asks.

    A server whose disk is full, or whose database is read-only, answers all questions. So a workflow is started now and
    then that nobody runs, and deleted at once: there is no cheaper write that leaves nothing behind.
    """

    def __init__(self, client: Client, *, writes: timedelta | None = WRITES) -> None:
        """Feel the pulse of the server that a client is connected to.

        Args:
            client: The client.
            writes: How long it is believed that the server writes, after it did. With `None` that is not tried.
        """
        self._client = client
        self._writes = writes
        self._lock = asyncio.Lock()
        self._felt = -math.inf
        self._wrote = -math.inf
        self._trouble: str | None = None

    async def beats(self) -> bool:
        """Return whether Temporal answers and writes, within some 6 s."""
        return await self.trouble() is None

    async def trouble(self) -> str | None:
        """Return the trouble with Temporal; `None` if there is none."""
        async with self._lock:
            if time.monotonic() - self._felt >= _KEPT_SECONDS:
                self._trouble = await self._feel()
                self._felt = time.monotonic()
            return self._trouble

    async def _feel(self) -> str | None:
        try:
            await self._client.workflow_service.get_system_info(GetSystemInfoRequest(), timeout=_TIMEOUT)
        except RPCError:
            return "Temporal does not answer"
        if self._writes is None or time.monotonic() - self._wrote < self._writes.total_seconds():
            return None
        try:
            await self._write()
        except RPCError:
            return "Temporal answers, and writes nothing: its disk may be full, or its database read-only"
        self._wrote = time.monotonic()
        return None

    async def _write(self) -> None:
        service, namespace = self._client.workflow_service, self._client.namespace
        name = f"{PROBE}-{uuid.uuid4().hex}"
        start = StartWorkflowExecutionRequest(
            namespace=namespace,
            workflow_id=name,
            workflow_type=WorkflowType(name=PROBE),
            task_queue=TaskQueue(name=PROBE),
            request_id=name,
        )
        # No worker is asked for it before it is gone; and if it could not be deleted, it ends by itself.
        start.workflow_start_delay.FromTimedelta(_DELAY)
        start.workflow_execution_timeout.FromTimedelta(_TIMEOUT)
        await service.start_workflow_execution(start, timeout=_TIMEOUT)
        gone = DeleteWorkflowExecutionRequest(
            namespace=namespace, workflow_execution=WorkflowExecution(workflow_id=name)
        )
        with suppress(RPCError):
            await service.delete_workflow_execution(gone, timeout=_TIMEOUT)


class HealthServer:
    """Serves `/livez` (200 for as long as the process answers) and `/readyz` (200, or 503 with a reason)."""

    def __init__(self, host: str, port: int, why_not: Callable[[], Awaitable[str | None]]) -> None:
        """Serve at an address.

        Args:
            host: Name or address to listen on.
            port: Port; 0 is any free one.
            why_not: Returns why the process is not ready; `None` if it is.
        """
        self._host, self._port = host, port
        self._why_not = why_not
        self._server: asyncio.Server | None = None

    @property
    def port(self) -> int:
        """The port that it listens on."""
        assert self._server is not None
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def __aenter__(self) -> Self:
        """Listen.

        Raises:
            OSError: The address cannot be had.
        """
        self._server = await asyncio.start_server(self._answer, self._host, self._port, limit=_MAX_HEAD)
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Listen no more."""
        if self._server is not None:
            self._server.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            async with asyncio.timeout(_READ_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
            method, _, rest = head.decode("latin-1").partition(" ")
            status, said = await self._found(method, rest.partition(" ")[0].partition("?")[0])
            body = json.dumps(said).encode()
            writer.write(
                f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: application/json\r\n"
                f"Content-Length: {len(body)}\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n".encode()
                + (b"" if method == "HEAD" else body)
            )
            await writer.drain()
        writer.close()

    async def _found(self, method: str, path: str) -> tuple[HTTPStatus, dict[str, str]]:
        if path not in ("/livez", "/readyz"):
            return HTTPStatus.NOT_FOUND, {"detail": "there are /livez and /readyz"}
        if method not in ("GET", "HEAD"):
            return HTTPStatus.METHOD_NOT_ALLOWED, {"detail": "ask by GET"}
        if path == "/livez":
            return HTTPStatus.OK, {"status": "ok"}
        reason = await self._why_not()
        if reason is not None:
            return HTTPStatus.SERVICE_UNAVAILABLE, {"detail": reason}
        return HTTPStatus.OK, {"status": "ready"}
