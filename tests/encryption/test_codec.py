"""Keys and the codec: what they take, what they refuse, and that no secret is ever told."""

from __future__ import annotations

import base64
import json
import stat
from pathlib import Path

import pytest
from temporalio.api.common.v1 import Payload

from perdure.cli.options import Connection
from perdure.encryption.codec import EncryptionCodec
from perdure.encryption.keys import KEYS_VARIABLE, Key, KeyRing, add_key
from perdure.errors import EncryptionError
from perdure.temporal.payloads import data_converter
from tests.cli.support import Perdure, perdure

__all__ = ["perdure"]

OLD, NEW = Key("old", bytes(range(32))), Key("new", bytes(range(32, 64)))
SECRETS = [base64.b64encode(key.secret).decode() for key in (OLD, NEW)]
PLAIN = Payload(metadata={"encoding": b"json/plain"}, data=b'"a marker word"')


def codec(*keys: Key) -> EncryptionCodec:
    return EncryptionCodec(KeyRing(keys))


def test_a_payload_comes_back_and_its_text_is_gone() -> None:
    encrypted = codec(OLD).encrypt(PLAIN)
    assert b"marker" not in encrypted.SerializeToString()
    assert b"json/plain" not in encrypted.SerializeToString()
    assert dict(encrypted.metadata) == {
        "encoding": b"binary/encrypted",
        "encryption-cipher": b"AES-256-GCM",
        "encryption-key-id": b"old",
    }
    assert codec(OLD).decrypt(encrypted) == PLAIN
    assert codec(OLD).decrypt(PLAIN) == PLAIN


def test_no_two_encryptions_are_alike() -> None:
    assert len({codec(OLD).encrypt(PLAIN).data for _ in range(100)}) == 100


def test_the_first_key_encrypts_and_all_decrypt() -> None:
    old, both = codec(OLD), codec(NEW, OLD)
    assert both.encrypt(PLAIN).metadata["encryption-key-id"] == b"new"
    assert both.decrypt(old.encrypt(PLAIN)) == both.decrypt(both.encrypt(PLAIN)) == PLAIN


def test_a_missing_key_is_named_and_no_key_is_shown() -> None:
    with pytest.raises(EncryptionError, match=r"the key 'old', which is not among the keys here \('new'\)") as caught:
        codec(NEW).decrypt(codec(OLD).encrypt(PLAIN))
    assert not any(secret in str(caught.value) for secret in SECRETS)


@pytest.mark.parametrize("changed", ["data", "nonce", "encryption-key-id", "encryption-cipher", "cut", "empty"])
def test_whatever_is_changed_is_noticed(changed: str) -> None:
    """The metadata are authenticated, too: here another id leads to the very same key."""
    encrypted = codec(OLD).encrypt(PLAIN)
    match changed:
        case "data":
            encrypted.data = encrypted.data[:-1] + bytes([encrypted.data[-1] ^ 1])
        case "nonce":
            encrypted.data = bytes([encrypted.data[0] ^ 1]) + encrypted.data[1:]
        case "cut":
            encrypted.data = encrypted.data[:20]
        case "empty":
            encrypted.data = b""
        case _:
            encrypted.metadata[changed] = b"twin"
    with pytest.raises(EncryptionError, match="does not open it"):
        codec(OLD, Key("twin", OLD.secret)).decrypt(encrypted)


async def test_what_cannot_be_opened_says_so_when_it_is_read() -> None:
    encrypted = codec(OLD).encrypt(PLAIN)
    (left,) = await codec(NEW).decode([encrypted])
    for payload, words in [(left, r"'old', which is not among"), (encrypted, "'old', and no keys are given here")]:
        with pytest.raises(EncryptionError, match=words):
            data_converter.payload_converter.from_payloads([payload])
    assert await codec(NEW).decode([PLAIN]) == [PLAIN]


def test_keys_are_read_from_lines_commas_and_spaces() -> None:
    text = f"# the newest\n{NEW.line}  # since May\n\n{OLD.line}\n"
    assert KeyRing.parse(text) == KeyRing.parse(f"{NEW.line},{OLD.line}") == KeyRing((NEW, OLD))
    assert KeyRing.parse(text).newest == NEW
    assert KeyRing.from_environment({KEYS_VARIABLE: text}) == KeyRing((NEW, OLD))
    assert KeyRing.from_environment({}) is None
    urlsafe = f"x:{base64.urlsafe_b64encode(b'?>' * 16).decode()}"
    assert KeyRing.parse(urlsafe).newest.secret == b"?>" * 16


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "there is no encryption key"),
        ("# nothing", "there is no encryption key"),
        (SECRETS[0].rstrip("="), "key 1 is not of the form ID:KEY"),
        (f"{OLD.line} a:b!c", "key 2 is no base64"),
        ("short:c2hvcnQ=", "key 'short' has 5 bytes, and an AES-256 key has 32"),
        (f"a/b:{SECRETS[0]}", "the id 'a/b' of a key is no id"),
        (f"{OLD.line} {OLD.line}", "two encryption keys have the id 'old'"),
    ],
)
def test_malformed_keys_are_refused_and_not_quoted(text: str, words: str) -> None:
    with pytest.raises(EncryptionError, match=words) as caught:
        KeyRing.parse(text)
    assert str(caught.value).startswith("the encryption keys: ")
    assert not any(secret.rstrip("=") in str(caught.value) for secret in SECRETS)


def test_nothing_prints_a_secret() -> None:
    ring = KeyRing((NEW, OLD))
    for shown in (repr(ring), str(ring), repr(NEW), f"{codec(NEW)!r}"):
        assert not any(secret in shown for secret in SECRETS)
        assert "\\x" not in shown


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(EncryptionError, match="No such file"):
        KeyRing.from_file(tmp_path / "none")
    (tmp_path / "binary").write_bytes(bytes(range(256)))
    with pytest.raises(EncryptionError, match="it is no text"):
        KeyRing.from_file(tmp_path / "binary")


def test_a_key_is_added_to_a_file_that_only_its_owner_reads(tmp_path: Path) -> None:
    path = tmp_path / "keys.txt"
    add_key(path, OLD)
    path.write_text(f"# kept\n{path.read_text()}")
    path.chmod(0o644)
    assert add_key(path, NEW).newest == NEW
    assert add_key(path, Key("next", bytes(32)), standby=True).newest == NEW
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [key.id for key in KeyRing.from_file(path).keys] == ["new", "old", "next"]
    assert "# kept" in path.read_text()
    with pytest.raises(EncryptionError, match="two encryption keys have the id 'old'"):
        add_key(path, OLD)
    assert [file.name for file in tmp_path.iterdir()] == ["keys.txt"]


async def test_the_command_makes_and_lists_keys(perdure: Perdure, tmp_path: Path) -> None:
    printed = await perdure("keys", "new", "--id", "k1")
    assert KeyRing.parse(printed.out).newest.id == "k1"
    path = tmp_path / "keys.txt"
    done = await perdure("keys", "new", "--file", str(path), "--id", "2026-11")
    assert (done.code, done.out) == (0, f"key 2026-11 is in {path}; key 2026-11 encrypts, of 1\n")
    done = await perdure("keys", "new", "--file", str(path), "--standby", "--json")
    assert done.json_lines[0]["encrypts"] == "2026-11"
    listed = (await perdure("keys", "list", str(path), "--json")).json_lines
    assert [(key["id"], key["encrypts"]) for key in listed] == [("2026-11", True), (done.json_lines[0]["id"], False)]
    table = (await perdure("keys", "list", str(path))).out
    secrets = [base64.b64encode(key.secret).decode() for key in KeyRing.from_file(path).keys]
    assert not any(secret in table + done.out + json.dumps(listed) for secret in secrets)
    assert (await perdure("keys", "new", "--standby")).code == 64
    refused = await perdure("keys", "new", "--file", str(path), "--id", "2026-11")
    assert (refused.code, "two encryption keys" in refused.err) == (1, True)


async def test_the_command_line_takes_keys_from_a_file_or_the_environment(
    perdure: Perdure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "keys.txt"
    add_key(path, OLD)
    connection = Connection(address=None, namespace=None, profile=None, config_file=None, encryption_keys=path)
    assert isinstance(connection.config().payload_codec, EncryptionCodec)
    assert connection.flags == f" --encryption-keys {path}"
    monkeypatch.setenv(KEYS_VARIABLE, NEW.line)
    connection = Connection(address=None, namespace=None, profile=None, config_file=None, grpc_compression=False)
    assert connection.flags == " --no-grpc-compression"
    found = connection.config().payload_codec
    assert isinstance(found, EncryptionCodec)
    assert found.encrypt(PLAIN).metadata["encryption-key-id"] == b"new"
    both = await perdure("sessions", "app", "--payload-codec", "json:x")
    assert (both.code, "both say how to encrypt" in both.err) == (64, True)
    missing = await perdure("sessions", "app", "--encryption-keys", "no-such-file")
    assert (missing.code, "cannot be read from 'no-such-file'" in missing.err) == (1, True)
