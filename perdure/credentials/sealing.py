"""Keeps secrets out of what goes into a history, and gives them to the code that needs them."""

from __future__ import annotations

import hashlib
import secrets as random
import uuid
from base64 import b64decode, b64encode
from collections.abc import Iterable
from typing import Any

from temporalio.api.common.v1 import Payload
from temporalio.client import Client
from temporalio.converter import PayloadCodec

from perdure.credentials.store import CredentialStore, Owner
from perdure.errors import CredentialError
from perdure.journal.secrets import REFERENCE, opened, references, sealed
from perdure.messages.keys import SessionKey
from perdure.redaction import RedactingCodec

_SEALED = "sealed:"
_ENCODING = "encoding"
_PLAIN = b"binary/plain"


class EncryptedStore(CredentialStore):
    """A store whose values are encrypted as the histories of a connection are."""

    def __init__(self, store: CredentialStore, codec: PayloadCodec | None) -> None:
        """Wrap a store; without a codec nothing is encrypted, but what is can then not be read."""
        self._store = store
        self._codec = codec

    async def save(self, owner: Owner, name: str, value: str) -> None:  # noqa: D102 -- as in the base class
        if self._codec is not None:
            [payload] = await self._codec.encode([Payload(metadata={_ENCODING: _PLAIN}, data=value.encode())])
            value = _SEALED + b64encode(payload.SerializeToString()).decode()
        await self._store.save(owner, name, value)

    async def load(self, owner: Owner, name: str) -> str | None:
        """Return a value, decrypted.

        Raises:
            CredentialError: The keys here do not open it.
        """
        value = await self._store.load(owner, name)
        if value is None or not value.startswith(_SEALED):
            return value
        payload = Payload.FromString(b64decode(value.removeprefix(_SEALED)))
        if self._codec is not None:
            [payload] = await self._codec.decode([payload])
        if payload.metadata.get(_ENCODING) != _PLAIN:
            raise CredentialError(
                f"a credential of user {owner.user!r} is encrypted as histories are, and the keys here do not open it;"
                " give those of the workers, by --encryption-keys, PERDURE_ENCRYPTION_KEYS, or the connection's"
                " payload_codec"
            )
        return payload.data.decode()

    async def delete(self, owner: Owner, prefix: str) -> None:  # noqa: D102
        await self._store.delete(owner, prefix)


class Vault:
    """Puts the secrets of sessions into a store."""

    def __init__(self, store: CredentialStore) -> None:
        """Use a store."""
        self._store = store

    async def seal(self, key: SessionKey, value: Any, *, request_id: str | None = None) -> Any:
        """Return JSON with references in the place of secrets, which are kept.

        Args:
            key: The session that it belongs to.
            value: The JSON.
            request_id: Of a client's request, which may come again: it gets the same references then.
        """
        kept: dict[str, str] = {}

        def keep(secret: str) -> str:
            number = f"{request_id}/{len(kept)}" if request_id else random.token_hex(16)
            name = f"{_prefix(key)}{uuid.uuid5(uuid.NAMESPACE_OID, f'{_prefix(key)}/{number}').hex}"
            kept[name] = secret
            return f"{REFERENCE}{name}"

        told = sealed(value, keep)
        for name, secret in kept.items():
            await self._store.save(_owner(key), name, secret)
        return told

    async def open(self, key: SessionKey, value: Any) -> Any:
        """Return JSON with its secrets.

        Raises:
            CredentialError: One is not in the store.
        """
        return opened(value, await self.secrets(key, references(value)))

    async def secrets(self, key: SessionKey, names: Iterable[str]) -> dict[str, str]:
        """Return secrets, as JSON, by the names by which a session refers to them.

        Raises:
            CredentialError: One is not in the store.
        """
        found: dict[str, str] = {}
        for name in sorted(names):
            secret = await self._store.load(_owner(key), name)
            if secret is None:
                raise CredentialError(
                    f"a credential of user {key.user!r} is kept outside of the history, and the store here does not"
                    " have it: give every worker and the HTTP API the same --credentials; or it was deleted"
                )
            found[name] = secret
        return found

    async def forget(self, key: SessionKey) -> None:
        """Delete a session's secrets."""
        await self._store.delete(_owner(key), _prefix(key))


def encrypted_store(client: Client, store: CredentialStore | None) -> CredentialStore | None:
    """Return a store whose values are encrypted as the histories of a client's connection are, if they are."""
    return None if store is None else EncryptedStore(store, cipher_of(client))


def vault_of(client: Client, store: CredentialStore | None) -> Vault | None:
    """Return a vault for a client's sessions; `None` without a store."""
    encrypted = encrypted_store(client, store)
    return None if encrypted is None else Vault(encrypted)


def cipher_of(client: Client) -> PayloadCodec | None:
    """Return what encrypts the histories of a client's connection, if they are."""
    codec = client.data_converter.payload_codec
    return codec.behind if isinstance(codec, RedactingCodec) else codec


def _owner(key: SessionKey) -> Owner:
    return Owner(key.app, key.user)


def _prefix(key: SessionKey) -> str:
    return f"{hashlib.sha256(key.session.encode()).hexdigest()[:16]}-"
