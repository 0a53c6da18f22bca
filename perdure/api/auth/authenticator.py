"""Identifies the sender of a request, by its API key, its token, or the cookie of a sign-in."""

from __future__ import annotations

import hashlib
import json
import secrets
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from http.cookies import CookieError, SimpleCookie
from typing import Any, cast

import jwt
from starlette.datastructures import Headers

from perdure.api.auth.api_keys import PREFIX, ApiKey, ApiKeys, Role
from perdure.api.auth.config import AuthConfig, JwtConfig
from perdure.api.auth.identity import Identity
from perdure.api.auth.tokens import TokenRefused, Tokens

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
    """A sender's identity, and how it is known."""

    identity: Identity
    expires: float | None = None
    """Seconds since the epoch until which the credential holds."""
    key_id: str | None = None
    """The API key's id, if it was one."""
    source: str | None = None
    """What stands for the API key, or the settings by which a token was taken; with another one it holds no longer."""
    by_cookie: bool = False
    """A browser sends it by itself, so another page may have caused the request."""


class Authenticator:
    """Checks credentials."""

    def __init__(self, config: AuthConfig, *, before: Authenticator | None = None) -> None:
        """Make an authenticator by the settings of access.

        Args:
            config: Who it is.
            before: Who checked until now, under another config: a secret of its own goes on to hold, and so do the keys
                that were fetched by the same settings.

        Raises:
            DefinitionError: The file of the issuer's keys cannot be read.
        """
        self.config = config
        self._keys = ApiKeys(config.keys)
        self.tokens: Tokens | None = _tokens_of(config.jwt, before)
        self._token_source = _source_of(config.jwt) if config.jwt is not None else None
        self._lasts = config.sign_in.hours * 3600
        self._own_secret: bytes = before._own_secret if before is not None else secrets.token_bytes(32)
        self._secret = config.sign_in.secret or self._own_secret

    async def identify(self, headers: Headers) -> Known:
        """Return the sender of a request. The header `Authorization` counts more than a cookie.

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
        """Return the owner of an API key or a token.

        Raises:
            Refused: Nobody's that is known.
            KeysUnavailable: A token cannot be checked now.
        """
        if credential.startswith(PREFIX):
            key = self._keys.find(credential, datetime.now(UTC))
            if key is None:
                raise Refused("the API key is not known, or has expired")
            return Known(_identity_of(key), _end_of(key), key.id, key.mark)
        if self.tokens is None:
            raise Refused("it is no API key, and tokens are not taken here")
        try:
            subject, roles, expires = await self.tokens.check(credential)
        except TokenRefused as error:
            raise Refused(f"the token is refused: {error}") from None
        return Known(Identity(subject, frozenset(roles)), expires, source=self._token_source)

    def cookie(self, known: Known) -> tuple[str, int]:
        """Return the value of a cookie for somebody who is known, and how many seconds it lasts."""
        now = time.time()
        end = min(now + self._lasts, known.expires or now + self._lasts)
        claims = {
            "sub": known.identity.subject,
            "roles": sorted(known.identity.roles),
            "key": known.key_id,
            "of": known.source,
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
        expires = float(claims["exp"])
        if claims["key"] is None:
            if self._token_source is None or claims.get("of") != self._token_source:
                raise Refused("tokens are taken by other settings than that of the sign-in; sign in again")
            roles = frozenset(cast("list[Role]", claims["roles"]))
            return Known(Identity(claims["sub"], frozenset(roles)), expires, by_cookie=True)
        # A key that was taken back ends its sign-ins, and one whose roles were changed changes theirs.
        key = self._keys.get(claims["key"], datetime.now(UTC))
        if key is None or key.subject != claims["sub"] or key.mark != claims.get("of"):
            raise Refused("the API key of the sign-in is not known any more; sign in again")
        expires = min(expires, _end_of(key) or expires)
        return Known(_identity_of(key), expires, key.id, by_cookie=True)


def _identity_of(key: ApiKey) -> Identity:
    return Identity(key.subject, frozenset(key.roles))


def _end_of(key: ApiKey) -> float | None:
    return key.expires.timestamp() if key.expires else None


def _tokens_of(config: JwtConfig | None, before: Authenticator | None) -> Tokens | None:
    if config is None:
        return None
    # A file is read again, since it may hold other keys; what was fetched is kept.
    is_same = before is not None and config.is_url and before.config.jwt == config
    return before.tokens if before is not None and is_same else Tokens(config)


def _source_of(config: JwtConfig) -> str:
    """Return what stands for who is taken by a token, and with which roles; in all processes the same."""
    settings = config.model_dump(mode="json", exclude={"jwks"})
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]


def _cookie_of(headers: Headers) -> str | None:
    try:
        found = SimpleCookie("; ".join(headers.getlist("cookie"))).get(COOKIE)
    except CookieError:
        return None
    return found.value if found is not None else None
