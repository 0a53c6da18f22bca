"""Stores of secrets: what is kept, for whom, and how it lies on the disk."""

from __future__ import annotations

import asyncio
import stat
from pathlib import Path
from typing import Any

import pytest

from perdure.credentials import FileCredentialStore, Owner
from perdure.credentials.sealing import EncryptedStore, Vault
from perdure.encryption.codec import EncryptionCodec, Key, KeyRing
from perdure.errors import CredentialError
from perdure.messages.keys import SessionKey

ANN, BOB = Owner("app", "ann"), Owner("app", "bob")
KEY = SessionKey("app", "ann", "s")
CREDENTIAL: dict[str, Any] = {"authType": "apiKey", "apiKey": "hush"}


@pytest.mark.parametrize("name", ["plain", "a/../b", ".", "..", ".hidden", "x" * 500, "Größe 1", "A", "a"])
async def test_a_value_is_its_owners_alone(tmp_path: Path, name: str) -> None:
    store = FileCredentialStore(tmp_path / "kept")
    await store.save(ANN, name, "old")
    await store.save(ANN, name, "hush")
    assert await FileCredentialStore(tmp_path / "kept").load(ANN, name) == "hush"
    assert await store.load(BOB, name) is None
    assert await store.load(Owner("other", "ann"), name) is None
    assert await store.load(ANN, f"{name}2") is None


@pytest.mark.parametrize("user", ["../ann", "a/b", "u" * 300, "Ann", "ann"])
async def test_files_are_inside_and_only_their_owner_reads_them(tmp_path: Path, user: str) -> None:
    store = FileCredentialStore(tmp_path / "kept")
    await store.save(Owner("app", user), "n", "hush")
    [file] = files(tmp_path)
    assert file.is_relative_to(tmp_path / "kept")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700


async def test_what_begins_so_is_forgotten(tmp_path: Path) -> None:
    store = FileCredentialStore(tmp_path)
    await asyncio.gather(*(store.save(ANN, name, name) for name in ("s1-a", "s1-b", "s2-a")))
    await store.delete(ANN, "s1-")
    await store.delete(BOB, "s2-")
    assert [await store.load(ANN, name) for name in ("s1-a", "s1-b", "s2-a")] == [None, None, "s2-a"]


async def test_it_is_encrypted_where_histories_are(tmp_path: Path) -> None:
    store, codec = FileCredentialStore(tmp_path), EncryptionCodec(KeyRing((Key.new("k"),)))
    await EncryptedStore(store, codec).save(ANN, "n", "hush")
    [file] = files(tmp_path)
    assert "hush" not in file.read_text()
    assert await EncryptedStore(store, codec).load(ANN, "n") == "hush"
    for other in (None, EncryptionCodec(KeyRing((Key.new("k"),)))):
        with pytest.raises(CredentialError, match="the keys here do not open it"):
            await EncryptedStore(store, other).load(ANN, "n")
    # What was kept before stays readable.
    await store.save(ANN, "m", "plain")
    assert await EncryptedStore(store, codec).load(ANN, "m") == "plain"


async def test_a_request_that_comes_again_gets_the_same_references(tmp_path: Path) -> None:
    vault = Vault(FileCredentialStore(tmp_path))
    first = await vault.seal(KEY, [CREDENTIAL, CREDENTIAL], request_id="r")
    assert await vault.seal(KEY, [CREDENTIAL, CREDENTIAL], request_id="r") == first
    assert first[0] != first[1]
    assert await vault.open(KEY, first) == [CREDENTIAL, CREDENTIAL]
    assert await vault.seal(KEY, CREDENTIAL) != await vault.seal(KEY, CREDENTIAL)


async def test_a_reference_is_worth_nothing_elsewhere(tmp_path: Path) -> None:
    vault = Vault(FileCredentialStore(tmp_path))
    told = await vault.seal(KEY, CREDENTIAL)
    # Another session of the user may read it: `user:` keys are shared.
    assert await vault.open(SessionKey("app", "ann", "other"), told) == CREDENTIAL
    with pytest.raises(CredentialError, match="the store here does not have it"):
        await vault.open(SessionKey("app", "bob", "s"), told)
    await vault.forget(KEY)
    with pytest.raises(CredentialError, match="or it was deleted"):
        await vault.open(KEY, told)


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]
