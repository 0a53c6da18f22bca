"""API keys: makes them, writes them into the file of `--auth`, and checks them. Only hashes are kept."""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import tomllib
from collections.abc import Iterable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, StringConstraints

from perdure.encryption.private_files import OWNER_ONLY, replace_file
from perdure.errors import DefinitionError

__all__ = ["PREFIX", "ApiKey", "ApiKeys", "Role", "append_key"]

PREFIX = "pdk_"
"""How each key starts, so that tools that look for leaked secrets know one."""

Role = Literal["operator", "approver"]
"""`operator`: may do everything, for every user. `approver`: may read every user's sessions, and answer in them."""

Subject = Annotated[str, StringConstraints(min_length=1, max_length=300)]

_NO_HASH = "0" * 64


class ApiKey(BaseModel):
    """An entry about an API key. The key itself is with whoever it was given to."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    id: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{8}$")]
    """Stands in the key, and may be shown."""
    subject: Subject
    """The user id that it is of."""
    roles: tuple[Role, ...] = ()
    sha256: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")] = Field(repr=False)
    """Hash of the whole key, which has 256 random bits: nobody finds it by trying."""
    created: AwareDatetime
    expires: AwareDatetime | None = None
    """From when on it opens nothing. Default: never."""

    @classmethod
    def new(
        cls, subject: str, *, now: datetime, roles: Iterable[Role] = (), lasts: timedelta | None = None
    ) -> tuple[ApiKey, str]:
        """Return the entry of a fresh key, and the key, which is secret.

        Raises:
            DefinitionError: The subject is empty, too long, or has characters that nobody can read.
        """
        if not subject.isprintable() or not 0 < len(subject) <= 300:
            raise DefinitionError(f"{subject!r} is no subject: name a user id of 1 to 300 printable characters")
        id = secrets.token_hex(4)
        text = f"{PREFIX}{id}_{secrets.token_urlsafe(32)}"
        now = now.replace(microsecond=0)
        key = cls(
            id=id,
            subject=subject,
            roles=tuple(sorted(set(roles))),
            sha256=_hash(text),
            created=now,
            expires=None if lasts is None else now + lasts,
        )
        return key, text

    @property
    def mark(self) -> str:
        """A mark that tells the key from another one that has its id later."""
        return self.sha256[:16]

    @property
    def block(self) -> str:
        """The key as it stands in the file."""
        lines = ["[[keys]]", f'id = "{self.id}"', f"subject = {json.dumps(self.subject, ensure_ascii=False)}"]
        if self.roles:
            lines.append(f"roles = {json.dumps(self.roles)}")
        lines += [f'sha256 = "{self.sha256}"', f"created = {self.created.isoformat()}"]
        if self.expires is not None:
            lines.append(f"expires = {self.expires.isoformat()}")
        return "\n".join(lines) + "\n"


class ApiKeys:
    """The keys that open a server."""

    def __init__(self, keys: Iterable[ApiKey]) -> None:
        self._keys = {key.id: key for key in keys}

    def find(self, text: str, now: datetime) -> ApiKey | None:
        """Return the key of a text, if it is one, and has not expired."""
        known = self.get(text.removeprefix(PREFIX).partition("_")[0], now)
        # Without a known id something is compared, too, so that the time tells nothing.
        fits = hmac.compare_digest(_hash(text), known.sha256 if known is not None else _NO_HASH)
        return known if fits else None

    def get(self, id: str, now: datetime) -> ApiKey | None:
        """Return the key of an id, if it has not expired."""
        known = self._keys.get(id)
        return known if known is not None and (known.expires is None or now < known.expires) else None


def append_key(path: Path, key: ApiKey) -> None:
    """Write a key's entry at the end of a file, which is made for its owner alone if it is not there.

    Raises:
        DefinitionError: The file cannot be read or written, or is no TOML that the key could be added to.
    """
    try:
        old = path.read_text() if path.exists() else ""
        mode = path.stat().st_mode & 0o777 if path.exists() else OWNER_ONLY
    except (OSError, UnicodeDecodeError) as error:
        raise DefinitionError(f"{str(path)!r} cannot be read: {_reason(error)}") from None
    text = f"{old.rstrip()}\n\n{key.block}" if old.strip() else key.block
    try:
        tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise DefinitionError(f"{str(path)!r} takes no key: {error}") from None
    try:
        replace_file(path, text, mode)
    except OSError as error:
        raise DefinitionError(f"the key cannot be written to {str(path)!r}: {error.strerror}") from error


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()


def _reason(error: Exception) -> str:
    return str(error.strerror) if isinstance(error, OSError) else "it is no text"
