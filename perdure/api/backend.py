"""What the routes share: the runners, the apps that the server knows, and how a session is read."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import lru_cache
from typing import Annotated
from urllib.parse import unquote

from fastapi import Depends, HTTPException, Request
from pydantic import AfterValidator
from temporalio.client import Client
from temporalio.service import RPCError

from perdure.api.config import ApiConfig
from perdure.api.schemas import Session
from perdure.client import Runner
from perdure.messages import SessionView, workflow_id
from perdure.plan import Plan

_KEPT_RUNNERS = 100

_MAX_ID_BYTES = 300
"""User id and session id together, in UTF-8; Temporal shows both on the workflow's page, in 400 bytes."""

_MAX_WORKFLOW_ID = 1000
"""Temporal's own limit."""

Segment = Annotated[str, AfterValidator(unquote)]
"""A part of the path, which arrives percent-encoded."""


class Backend:
    """The apps of a Temporal namespace, for one HTTP server."""

    def __init__(self, client: Client, plans: Mapping[str, Plan], config: ApiConfig) -> None:
        """Make a backend.

        Args:
            client: A client of the Temporal server.
            plans: The apps that are listed and described, by name; sessions may be of any other, too.
            config: What is allowed.
        """
        self.plans = dict(plans)
        self.config = config
        self.closing = asyncio.Event()
        """Set when the server ends: streams end then."""
        self._client = client
        self._runner = lru_cache(_KEPT_RUNNERS)(self._new_runner)

    @property
    def client(self) -> Client:
        """The client of the Temporal server."""
        return self._client

    def _new_runner(self, app: str) -> Runner:
        return Runner(app, self._client, auto_create_session=self.config.auto_create_session)

    @property
    def default_app(self) -> str | None:
        """App of a request that names none."""
        return self.config.default_app or (next(iter(self.plans)) if len(self.plans) == 1 else None)

    def runner(self, app: str, user_id: str | None, session_id: str | None = None) -> Runner:
        """Return the runner of an app, after a check of the names.

        Raises:
            HTTPException: A name cannot be one. 400.
        """
        if not app.isidentifier():
            raise HTTPException(400, f"app name {app!r} is no Python identifier, so there is no such app")
        if user_id == "" or session_id == "":
            raise HTTPException(400, "a user id and a session id may not be empty")
        size = len(f"{user_id or ''}{session_id or ''}".encode())
        if size > _MAX_ID_BYTES or len(workflow_id(app, user_id or "", session_id or "")) > _MAX_WORKFLOW_ID:
            raise HTTPException(
                400, f"user id and session id may have {_MAX_ID_BYTES} bytes together, {_MAX_WORKFLOW_ID} when encoded"
            )
        return self._runner(app)

    def patience(self) -> asyncio.Timeout:
        """Return a block that gives up with `TimeoutError` if no worker answers."""
        return asyncio.timeout(self.config.patience.total_seconds())

    async def session(self, runner: Runner, user_id: str, session_id: str) -> Session:
        """Return a session with its whole log.

        Raises:
            SessionNotFound: There is none.
        """
        view = await runner.get_session(user_id=user_id, session_id=session_id)
        events = [event async for event in runner.events(user_id=user_id, session_id=session_id)]
        session = await self.without_events(view)
        updated = events[-1].timestamp if events else session.last_update_time
        return session.model_copy(update={"events": tuple(events), "last_update_time": updated})

    async def without_events(self, view: SessionView) -> Session:
        """Return a session as a listing shows it."""
        return Session(
            id=view.id,
            app_name=view.app_name,
            user_id=view.user_id,
            state=view.state,
            last_update_time=view.last_update_time or await self._started(view),
        )

    async def _started(self, view: SessionView) -> float:
        handle = self._client.get_workflow_handle(workflow_id(view.app_name, view.user_id, view.id))
        try:
            return (await handle.describe()).start_time.timestamp()
        except RPCError:
            # It was deleted meanwhile.
            return 0.0


def _backend(request: Request) -> Backend:
    backend: Backend = request.app.state.backend
    return backend


BackendOf = Annotated[Backend, Depends(_backend)]
"""The backend of the server that a route belongs to."""


def check_reserved(app: str) -> None:
    """Refuse the names that ADK keeps for itself.

    Raises:
        HTTPException: It is one. 403.
    """
    if app.startswith("__"):
        raise HTTPException(403, f"app names that start with two underscores are reserved: {app!r}")
