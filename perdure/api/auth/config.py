"""The settings in the file of `--auth`: API keys, JSON web tokens, sign-in."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, field_validator

from perdure.api.auth.api_keys import ApiKey, Role
from perdure.errors import DefinitionError

__all__ = ["AuthConfig", "JwtConfig", "SignInConfig", "files_of", "read_auth"]

_LEAST_SECRET = 32
_LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")
_NAME = re.compile(r"[a-z_\d\[\]]{1,20}")
_STRICT = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

Text = Annotated[str, StringConstraints(min_length=1)]


def _default_roles() -> dict[Role, tuple[str, ...]]:
    return {"operator": ("operator",), "approver": ("approver",)}


class JwtConfig(BaseModel):
    """Settings of JSON web tokens: signed by a key of the issuer, for this audience, and with an end."""

    model_config = _STRICT

    issuer: Text
    """What the claim `iss` must be."""
    audience: Text
    """What the claim `aud` must be or hold."""
    jwks: Text
    """The issuer's public keys: a URL (https, or http on this machine), or a file."""
    subject_claim: Text = "sub"
    """The claim that is the user id."""
    roles_claim: Text = "roles"
    """The claim that holds the roles: a list, or words in one text. A dot leads into an object: `realm_access.roles`.
    """
    roles: dict[Role, tuple[str, ...]] = Field(default_factory=_default_roles)
    """For each role, which values of the claim give it. Default: those of its own name."""

    @field_validator("jwks")
    @classmethod
    def _check_url(cls, value: str) -> str:
        parts = urlsplit(value)
        if parts.scheme == "http" and parts.hostname not in _LOCAL:
            raise ValueError("keys that come by http can be replaced on their way; name an https URL, or a file")
        return value

    @property
    def is_url(self) -> bool:
        """Whether the keys are fetched."""
        return self.jwks.startswith(("https://", "http://"))


class SignInConfig(BaseModel):
    """Settings of the sign-in of browsers, which get a cookie for their key or token."""

    model_config = _STRICT

    hours: float = Field(default=12, gt=0, le=720)
    """How long a sign-in lasts; never longer than its key or token. Default: 12."""
    secret_file: str | None = None
    """File of the secret that signs cookies, the same for all processes that serve one address. Default: a fresh
    secret at each start, which ends all sign-ins."""
    secret: bytes | None = Field(default=None, repr=False, exclude=True)
    """What the file holds."""


class AuthConfig(BaseModel):
    """Settings of access. Every request needs an API key, a token, or the cookie of a sign-in."""

    model_config = _STRICT

    keys: tuple[ApiKey, ...] = Field(default=(), repr=False)
    """API keys, as `perdure api-keys new` writes them."""
    jwt: JwtConfig | None = None
    """Tokens. Default: none are taken."""
    sign_in: SignInConfig = SignInConfig()
    """Sign-ins of browsers."""

    @field_validator("keys")
    @classmethod
    def _check_keys(cls, keys: tuple[ApiKey, ...]) -> tuple[ApiKey, ...]:
        seen = set[str]()
        for key in keys:
            if key.id in seen:
                raise ValueError(f"two keys have the id {key.id!r}")
            seen.add(key.id)
        return keys


def read_auth(path: Path) -> AuthConfig:
    """Read the settings of access from a file.

    Raises:
        DefinitionError: It cannot be read, says something else, or lets nobody in. The message quotes nothing of it
            but names of fields, ids of keys and the path of the issuer's, so it may be logged.
    """
    try:
        value = tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise DefinitionError(f"{str(path)!r} cannot be read: {reason}") from None
    except (ValueError, RecursionError) as error:
        raise DefinitionError(f"{str(path)!r} is no TOML: {_QUOTED.sub('…', str(error))}") from None
    try:
        config = AuthConfig.model_validate(_with_secret(value, path.parent))
    except ValidationError as error:
        raise DefinitionError(f"{str(path)!r}: {'; '.join(map(_problem, error.errors()))}") from None
    if not config.keys and config.jwt is None:
        raise DefinitionError(
            f"{str(path)!r} lets nobody in; add a key by `perdure api-keys new {path} --subject USER`, or a table [jwt]"
        )
    if config.jwt is not None and not config.jwt.is_url:
        jwt = config.jwt.model_copy(update={"jwks": str(path.parent / config.jwt.jwks)})
        config = config.model_copy(update={"jwt": jwt})
    return config


def files_of(path: Path, config: AuthConfig) -> tuple[Path, ...]:
    """Return the files that settings of access were read from: the file itself, and those that it names."""
    secret = [path.parent / config.sign_in.secret_file] if config.sign_in.secret_file is not None else []
    keys = [Path(config.jwt.jwks)] if config.jwt is not None and not config.jwt.is_url else []
    return path, *secret, *keys


def _with_secret(value: dict[str, Any], folder: Path) -> dict[str, Any]:
    sign_in: Any = value.get("sign_in")
    if not isinstance(sign_in, dict):
        return value
    given: dict[str, Any] = dict(sign_in)  # pyright: ignore[reportUnknownArgumentType] -- TOML
    if "secret" in given:
        raise DefinitionError("sign_in.secret: the secret stands in a file of its own; name it as secret_file")
    name = given.get("secret_file")
    if not isinstance(name, str):
        return value
    try:
        secret = (folder / name).read_bytes().strip()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "its path is none"
        raise DefinitionError(f"sign_in.secret_file: the file that it names cannot be read: {reason}") from None
    if len(secret) < _LEAST_SECRET:
        raise DefinitionError(
            f"sign_in.secret_file: the file that it names has less than {_LEAST_SECRET} bytes;"
            " `openssl rand -hex 32` makes a secret"
        )
    return {**value, "sign_in": {**given, "secret": secret}}


def _problem(error: Any) -> str:
    where = ".".join(map(_name, error["loc"]))
    return f"{where}: {error['msg']}" if where else str(error["msg"])


def _name(part: object) -> str:
    """Return a part of a field's name; what no field is called could be a secret that stands in the wrong place."""
    name = str(part)
    return name if _NAME.fullmatch(name) else "…"
