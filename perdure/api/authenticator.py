"""Tells who sends a request, by its API key, its token, or the cookie of a sign-in."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from http.cookies import CookieError, SimpleCookie
from typing import Any, cast

import jwt
from starlette.datastructures import Headers

from perdure.api.auth_config import AuthConfig
from perdure.api.credentials import PREFIX, ApiKeys, Role
from perdure.api.identity import Identity
from perdure.api.tokens import TokenRefused, Tokens

__all__ = ["COOKIE", "Authenticator", "Known", "Refused"]

COOKIE = "perdure_sign_in"
"""Name of the cookie."""

_COOKIE_AUDIENCE = "perdure:sign-in"
_COOKIE_ALGORITHM = "HS256"


class Refused(Exception):
    """A credential is missing or not valid. The text says why, and quotes nothing of it."""

    def __init__(self, reason: str, *, given: bool = True) -> None:
        """Say why.

        Args:
            reason: Why.
            given: There was a credential.
        """
        super().__init__(reason)
        self.given = given


@dataclass(frozen=True)
class Known:
    """Who it is, and how that is known."""

    identity: Identity
    expires: float | None = None
    """Seconds since the epoch until which the credential holds."""
    key_id: str | None = None
    """The API key's id, if it was one."""
    by_cookie: bool = False
    """A browser sends it by itself, so another page may have caused the request."""


class Authenticator:
    """Checks credentials."""

    def __init__(self, config: AuthConfig) -> None:
        """Let in whoever the config says.

        Raises:
            DefinitionError: The file of the issuer's keys cannot be read.
        """
        self._keys = ApiKeys(config.keys)
        self._tokens = Tokens(config.jwt) if config.jwt is not None else None
        self._lasts = config.sign_in.hours * 3600
        self._secret = config.sign_in.secret or secrets.token_bytes(32)

    async def identify(self, headers: Headers) -> Known:
        """Return who sends a request. The header `Authorization` counts more than a cookie.

        Raises:
            Refused: Nobody that is known.
            KeysUnavailable: A token cannot be checked now.
        """
        given = headers.getlist("authorization")
        if not given:
            return self._by_cookie(headers)
        scheme, _, credential = given[0].partition(" ")
        if len(given) > 1 or scheme.lower() != "bearer":
            raise Refused("the header is not of the form Authorization: Bearer API_KEY_OR_TOKEN")
        return await self.check(credential.strip())

    async def check(self, credential: str) -> Known:
        """Return whose an API key or a token is.

        Raises:
            Refused: Nobody's that is known.
            KeysUnavailable: A token cannot be checked now.
        """
        if credential.startswith(PREFIX):
            key = self._keys.find(credential, datetime.now(UTC))
            if key is None:
                raise Refused("the API key is not known, or has expired")
            expires = key.expires.timestamp() if key.expires else None
            return Known(Identity(key.subject, frozenset(key.roles)), expires, key.id)
        if self._tokens is None:
            raise Refused("it is no API key, and tokens are not taken here")
        try:
            subject, roles, expires = await self._tokens.check(credential)
        except TokenRefused as error:
            raise Refused(f"the token is refused: {error}") from None
        return Known(Identity(subject, frozenset(roles)), expires)

    def cookie(self, known: Known) -> tuple[str, int]:
        """Return the value of a cookie for somebody who is known, and how many seconds it lasts."""
        now = time.time()
        end = min(now + self._lasts, known.expires or now + self._lasts)
        claims = {
            "sub": known.identity.subject,
            "roles": sorted(known.identity.roles),
            "key": known.key_id,
            "aud": _COOKIE_AUDIENCE,
            "exp": end,
        }
        return jwt.encode(claims, self._secret, _COOKIE_ALGORITHM), max(0, int(end - now))

    def _by_cookie(self, headers: Headers) -> Known:
        value = _cookie_of(headers)
        if value is None:
            raise Refused("send a credential: Authorization: Bearer API_KEY_OR_TOKEN", given=False)
        try:
            claims: dict[str, Any] = jwt.decode(
                value,
                self._secret,
                algorithms=[_COOKIE_ALGORITHM],
                audience=_COOKIE_AUDIENCE,
                options={"require": ["exp", "sub", "aud"]},
            )
        except (jwt.PyJWTError, ValueError, RecursionError):
            raise Refused("the sign-in has ended; sign in again") from None
        if claims["key"] is None:
            roles = frozenset(cast("list[Role]", claims["roles"]))
            return Known(Identity(claims["sub"], frozenset(roles)), claims["exp"], by_cookie=True)
        # A key that was taken back ends its sign-ins, and one whose roles were changed changes theirs.
        key = self._keys.get(claims["key"], datetime.now(UTC))
        if key is None or key.subject != claims["sub"]:
            raise Refused("the API key of the sign-in is not known any more; sign in again")
        return Known(Identity(key.subject, frozenset(key.roles)), claims["exp"], key.id, by_cookie=True)


def _cookie_of(headers: Headers) -> str | None:
    try:
        found = SimpleCookie("; ".join(headers.getlist("cookie"))).get(COOKIE)
    except CookieError:
        return None
    return found.value if found is not None else None
