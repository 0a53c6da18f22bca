"""Checks JSON web tokens against the public keys of their issuer."""

from __future__ import annotations

import asyncio
import json
import time
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import jwt

from perdure.api.auth.api_keys import Role
from perdure.api.auth.config import JwtConfig
from perdure.errors import DefinitionError
from perdure.logs import get_logger

__all__ = ["IssuerKeys", "KeysUnavailable", "TokenRefused", "Tokens"]

LEEWAY = 10
"""Seconds by which clocks may differ."""

_ALGORITHMS = {
    **dict.fromkeys(("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"), "RSA"),
    **dict.fromkeys(("ES256", "ES384", "ES512"), "EC"),
    "EdDSA": "OKP",
}
"""What a token may be signed by, and the type of key that it takes. Nothing that is verified by a shared secret."""

_MAX_AGE = 3600.0
"""Seconds after which keys are fetched again, so that those that the issuer withdrew go."""
_PAUSE = 15.0
"""Seconds between two attempts to fetch keys, however many unknown ones are named."""
_TIMEOUT = 5.0
_MAX_BYTES = 1_000_000
_MAX_TOKEN = 16_000

_logger = get_logger("perdure.api")

Jwk = Mapping[str, Any]


class TokenRefused(Exception):
    """A token is not taken. The text says why, and quotes nothing of it."""


class KeysUnavailable(Exception):
    """The issuer's keys cannot be had, so no token can be checked."""


class IssuerKeys:
    """An issuer's public keys: fetched off the event loop, kept, and fetched again when an unknown one is named."""

    def __init__(
        self,
        load: Callable[[], bytes],
        *,
        known: tuple[Jwk, ...] = (),
        pause: float = _PAUSE,
        max_age: float = _MAX_AGE,
    ) -> None:
        """Keep keys.

        Args:
            load: Returns the JWKS document; called in a thread.
            known: What it has returned just now. Default: nothing yet.
            pause: Seconds between two calls of it, at least.
            max_age: Seconds after which it is called again.
        """
        self._load = load
        self._pause = pause
        self._max_age = max_age
        self._keys = known
        self._loaded = time.monotonic() if known else None
        self._tried: float | None = None
        self._lock = asyncio.Lock()

    async def find(self, kid: str | None, algorithm: str) -> Jwk | None:
        """Return the key that a token names, if the issuer has it. A token that names none may have the only one.

        Raises:
            KeysUnavailable: No keys could be had yet.
        """
        if self._loaded is None or time.monotonic() - self._loaded > self._max_age:
            await self._refresh(self._loaded)
        found = self._match(kid, algorithm)
        if found is None:
            await self._refresh(self._loaded)
            found = self._match(kid, algorithm)
        if found is None and self._loaded is None:
            raise KeysUnavailable
        return found

    def _match(self, kid: str | None, algorithm: str) -> Jwk | None:
        fitting = [key for key in self._keys if _fits(key, algorithm) and (kid is None or key.get("kid") == kid)]
        return fitting[0] if len(fitting) == 1 else None

    async def _refresh(self, seen: float | None) -> None:
        async with self._lock:
            now = time.monotonic()
            if self._loaded != seen or (self._tried is not None and now - self._tried < self._pause):
                return
            self._tried = now
            try:
                async with asyncio.timeout(2 * _TIMEOUT):
                    document = await asyncio.to_thread(self._load)
                self._keys = parse_jwks(document)
            except (OSError, ValueError, RecursionError, DefinitionError) as error:
                # Those that are known go on to be used.
                _logger.warning("the issuer's keys cannot be fetched", error=type(error).__name__)
                return
            self._loaded = now


def parse_jwks(document: bytes) -> tuple[Jwk, ...]:
    """Return the keys of a JWKS document.

    Raises:
        DefinitionError: It is none.
        ValueError: It is no JSON.
    """
    value: Any = json.loads(document)
    keys: Any = cast("dict[str, Any]", value).get("keys") if isinstance(value, dict) else None
    if not isinstance(keys, list):
        raise DefinitionError('the JWKS document is not of the form {"keys": [{"kty": …}, …]}')
    return tuple(cast("Jwk", key) for key in cast("list[Any]", keys) if isinstance(key, dict))


def _fits(key: Jwk, algorithm: str) -> bool:
    """Return whether a key verifies an algorithm's signatures."""
    return (
        key.get("kty") == _ALGORITHMS[algorithm]
        and key.get("alg", algorithm) == algorithm
        and key.get("use", "sig") == "sig"
    )


class Tokens:
    """Checks tokens."""

    def __init__(self, config: JwtConfig, *, pause: float = _PAUSE) -> None:
        """Take tokens of an issuer.

        Raises:
            DefinitionError: The file of keys cannot be read, or holds none.
        """
        self._config = config
        if config.is_url:
            self._keys = IssuerKeys(_fetcher(config.jwks), pause=pause)
        else:
            self._keys = IssuerKeys(Path(config.jwks).read_bytes, known=_keys_of_file(config.jwks), pause=pause)

    async def check(self, token: str) -> tuple[str, frozenset[Role], float]:
        """Return a token's subject, its roles, and its end in seconds since the epoch.

        Raises:
            TokenRefused: It is not to be taken.
            KeysUnavailable: It cannot be checked now.
        """
        if len(token) > _MAX_TOKEN:
            raise TokenRefused("it is too long")
        try:
            header: Any = jwt.get_unverified_header(token)
        except (jwt.PyJWTError, ValueError, RecursionError):
            raise TokenRefused("it is no API key and no JSON web token") from None
        algorithm, kid = header.get("alg"), header.get("kid")
        if not isinstance(algorithm, str) or algorithm not in _ALGORITHMS:
            raise TokenRefused("its algorithm is not taken")
        key = await self._keys.find(kid, algorithm)
        if key is None:
            raise TokenRefused("its key is not known")
        claims = self._verified(token, key, algorithm)
        subject = claims.get(self._config.subject_claim)
        if not isinstance(subject, str) or not subject:
            raise TokenRefused(f"it names nobody: the claim {self._config.subject_claim!r} is no text")
        return subject, self._roles(claims), float(claims["exp"])

    def _verified(self, token: str, key: Jwk, algorithm: str) -> dict[str, Any]:
        try:
            return jwt.decode(
                token,
                jwt.PyJWK(dict(key), algorithm),
                algorithms=[algorithm],
                issuer=self._config.issuer,
                audience=self._config.audience,
                leeway=LEEWAY,
                options={"require": ["exp", "iss", "aud"], "enforce_minimum_key_length": True},
            )
        except jwt.ExpiredSignatureError:
            raise TokenRefused("it has expired") from None
        except (jwt.InvalidIssuerError, jwt.InvalidAudienceError):
            raise TokenRefused("it is of another issuer, or for somebody else") from None
        except jwt.MissingRequiredClaimError as error:
            raise TokenRefused(f"it has no claim {error.claim!r}") from None
        except (jwt.PyJWTError, ValueError, TypeError, OverflowError, RecursionError):
            raise TokenRefused("it is not valid") from None

    def _roles(self, claims: Mapping[str, Any]) -> frozenset[Role]:
        value = _claim(claims, self._config.roles_claim)
        given: Any = value.split() if isinstance(value, str) else value
        items = cast("list[Any]", given) if isinstance(given, list) else []
        values = {item for item in items if isinstance(item, str)}
        return frozenset(role for role, names in self._config.roles.items() if values.intersection(names))


def _claim(claims: Mapping[str, Any], name: str) -> Any:
    """Return a claim; where there is none of the whole name, its dots lead into objects."""
    if name in claims:
        return claims[name]
    value: Any = claims
    for part in name.split("."):
        value = cast("dict[str, Any]", value).get(part) if isinstance(value, dict) else None
    return value


def _keys_of_file(path: str) -> tuple[Jwk, ...]:
    try:
        keys = parse_jwks(Path(path).read_bytes())
    except OSError as error:
        raise DefinitionError(f"the issuer's keys cannot be read from {path!r}: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise DefinitionError(f"file {path!r} is no JSON") from None
    if not any(_fits(key, algorithm) for key in keys for algorithm in _ALGORITHMS):
        raise DefinitionError(f"file {path!r} holds no public key that verifies signatures (RSA, EC or OKP)")
    return keys


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follows no redirect, which could lead away from https."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> None:
        """Let the redirect be an error."""


def _fetcher(url: str) -> Callable[[], bytes]:
    opener = urllib.request.build_opener(_NoRedirect())

    def fetch() -> bytes:
        with opener.open(url, timeout=_TIMEOUT) as answer:
            document: bytes = answer.read(_MAX_BYTES + 1)
        if len(document) > _MAX_BYTES:
            raise DefinitionError("the JWKS document is too large")
        return document

    return fetch
