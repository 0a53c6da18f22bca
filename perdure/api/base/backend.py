"""`Backend`: the apps that a server knows, and the runners of their sessions, for all routes."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import lru_cache, partial
from typing import Annotated
from urllib.parse import unquote

from fastapi import Depends, HTTPException, Request
from pydantic import AfterValidator
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from perdure.api.adk.schemas import Session
from perdure.api.adk.stored import as_stored
from perdure.api.auth.access import Access, access_of
from perdure.api.auth.identity import ANYONE, OPERATOR, Deed
from perdure.api.base.config import ApiConfig
from perdure.api.base.error_texts import DoorWithoutErrorTexts, without_error_texts
from perdure.api.base.secret_fields import DoorWithoutSecrets
from perdure.client import Runner
from perdure.credentials.sealing import vault_of
from perdure.journal.open_calls import PendingCall
from perdure.messages.claims import claims_id
from perdure.messages.keys import SessionKey
from perdure.messages.session import SessionView
from perdure.plan.nodes import Plan
from perdure.serving.health import Pulse
from perdure.sessions.lifecycle import Lifecycle
from perdure.sessions.listing import list_apps
from perdure.sessions.pending import Silence
from perdure.sessions.requests import WorkflowRequests
from perdure.sessions.shared_state import read_state
from perdure.streams.hub import TokenHub

_KEPT_RUNNERS = 100
_KEPT_PLANS = 100
_KEPT_APPS = 1000
_NAMED_APPS = 20
"""Apps that a refusal names."""

_CHECKED_AT_ONCE = 2
"""Threads that check bodies; more would only share the interpreter."""

_APPS_STAY = 15.0
"""Seconds for which the apps that have sessions are not listed again."""

_MAX_ID_BYTES = 300
"""User id and session id together, in UTF-8; Temporal shows both on the workflow's page, in 400 bytes."""

_MAX_WORKFLOW_ID = 1000
"""Temporal's own limit."""

Segment = Annotated[str, AfterValidator(unquote)]
"""A part of the path, which arrives percent-encoded."""


class Backend:
    """The apps of a Temporal namespace, for one HTTP server."""

    def __init__(
        self, client: Client, plans: Mapping[str, Plan], config: ApiConfig, streams: TokenHub | None = None
    ) -> None:
        """Make a backend.

        Args:
            client: A client of the Temporal server.
            plans: The apps that are listed and described, by name. Without any, sessions may be of all that are there.
            config: What is allowed.
            streams: Where tokens come from.
        """
        self.plans = dict(plans)
        self.config = config
        self.closing = asyncio.Event()
        """Set when the server ends: streams end then."""
        self.draining = asyncio.Event()
        """Set before that, while requests are still served: the server is not ready for more."""
        self.pulse = Pulse(client)
        """Whether Temporal answers."""
        self.silence = Silence()
        """Who did not answer the inbox of late."""
        self.checking = asyncio.Semaphore(_CHECKED_AT_ONCE)
        """Taken by whoever has a thread check a body."""
        self._client = client
        self._apps: tuple[float, frozenset[str]] | None = None
        """When it was last listed which apps have sessions, and which."""
        self._known_apps: set[str] = set()
        """Apps of which it is known that they are there, where the server was given none."""
        self._kept_plans: dict[tuple[str, str], Plan] = {}
        self._streams = streams
        self._runner = lru_cache(_KEPT_RUNNERS)(self._new_runner)

    @property
    def client(self) -> Client:
        """The client of the Temporal server."""
        return self._client

    def limited_to(self, access: Access) -> Backend:
        """Return this backend for one request: its runners reach no other sessions."""
        return _LimitedBackend(self, access)

    @property
    def access(self) -> Access:
        """The rights of the request."""
        if self.config.auth is not None:
            raise RuntimeError("a backend gives nothing out before it knows who asks; take it as BackendOf")
        return Access(ANYONE, "run")

    def _new_runner(self, app: str) -> Runner:
        return Runner(
            app,
            self._client,
            auto_create_session=self.config.auto_create_session,
            streams=self._streams,
            local_tools=app in self.plans and self.plans[app].has_local_tools,
            credentials=self.config.credentials,
        )

    @property
    def default_app(self) -> str | None:
        """App of a request that names none."""
        return self.config.default_app or (next(iter(self.plans)) if len(self.plans) == 1 else None)

    async def apps(self) -> list[str]:
        """Return the names of the apps that the server was given, and of those that have sessions, as far as known."""
        now = asyncio.get_running_loop().time()
        if self._apps is None or now - self._apps[0] > _APPS_STAY:
            try:
                found = frozenset(await list_apps(self._client))
            except RPCError as error:
                if error.status != RPCStatusCode.INVALID_ARGUMENT:
                    raise
                # The namespace has no search attributes.
                found = frozenset[str]()
            self._apps = now, found
        return sorted(self._apps[1] | set(self.plans))

    async def check_served(self, app: str) -> None:
        """Refuse to begin anything in an app that is not there: nobody would ever run it.

        Raises:
            HTTPException: The server was given apps, and not this one; or no worker serves it, and it has no sessions
                that could wait for one. 404.
        """
        check_app_name(app)
        if app in self.plans or (not self.plans and (app in self._known_apps or await self._is_there(app))):
            return
        served = sorted(self.plans) if self.plans else await self.apps()
        names = ", ".join(map(repr, served[:_NAMED_APPS])) or "none"
        raise HTTPException(404, f"there is no app {app!r}; served are: {names}")

    async def _is_there(self, app: str) -> bool:
        requests = WorkflowRequests(app, self._client, Lifecycle(self._client))
        if await requests.is_served() or (await self._client.count_workflows(f"WorkflowType = '{app}'")).count:
            if len(self._known_apps) < _KEPT_APPS:
                self._known_apps.add(app)
            return True
        return False

    @property
    def namespace(self) -> str:
        """The Temporal namespace that the sessions are in."""
        return self._client.namespace

    def runner_of(self, key: SessionKey, *, deed: Deed | None = None, as_adk: bool = False) -> Runner:
        """Return the runner of a session's app, after a check of its names, and of who asks, as `runner` does.

        Args:
            key: The session.
            deed: As in `runner`.
            as_adk: It is for one of ADK's routes, which may show credentials as ADK does.
        """
        return self._checked(key.app, key.user, key.session, deed, as_adk=as_adk)

    def runner(self, app: str, user_id: str | None, *, deed: Deed | None = None) -> Runner:
        """Return the runner of an app, after a check of the names, and of who asks.

        Args:
            app: The app.
            user_id: Whose sessions are meant. With `None` the runner reaches all that the request may touch.
            deed: What is done. Default: looking, by GET; answering, in a route marked by `answers`; else anything.

        Raises:
            HTTPException: A name cannot be one: 400. The session is another user's: 404.
        """
        return self._checked(app, user_id, None, deed)

    def _checked(
        self, app: str, user_id: str | None, session_id: str | None, deed: Deed | None, *, as_adk: bool = False
    ) -> Runner:
        check_app_name(app)
        if user_id == "" or session_id == "":
            raise HTTPException(400, "a user id and a session id may not be empty")
        key = SessionKey(app, user_id or "", session_id or "")
        if len(f"{key.user}{key.session}".encode()) > _MAX_ID_BYTES or _id_size(key) > _MAX_WORKFLOW_ID:
            raise HTTPException(
                400, f"user id and session id may have {_MAX_ID_BYTES} bytes together, {_MAX_WORKFLOW_ID} when encoded"
            )
        shows = as_adk and self.config.shows_credentials
        door = partial(DoorWithoutSecrets, vault=vault_of(self._client, self.config.credentials), shows=shows)
        runner = self.access.runner(self._runner(app), user_id, deed).behind(door)
        return runner if self.shows_errors(app) else runner.behind(DoorWithoutErrorTexts)

    def shows_errors(self, app: str) -> bool:
        """Return whether the sender may read the texts of errors of the app's code."""
        plan = self.plans.get(app)
        return OPERATOR in self.access.identity.roles or (plan is not None and plan.shows_errors)

    def told(self, app: str, call: PendingCall) -> PendingCall:
        """Return a call that waits in the form for the sender."""
        return call if self.shows_errors(app) else without_error_texts(call)

    async def plan(self, key: SessionKey, invocation_id: str, *, digest: str | None) -> Plan | None:
        """Return the plan of this digest, to which an invocation is pinned; it is kept, since plans do not change."""
        if digest is None:
            return None
        found = self._kept_plans.get((key.app, digest))
        if found is None:
            found = await self.runner_of(key).plan(**key.arguments, invocation_id=invocation_id)
            if found is not None:
                self._kept_plans[key.app, digest] = found
                if len(self._kept_plans) > _KEPT_PLANS:
                    del self._kept_plans[next(iter(self._kept_plans))]
        return found

    def patience(self) -> asyncio.Timeout:
        """Return a block that gives up with `TimeoutError` if no answer comes."""
        return asyncio.timeout(self.config.patience.total_seconds())

    async def session(self, runner: Runner, key: SessionKey) -> Session:
        """Return a session with its whole log.

        Raises:
            SessionNotFound: There is none.
        """
        view = await runner.get_session(**key.arguments)
        events = [event async for event in runner.events(**key.arguments)]
        session = await self.without_events(view)
        updated = events[-1].timestamp if events else session.last_update_time
        # A session learns what others wrote as its next turn begins; ADK reads it together with the session.
        app, user = await asyncio.gather(
            read_state(self._client, key.app, None), read_state(self._client, key.app, key.user)
        )
        found = {"state": view.state | app | user, "events": as_stored(events), "last_update_time": updated}
        return session.model_copy(update=found)

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
        handle = self._client.get_workflow_handle(SessionKey(view.app_name, view.user_id, view.id).workflow_id)
        try:
            return (await handle.describe()).start_time.timestamp()
        except RPCError:
            # It was deleted meanwhile.
            return 0.0


class _LimitedBackend(Backend):
    """A backend for one request. All that it knows, it shares with the whole one, whoever learns it."""

    __slots__ = ("_access",)

    def __init__(self, whole: Backend, access: Access) -> None:  # pyright: ignore[reportMissingSuperCall] -- see below
        # What `Backend` makes is the whole one's, and is shared.
        self.__dict__ = whole.__dict__
        self._access = access

    @property
    def access(self) -> Access:
        return self._access


def _backend(request: Request) -> Backend:
    backend: Backend = request.app.state.backend
    return backend.limited_to(access_of(request))


BackendOf = Annotated[Backend, Depends(_backend)]
"""The backend of the server that a route belongs to."""


def _key(app_name: Segment, user_id: Segment, session_id: Segment) -> SessionKey:
    return SessionKey(app_name, user_id, session_id)


KeyOf = Annotated[SessionKey, Depends(_key)]
"""The session that a route's path names. Nobody has checked yet who may touch it: `Backend.runner_of` does."""


def _id_size(key: SessionKey) -> int:
    """Return how long the longest id of a session's workflows is: that of the one beside it."""
    return max(len(key.workflow_id), len(claims_id(key.workflow_id)))


def check_app_name(app: str) -> None:
    """Refuse a name that no app can have.

    Raises:
        HTTPException: It is no identifier. 400.
    """
    if not app.isidentifier():
        raise HTTPException(400, f"app name {app[:100]!r} is no Python identifier, so there is no such app")


def check_reserved(app: str) -> None:
    """Refuse the names that ADK keeps for itself.

    Raises:
        HTTPException: It is one. 403.
    """
    if app.startswith("__"):
        raise HTTPException(403, f"app names that start with two underscores are reserved: {app!r}")
