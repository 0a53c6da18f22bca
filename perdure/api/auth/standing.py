"""Checks, while the answer to a request is under way, that its sender still has access."""

from __future__ import annotations

import math
import time
from typing import Annotated

from fastapi import Depends, Request
from starlette.datastructures import Headers

from perdure.api.auth.authenticator import Authenticator, Known, Refused
from perdure.api.auth.tokens import KeysUnavailable
from perdure.api.auth.watch import EVERY, AuthWatch
from perdure.api.base.statuses import CredentialExpired

__all__ = ["STANDING_KEY", "CredentialStanding", "Standing", "StandingOf"]

STANDING_KEY = "perdure.standing"
"""Where in an ASGI scope the `Standing` is, once somebody is known."""

_ENDED = (
    "the credential has expired, was taken back, or gives other rights now; the run goes on, and a request with one"
    " that holds follows it"
)


class Standing:
    """The time for which a sender has access. By itself: for ever, where the server asks for no credentials."""

    @property
    def patience(self) -> float | None:
        """Seconds until it has to be checked again; none, if it holds for ever."""
        return None

    async def check(self) -> None:
        """Do nothing while it holds.

        Raises:
            CredentialExpired: It does no longer.
        """


class CredentialStanding(Standing):
    """Access for as long as the credential of the request holds, with the rights that it had then."""

    def __init__(self, watch: AuthWatch, authenticator: Authenticator, headers: Headers, known: Known) -> None:
        """Say what was shown, and who knew it.

        Args:
            watch: Who is let in now.
            authenticator: Who let the request in.
            headers: The request's.
            known: Who it was known to be.
        """
        self._watch = watch
        self._authenticator: Authenticator = authenticator
        self._headers = headers
        self._known = known

    @property
    def patience(self) -> float | None:
        """Seconds until it has to be checked again."""
        left = math.inf if self._known.expires is None else max(0.0, self._known.expires - time.time())
        left = min(left, EVERY) if self._watch.follows else left
        return None if math.isinf(left) else left

    async def check(self) -> None:
        """Ask again, if the server lets others in than before.

        Raises:
            CredentialExpired: The credential has expired, was taken back, or gives other rights.
        """
        current = await self._watch.current()
        if current is not self._authenticator:
            try:
                known = await current.identify(self._headers)
            except (Refused, KeysUnavailable):
                raise CredentialExpired(_ENDED) from None
            if known.identity != self._known.identity:
                raise CredentialExpired(_ENDED)
            self._authenticator = current
            self._known = known
        if self._known.expires is not None and time.time() >= self._known.expires:
            raise CredentialExpired(_ENDED)


_FOR_EVER = Standing()


def _standing(request: Request) -> Standing:
    standing: Standing = request.scope.get(STANDING_KEY, _FOR_EVER)
    return standing


StandingOf = Annotated[Standing, Depends(_standing)]
"""For how long the sender of the request that a route answers is let in."""
