"""Decides whose sessions a request may touch. Every route passes through here, whether it thinks of it or not.

`create_app` makes `check_users` a dependency of all routes, and `Backend.runner` asks an `Access` what it may hand out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar
from urllib.parse import unquote
from weakref import WeakSet

from fastapi import HTTPException, Request

from perdure.api.auth.identity import ANYONE, OPERATOR, SCOPE_KEY, Deed, Identity
from perdure.client import Runner
from perdure.errors import SessionNotFound
from perdure.journal.open_calls import PendingCall, SessionStatus
from perdure.plan.nodes import CallLimit
from perdure.sessions.listing import ListedSession
from perdure.sessions.session import Session
from perdure.sessions.sessions import Door

__all__ = ["APP", "NOT_FOUND", "Access", "OneUsersDoor", "access_of", "answers", "check_state", "check_users"]

APP = "app:"
"""How the keys of a state start that all sessions of an app share, whosever they are."""

NOT_FOUND = "Session not found"
"""What is said of another user's session, whether it exists or not."""

_LOOKS = frozenset({"GET", "HEAD", "OPTIONS"})
_USER_QUERIES = ("userId", "user_id", "user")
_USER_PATH = "user_id"

_Endpoint = TypeVar("_Endpoint", bound=Callable[..., Any])
_answering: WeakSet[Callable[..., Any]] = WeakSet()


def answers(endpoint: _Endpoint) -> _Endpoint:
    """Mark a route that does no more than answer a call, so that approvers may use it; stands below `@router.post`."""
    _answering.add(endpoint)
    return endpoint


class Access:
    """The rights of one request."""

    def __init__(self, identity: Identity, deed: Deed) -> None:
        """Say who asks, and for what.

        Args:
            identity: Who.
            deed: What the route does in sessions.
        """
        self.identity = identity
        self.deed: Deed = deed

    def check(self, user_id: str, deed: Deed | None = None) -> None:
        """Refuse a session of another user.

        Raises:
            HTTPException: 404, as if there were nothing; 403 for who may look, and not do this.
        """
        if self.identity.may(deed or self.deed, user_id):
            return
        if self.identity.may("read", user_id):
            raise HTTPException(403, "you may read these sessions and answer what waits in them, and no more")
        raise HTTPException(404, NOT_FOUND) from SessionNotFound(NOT_FOUND)

    def runner(self, runner: Runner, user_id: str | None, deed: Deed | None = None) -> Runner:
        """Return a runner that reaches the sessions that the request may touch: one user's, or all.

        Args:
            runner: One that reaches everything.
            user_id: Whose session is meant; `None` for as many users as may be.
            deed: What is done; by default what the route does.

        Raises:
            HTTPException: The request may do nothing in this user's sessions. 404.
        """
        if user_id is not None:
            self.check(user_id, deed)
        only = self.whose(None, deed)
        return runner if only is None else runner.behind(lambda door: OneUsersDoor(door, only))

    def whose(self, user_id: str | None, deed: Deed | None = None) -> str | None:
        """Return the user whose sessions are meant by a request for `user_id`'s; with `None`, for all it may touch.

        Returns:
            A user, or `None` for everybody's.

        Raises:
            HTTPException: The request may do nothing in them. 404, or as `check` does.
        """
        if user_id is not None:
            self.check(user_id, deed)
            return user_id
        if self.identity.may_for_all(deed or self.deed):
            return None
        if self.identity.subject is None:
            raise HTTPException(404, NOT_FOUND) from SessionNotFound(NOT_FOUND)
        return self.identity.subject


def access_of(request: Request) -> Access:
    """Return the rights of a request."""
    looks = request.method in _LOOKS
    deed: Deed = "read" if looks else "answer" if request.scope.get("endpoint") in _answering else "run"
    return Access(request.scope.get(SCOPE_KEY, ANYONE), deed)


async def check_users(request: Request) -> None:
    """Refuse a path or a query that names another user.

    Raises:
        HTTPException: 404.
    """
    access = access_of(request)
    named = [unquote(request.path_params[_USER_PATH])] if _USER_PATH in request.path_params else []
    for name in _USER_QUERIES:
        # An empty one is a field of a form that nobody filled in.
        named += filter(None, request.query_params.getlist(name))
    for user_id in named:
        access.check(user_id)


def call_limit(identity: Identity, max_llm_calls: int | None) -> CallLimit | None:
    """Return the limit of model calls that a request asks for; only an operator may raise what the app allows."""
    if max_llm_calls is None:
        return None
    return CallLimit(most=max_llm_calls, lowers=OPERATOR not in identity.roles)


def check_state(identity: Identity, delta: Mapping[str, Any] | None) -> None:
    """Refuse to write what other users' agents read, unless an operator does it.

    Args:
        identity: Who writes.
        delta: What is written into a session's state.

    Raises:
        HTTPException: It holds `app:` keys. 403.
    """
    if OPERATOR not in identity.roles and any(key.startswith(APP) for key in delta or ()):
        raise HTTPException(403, "app: keys are shared by all users of the app, so only an operator may write them")


class OneUsersDoor:
    """A door to one user's sessions only, whatever it is asked. The default user is that one.

    It holds the only way to the sessions, so there is no method of `Runner` that it could forget.
    """

    def __init__(self, behind: Door, user_id: str) -> None:
        """Stand before a door, and let through to one user's sessions."""
        self._behind = behind
        self._only = user_id

    def whose(self, user_id: str | None) -> str:
        """Return the user.

        Raises:
            HTTPException: Another one is meant. 404.
        """
        if user_id is not None and user_id != self._only:
            raise HTTPException(404, NOT_FOUND) from SessionNotFound(NOT_FOUND)
        return self._only

    def session(self, user_id: str, session_id: str) -> Session:
        """Return a session of the user."""
        return self._behind.session(self.whose(user_id), session_id)

    async def list(self, user_id: str | None, status: Collection[SessionStatus]) -> list[ListedSession]:
        """Return the user's sessions."""
        return await self._behind.list(self.whose(user_id), status)

    async def pending(self, user_id: str | None, session_id: str | None) -> list[tuple[ListedSession, PendingCall]]:
        """Return the open calls of the user's sessions."""
        return await self._behind.pending(self.whose(user_id), session_id)
