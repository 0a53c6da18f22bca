"""Encrypts what Temporal stores: AES-256-GCM, with keys that can be replaced while sessions run.

A payload becomes one of the encoding `binary/encrypted`. Its metadata name the key and the cipher, and are
authenticated; its data are a nonce of 12 bytes, and the whole payload encrypted. Needs the extra `encryption`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from temporalio.api.common.v1 import Payload
from temporalio.converter import PayloadCodec

from perdure.encryption.keys import Key, KeyRing
from perdure.errors import EncryptionError
from perdure.temporal.payloads import CIPHER, ENCODING, ENCRYPTED, FAULT, KEY_ID

__all__ = ["EncryptionCodec", "Key", "KeyRing"]

_AES_GCM = b"AES-256-GCM"
_NONCE_BYTES = 12
"""Random ones: a key should encrypt no more than 2³² payloads."""


class EncryptionCodec(PayloadCodec):
    """A payload codec for `ConnectionConfig(payload_codec=EncryptionCodec(keys))`, the same for clients and workers.

    What it cannot open it leaves as it is, and reading the value raises `EncryptionError`, which names the key: so a
    client with a wrong key is refused, and cannot hold a session up.
    """

    def __init__(self, keys: KeyRing) -> None:
        """Make a codec.

        Args:
            keys: The first one encrypts, all of them decrypt.
        """
        self._ids = [key.id for key in keys.keys]
        self._newest = keys.newest.id.encode()
        self._ciphers = {key.id.encode(): AESGCM(key.secret) for key in keys.keys}

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Encrypt payloads with the newest key."""
        return [self.encrypt(payload) for payload in payloads]

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Decrypt those payloads that are encrypted and that the keys open."""
        return [self._try(payload) for payload in payloads]

    def encrypt(self, payload: Payload) -> Payload:
        """Return a payload encrypted with the newest key."""
        metadata = {ENCODING: ENCRYPTED, CIPHER: _AES_GCM, KEY_ID: self._newest}
        nonce = os.urandom(_NONCE_BYTES)
        data = self._ciphers[self._newest].encrypt(nonce, payload.SerializeToString(), _authenticated(metadata))
        return Payload(metadata=metadata, data=nonce + data)

    def decrypt(self, payload: Payload) -> Payload:
        """Decrypt a payload; one that is not encrypted is returned as it is.

        Raises:
            EncryptionError: The key is not here, or does not fit, or the payload was changed.
        """
        if payload.metadata.get(ENCODING) != ENCRYPTED:
            return payload
        id = payload.metadata.get(KEY_ID, b"")
        cipher = self._ciphers.get(id)
        if cipher is None:
            raise EncryptionError(
                f"a payload is encrypted with the key {_text(id)!r}, which is not among the keys here"
                f" ({', '.join(map(repr, self._ids))}); add it to them"
            )
        metadata = {name: payload.metadata.get(name, b"") for name in (ENCODING, CIPHER, KEY_ID)}
        nonce, data = payload.data[:_NONCE_BYTES], payload.data[_NONCE_BYTES:]
        try:
            return Payload.FromString(cipher.decrypt(nonce, data, _authenticated(metadata)))
        except (InvalidTag, ValueError):
            raise EncryptionError(
                f"a payload is encrypted with a key named {_text(id)!r}, and the key of that name here does not open"
                " it: it is another key, or the payload was changed"
            ) from None

    def _try(self, payload: Payload) -> Payload:
        try:
            return self.decrypt(payload)
        except EncryptionError as error:
            # The converter says so to whoever reads the value (`payloads.py`).
            left = Payload()
            left.CopyFrom(payload)
            left.metadata[FAULT] = str(error).encode()
            return left


def _authenticated(metadata: dict[str, bytes]) -> bytes:
    """Return metadata as the bytes that are authenticated; no two of them give the same."""
    parts = [part for name in sorted(metadata) for part in (name.encode(), metadata[name])]
    return b"".join(len(part).to_bytes(4, "big") + part for part in parts)


def _text(id: bytes) -> str:
    return id.decode(errors="replace")
