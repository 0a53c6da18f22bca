"""What the tests of `--auth` share: keys of four people, and an issuer of tokens."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

from perdure.api.auth.api_keys import ApiKey, Role
from perdure.api.auth.config import AuthConfig, JwtConfig

ISSUER = "https://login.example/"
AUDIENCE = "perdure"


def api_key(subject: str, *roles: Role, now: datetime | None = None) -> tuple[ApiKey, str]:
    return ApiKey.new(subject, now=now or datetime.now(UTC), roles=roles)


class Keys:
    """API keys: of Ann and Bob, who are plain users, of an approver, and of an operator."""

    def __init__(self) -> None:
        made = {
            "ann": api_key("ann"),
            "bob": api_key("bob"),
            "eve": api_key("eve", "approver"),
            "root": api_key("root", "operator"),
        }
        self.known = tuple(key for key, _ in made.values())
        self.texts = {name: text for name, (_, text) in made.items()}
        self.auth = AuthConfig(keys=self.known)

    def of(self, name: str) -> dict[str, str]:
        """Return the header that shows a key."""
        return {"authorization": f"Bearer {self.texts[name]}"}


@cache
def _rsa(number: int) -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


@cache
def _ec() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


class Issuer:
    """Signs tokens."""

    def __init__(self) -> None:
        self.key = _rsa(0)
        self.stranger = _rsa(1)
        self.ec_key = _ec()

    def jwks(self, kids: Iterable[str] = ("one", "two")) -> bytes:
        public: dict[str, dict[str, Any]] = {
            "one": RSAAlgorithm.to_jwk(self.key.public_key(), as_dict=True),
            "two": ECAlgorithm.to_jwk(self.ec_key.public_key(), as_dict=True),
        }
        return json.dumps({"keys": [{**public[kid], "kid": kid, "use": "sig"} for kid in kids]}).encode()

    def claims(self, **claims: Any) -> dict[str, Any]:
        made = {"iss": ISSUER, "aud": AUDIENCE, "sub": "ann", "exp": int(time.time()) + 600, **claims}
        return {name: value for name, value in made.items() if value is not None}

    def token(self, *, key: Any = None, alg: str = "RS256", kid: str | None = "one", **claims: Any) -> str:
        headers = {} if kid is None else {"kid": kid}
        return jwt.encode(self.claims(**claims), key or self.key, alg, headers=headers)

    def auth(self, path: Path, **settings: Any) -> AuthConfig:
        """Return a config that takes the issuer's tokens, its keys in a file."""
        path.write_bytes(self.jwks())
        return AuthConfig(jwt=JwtConfig(issuer=ISSUER, audience=AUDIENCE, jwks=str(path), **settings))
