"""Encryption keys: reads them from a file or the environment, makes and adds them. No key is ever shown.

A key stands as `ID:KEY`, with the key's 32 bytes in base64; several are told apart by line ends, commas or spaces, and
what follows a `#` is a comment. The first key encrypts, and all of them decrypt.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from perdure.encryption.private_files import replace_file
from perdure.errors import EncryptionError

__all__ = ["KEYS_VARIABLE", "Key", "KeyRing", "add_key"]

KEYS_VARIABLE = "PERDURE_ENCRYPTION_KEYS"
"""The environment variable that holds keys."""

_KEY_BYTES = 32
_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


@dataclass(frozen=True)
class Key:
    """One key of AES-256."""

    id: str
    """Its name: letters, digits, `.`, `_` and `-`. It stands readable in each payload."""
    secret: bytes = field(repr=False)
    """32 bytes."""

    def __post_init__(self) -> None:
        """Check id and length.

        Raises:
            EncryptionError: The id has other characters, or the key another length.
        """
        if not _ID.fullmatch(self.id):
            raise EncryptionError(
                f"the id {self.id!r} of a key is no id: use letters, digits, '.', '_' and '-', 64 at the most"
            )
        if len(self.secret) != _KEY_BYTES:
            raise EncryptionError(
                f"key {self.id!r} has {len(self.secret)} bytes, and an AES-256 key has {_KEY_BYTES};"
                " `perdure keys new` makes one"
            )

    @classmethod
    def new(cls, id: str | None = None) -> Key:
        """Return a fresh key."""
        return cls(id or f"key-{secrets.token_hex(4)}", secrets.token_bytes(_KEY_BYTES))

    @property
    def line(self) -> str:
        """The key as it stands in a file. It is secret."""
        return f"{self.id}:{base64.b64encode(self.secret).decode()}"


@dataclass(frozen=True)
class KeyRing:
    """Keys in order: the first one encrypts, all of them decrypt."""

    keys: tuple[Key, ...]

    def __post_init__(self) -> None:
        """Check that there is a key, and none twice.

        Raises:
            EncryptionError: There is none, or two have one id.
        """
        if not self.keys:
            raise EncryptionError("there is no encryption key; `perdure keys new` makes one")
        ids = [key.id for key in self.keys]
        for id in ids:
            if ids.count(id) > 1:
                raise EncryptionError(f"two encryption keys have the id {id!r}; give each its own")

    @classmethod
    def parse(cls, text: str, where: str = "the encryption keys") -> KeyRing:
        """Return the keys of a text.

        Args:
            text: `ID:KEY` and so on.
            where: How messages name the text.

        Raises:
            EncryptionError: The text holds no keys, or something else. The message never quotes it.
        """
        lines = [line.partition("#")[0] for line in text.splitlines()]
        words = [word for line in lines for word in re.split(r"[\s,]+", line) if word]
        try:
            return cls(tuple(_parse(word, number, where) for number, word in enumerate(words, 1)))
        except EncryptionError as error:
            # The secret must not be found in a traceback's chain.
            raise EncryptionError(str(error) if str(error).startswith(where) else f"{where}: {error}") from None

    @classmethod
    def from_file(cls, path: Path) -> KeyRing:
        """Return the keys in a file.

        Raises:
            EncryptionError: It cannot be read, or holds no keys.
        """
        try:
            text = path.read_text()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is no text"
            raise EncryptionError(f"the encryption keys cannot be read from {str(path)!r}: {reason}") from None
        return cls.parse(text, f"file {str(path)!r}")

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> KeyRing | None:
        """Return the keys in `PERDURE_ENCRYPTION_KEYS`; `None` if it is not set.

        Raises:
            EncryptionError: It holds no keys.
        """
        text = (os.environ if environment is None else environment).get(KEYS_VARIABLE)
        return cls.parse(text, KEYS_VARIABLE) if text is not None else None

    @property
    def newest(self) -> Key:
        """The key that encrypts."""
        return self.keys[0]

    def find(self, id: str) -> Key | None:
        """Return the key of an id, if it is here."""
        return next((key for key in self.keys if key.id == id), None)


def _parse(word: str, number: int, where: str) -> Key:
    id, colon, encoded = word.partition(":")
    if not colon:
        raise EncryptionError(f"{where}: key {number} is not of the form ID:KEY")
    try:
        secret = base64.b64decode(encoded.replace("-", "+").replace("_", "/"), validate=True)
    except (binascii.Error, ValueError):
        raise EncryptionError(f"{where}: key {number} is no base64 behind its id") from None
    return Key(id, secret)


def add_key(path: Path, key: Key, *, standby: bool = False) -> KeyRing:
    """Write a key into a file that only its owner can read; what it holds is kept. Returns the keys there then.

    Args:
        path: The file; it is made if it is not there.
        key: The key, which becomes the first one, and so the one that encrypts.
        standby: Put it last instead: it decrypts only.

    Raises:
        EncryptionError: The file holds something else, has a key of this id, or cannot be written.
    """
    old = path.read_text() if path.exists() else ""
    kept = KeyRing.from_file(path).keys if old.strip() else ()
    ring = KeyRing((*kept, key) if standby else (key, *kept))
    body = old if not old or old.endswith("\n") else f"{old}\n"
    text = f"{body}{key.line}\n" if standby else f"{key.line}\n{body}"
    try:
        replace_file(path, text)
    except OSError as error:
        raise EncryptionError(f"the key cannot be written to {str(path)!r}: {error.strerror}") from error
    return ring
