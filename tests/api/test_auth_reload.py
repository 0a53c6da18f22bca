"""The file of `--auth` changes while the server runs: over real HTTP, without a restart."""

from __future__ import annotations

import asyncio
import json
import os
import re
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest
from temporalio.client import Client

from perdure.api.app import create_app
from perdure.api.auth import watch as auth_watch
from perdure.api.auth.api_keys import ApiKey
from perdure.api.auth.authenticator import COOKIE
from perdure.api.auth.config import AuthConfig, read_auth
from perdure.api.auth.identity import IdentityOf
from perdure.api.auth.watch import EVERY, AuthWatch
from perdure.api.base.config import ApiConfig
from perdure.encryption.private_files import replace_file
from perdure.errors import DefinitionError
from perdure.serving.http_server import serve
from perdure.serving.sockets import listen, url_of
from tests.api.auth_support import AUDIENCE, ISSUER, Issuer, api_key
from tests.api.support import Api, api_and_worker, served

SOON = 20.0
"""Seconds that a busy machine may take for what is promised within some."""

NOT_TAKEN_UP = "the file of --auth is not taken up"


class Door:
    """The file of a server, the keys in it, and a client of the server."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.keys: dict[str, ApiKey] = {}
        self.texts: dict[str, str] = {}
        self.more = ""
        self.http = httpx2.AsyncClient(trust_env=False)

    def add(self, *names: str, **given: Any) -> None:
        for name in names:
            self.keys[name], self.texts[name] = api_key(name, **given)

    @property
    def text(self) -> str:
        return "\n".join([self.more, *(key.block for key in self.keys.values())])

    def write(self) -> None:
        """Replace the file as a whole."""
        replace_file(self.file, self.text)

    def revoke(self, name: str) -> None:
        del self.keys[name]
        self.write()

    def header(self, name: str) -> dict[str, str]:
        return {"authorization": f"Bearer {self.texts[name]}"}

    async def who(self, name: str) -> tuple[int, list[str]]:
        return await self.asked(self.header(name))

    async def asked(self, headers: dict[str, str]) -> tuple[int, list[str]]:
        """Return the status, and as whom the server knows the sender."""
        answer = await self.http.get("/who", headers=headers)
        return answer.status_code, answer.json() if answer.status_code == 200 else []

    async def signed_in(self, credential: str) -> dict[str, str]:
        """Return the cookie of a sign-in."""
        answer = await self.http.post(
            "/sign-in", data={"credential": credential}, headers={"origin": f"{self.http.base_url}".rstrip("/")}
        )
        assert answer.status_code == 303, answer.text
        self.http.cookies.clear()
        found = re.match(rf"{COOKIE}=([^;]+);", answer.headers["set-cookie"])
        assert found is not None
        return {"cookie": f"{COOKIE}={found[1]}"}


async def becomes(wanted: Any, ask: Callable[[], Awaitable[Any]]) -> None:
    """Wait until an answer is the wanted one."""
    until = time.monotonic() + SOON
    while (last := await ask()) != wanted:
        assert time.monotonic() < until, last
        await asyncio.sleep(0.1)


@asynccontextmanager
async def opened(door: Door) -> AsyncGenerator[Door]:
    """Serve an API of the file that tells who asks; without Temporal, which these requests do not need."""
    lazy = await Client.connect("127.0.0.1:1", lazy=True)
    app = create_app(lazy, config=ApiConfig(auth=read_auth(door.file), auth_file=door.file))

    @app.get("/who")
    async def who(identity: IdentityOf) -> list[str]:
        return [str(identity.subject), *sorted(identity.roles)]

    stop = asyncio.Event()
    listener = listen("127.0.0.1", 0)
    serving = asyncio.create_task(serve(app, listener, stop))
    try:
        async with httpx2.AsyncClient(base_url=url_of(listener), timeout=30, trust_env=False) as door.http:
            yield door
    finally:
        stop.set()
        await serving


@pytest.fixture
async def door(tmp_path: Path) -> AsyncGenerator[Door]:
    """A server that lets in Ann and Bob."""
    door = Door(tmp_path / "auth.toml")
    door.add("ann", "bob")
    door.write()
    async with opened(door):
        yield door


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at files more often than each second, so that the tests wait less."""
    monkeypatch.setattr(auth_watch, "EVERY", 0.05)


def complaints(caplog: pytest.LogCaptureFixture) -> list[str]:
    records = [record for record in caplog.records if record.getMessage().startswith(NOT_TAKEN_UP)]
    assert all(record.levelname == "ERROR" for record in records)
    return [str(vars(record)["reason"]) for record in records]


async def test_a_key_that_is_taken_back_ends_at_once_with_its_sign_ins(
    door: Door, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "perdure")
    ann, bob = await door.signed_in(door.texts["ann"]), await door.signed_in(door.texts["bob"])
    assert (await door.asked(ann), await door.asked(bob)) == ((200, ["ann"]), (200, ["bob"]))
    id = door.keys["ann"].id
    door.revoke("ann")
    await asyncio.sleep(EVERY + 0.1)
    # After a pause nobody gets through on what was read before it, not even who comes at the same moment.
    found = await asyncio.gather(*(door.who("ann") for _ in range(5)), *(door.asked(ann) for _ in range(5)))
    assert [status for status, _ in found] == [401] * 10
    assert (await door.who("bob"), await door.asked(bob)) == ((200, ["bob"]), (200, ["bob"]))
    [record] = [record for record in caplog.records if "read anew" in record.getMessage()]
    assert (vars(record)["removed"], vars(record)["added"], vars(record)["changed"]) == ([id], [], [])
    assert not complaints(caplog)


@pytest.mark.usefixtures("quick")
async def test_a_key_is_added_and_its_roles_are_changed(door: Door) -> None:
    door.add("eve")
    door.write()
    await becomes((200, ["eve"]), lambda: door.who("eve"))
    cookie = await door.signed_in(door.texts["eve"])
    for roles in (("approver",), ("operator",), ()):
        door.keys["eve"] = door.keys["eve"].model_copy(update={"roles": roles})
        door.write()
        await becomes((200, ["eve", *roles]), lambda: door.who("eve"))
        assert await door.asked(cookie) == (200, ["eve", *roles])


async def test_a_file_that_is_edited_in_place_is_noticed_though_its_size_and_time_stay(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an editor writes; `operator` and `approver` have one length, and times can be set."""
    # As if the file were old: it is not read again for its youth.
    monkeypatch.setattr(auth_watch, "_COARSE", 0.0)
    door.keys["ann"] = door.keys["ann"].model_copy(update={"roles": ("operator",)})
    door.write()
    await becomes((200, ["ann", "operator"]), lambda: door.who("ann"))
    before = door.file.stat()
    door.file.write_text(door.file.read_text().replace("operator", "approver"))
    os.utime(door.file, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = door.file.stat()
    assert (after.st_ino, after.st_size, after.st_mtime_ns) == (before.st_ino, before.st_size, before.st_mtime_ns)
    await becomes((200, ["ann", "approver"]), lambda: door.who("ann"))


@pytest.mark.usefixtures("quick")
async def test_of_a_link_the_target_counts(door: Door, tmp_path: Path) -> None:
    """As orchestrators mount files: a link to a folder is replaced."""
    door.revoke("ann")
    await becomes(401, lambda: status_of(door, "ann"))
    for version in ("one", "two"):
        (tmp_path / version).mkdir()
    (tmp_path / "one" / "auth.toml").write_text(door.text)
    (tmp_path / "current").symlink_to("one")
    door.file.unlink()
    door.file.symlink_to(Path("current") / "auth.toml")
    await becomes(200, lambda: status_of(door, "bob"))
    door.add("eve")
    (tmp_path / "two" / "auth.toml").write_text(door.text)
    (tmp_path / "next").symlink_to("two")
    (tmp_path / "next").replace(tmp_path / "current")
    await becomes(200, lambda: status_of(door, "eve"))


async def status_of(door: Door, name: str) -> int:
    return (await door.who(name))[0]


def as_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


def as_pipe(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


SECRET = "pdk_0a0a0a0a_" + "Zx9" * 14

BREAKS: list[tuple[Callable[[Path], Any], str]] = [
    (lambda file: file.unlink(), "cannot be read: No such file"),
    (as_folder, "is no regular file"),
    (as_pipe, "is no regular file"),
    (lambda file: file.write_text(""), "lets nobody in"),
    (lambda file: file.write_text(f"{file.read_text()}\n[jwt\n"), "is no TOML"),
    (lambda file: file.write_text(f"{file.read_text()}\n[{SECRET}]\n[{SECRET}]\n"), "is no TOML"),
    (lambda file: file.write_text("a = " + "[" * 100_000), "is no TOML"),
    (lambda file: file.write_bytes(b"\xff\xfe"), "it is no text"),
    (lambda file: file.write_text(f"{file.read_text()}\n{SECRET} = 1\n"), "…: Extra inputs"),
    (lambda file: file.write_text(f'{file.read_text()}\n[sign_in]\nsecret_file = "{SECRET}"\n'), "cannot be read: No"),
    (lambda file: file.write_text(f'{file.read_text()}\n[sign_in]\nsecret_file = "\\u0000"\n'), "cannot be read: its"),
    (lambda file: file.write_text(f"{file.read_text()}\n[jwt]\n"), "jwt.issuer: Field required"),
]


@pytest.mark.usefixtures("quick")
async def test_a_file_that_is_broken_changes_nothing_is_told_once_and_can_be_mended(
    door: Door, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "perdure")
    cookie = await door.signed_in(door.texts["ann"])
    for number, (break_, reason) in enumerate(BREAKS):
        caplog.clear()
        break_(door.file)
        await becomes(True, lambda: told(door, caplog))
        for _ in range(4):
            assert await door.who("ann") == (200, ["ann"]), reason
            assert await door.asked(cookie) == (200, ["ann"]), reason
            await asyncio.sleep(0.03)
        assert (await door.http.get("/livez")).status_code == 200
        [said] = complaints(caplog)
        assert (reason in said, str(door.file) in said or "sign_in" in said) == (True, True), said
        kept = json.dumps([vars(record) for record in caplog.records], default=str)
        assert not any(text in kept for text in (SECRET, *door.texts.values(), *(k.sha256 for k in door.keys.values())))
        if door.file.is_dir():
            door.file.rmdir()
        door.add(f"new{number}")
        door.write()
        await becomes(200, lambda name=f"new{number}": status_of(door, name))


async def told(door: Door, caplog: pytest.LogCaptureFixture) -> bool:
    await door.who("bob")
    return bool(complaints(caplog))


@pytest.mark.usefixtures("quick")
async def test_what_is_put_back_as_it_was_is_in_order_again(door: Door, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "perdure")
    away = door.file.with_name("away")
    for _ in range(2):
        caplog.clear()
        door.file.rename(away)
        await becomes(True, lambda: told(door, caplog))
        away.rename(door.file)
        await becomes(True, lambda: mended(door, caplog))
        assert len(complaints(caplog)) == 1


async def mended(door: Door, caplog: pytest.LogCaptureFixture) -> bool:
    assert await door.who("bob") == (200, ["bob"])
    return any("read anew" in record.getMessage() for record in caplog.records)


@pytest.mark.usefixtures("quick")
async def test_a_key_that_is_replaced_under_its_id_ends_its_sign_ins(door: Door) -> None:
    cookie = await door.signed_in(door.texts["ann"])
    other = api_key("ann")[0]
    door.keys["ann"] = door.keys["ann"].model_copy(update={"sha256": other.sha256})
    door.write()
    await becomes(401, lambda: status_of(door, "ann"))
    assert (await door.asked(cookie))[0] == 401


@pytest.mark.usefixtures("quick")
async def test_the_secret_of_cookies_may_change_or_be_missing(door: Door, caplog: pytest.LogCaptureFixture) -> None:
    """A file that comes late is found, though the one that names it stays as it is."""
    own = await door.signed_in(door.texts["ann"])
    secret = door.file.with_name("secret")
    door.more = '[sign_in]\nsecret_file = "secret"\n'
    door.write()
    await becomes(True, lambda: told(door, caplog))
    assert (await door.asked(own))[0] == 200
    secret.write_text("a" * 32)
    await becomes((401, []), lambda: door.asked(own))
    kept = await door.signed_in(door.texts["ann"])
    assert (await door.asked(kept))[0] == 200
    replace_file(secret, "b" * 32)
    await becomes((401, []), lambda: door.asked(kept))


@pytest.mark.usefixtures("quick")
async def test_an_issuer_may_be_added_changed_and_removed(door: Door) -> None:
    issuer = Issuer()
    token = {"authorization": f"Bearer {issuer.token(roles=['boss'])}"}
    jwks = door.file.with_name("jwks.json")
    jwks.write_bytes(issuer.jwks())
    assert (await door.asked(token))[0] == 401
    settings = f'[jwt]\nissuer = "{ISSUER}"\naudience = "{AUDIENCE}"\njwks = "jwks.json"\n'
    door.more = settings
    door.write()
    await becomes((200, ["ann"]), lambda: door.asked(token))
    cookie = await door.signed_in(issuer.token(roles=["boss"]))
    assert await door.asked(cookie) == (200, ["ann"])
    # Rights of a token's sign-in stand in the cookie, so it ends with the settings that gave them.
    door.more = f'{settings}[jwt.roles]\noperator = ["boss"]\n'
    door.write()
    await becomes((200, ["ann", "operator"]), lambda: door.asked(token))
    assert (await door.asked(cookie))[0] == 401
    # A key that the issuer takes back is forgotten at once.
    replace_file(jwks, issuer.jwks(["two"]).decode())
    await becomes((401, []), lambda: door.asked(token))
    replace_file(jwks, issuer.jwks().decode())
    await becomes((200, ["ann", "operator"]), lambda: door.asked(token))
    door.more = ""
    door.write()
    await becomes((401, []), lambda: door.asked(token))
    assert await door.who("ann") == (200, ["ann"])


# Without HTTP


@pytest.mark.usefixtures("quick")
async def test_keys_that_were_fetched_are_kept_for_as_long_as_the_settings_stay(tmp_path: Path) -> None:
    door = Door(tmp_path / "auth.toml")
    door.add("ann")
    url = "https://login.example/keys"
    door.more = f'[jwt]\nissuer = "{ISSUER}"\naudience = "a"\njwks = "{url}"\n'
    door.write()
    watch = AuthWatch(read_auth(door.file), door.file)
    first = await watch.current()
    door.add("bob")
    door.write()
    await becomes(True, lambda: differs(watch, first))
    second = await watch.current()
    assert second.tokens is first.tokens
    door.more = door.more.replace('"a"', '"b"')
    door.write()
    await becomes(True, lambda: has_audience(watch, "b"))
    assert (await watch.current()).tokens is not first.tokens


async def differs(watch: AuthWatch, before: Any) -> bool:
    return (await watch.current()).config != before.config


async def has_audience(watch: AuthWatch, audience: str) -> bool:
    jwt = (await watch.current()).config.jwt
    return jwt is not None and jwt.audience == audience


async def test_a_file_that_stays_is_read_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auth_watch, "EVERY", 0.0)
    door = Door(tmp_path / "auth.toml")
    door.add("ann")
    door.write()
    watch = AuthWatch(read_auth(door.file), door.file)
    assert await watch.current() is not await watch.current()
    # As if the file were old already, and looked at again: nothing can be written unseen.
    monkeypatch.setattr(auth_watch, "_COARSE", -1.0)
    settled = await watch.current()
    assert [await watch.current() for _ in range(3)] == [settled] * 3


async def test_a_disk_that_does_not_answer_holds_requests_up_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(auth_watch, "EVERY", 0.0)
    monkeypatch.setattr(auth_watch, "_PATIENCE", 0.2)
    door = Door(tmp_path / "auth.toml")
    door.add("ann", "bob")
    door.write()
    watch = AuthWatch(read_auth(door.file), door.file)
    # A secret that is read from a pipe without a writer hangs as a lost network disk does.
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    door.more = '[sign_in]\nsecret_file = "pipe"\n'
    door.revoke("bob")
    began = time.monotonic()
    for _ in range(20):
        assert len((await watch.current()).config.keys) == 2
    assert time.monotonic() - began < 2
    [said] = complaints(caplog)
    assert "takes too long" in said
    with pipe.open("w") as writer:
        writer.write("s" * 32)
    pipe.unlink()
    pipe.write_text("s" * 32)
    await becomes(True, lambda: has_keys(watch, 1))


async def has_keys(watch: AuthWatch, count: int) -> bool:
    return len((await watch.current()).config.keys) == count


async def test_what_can_be_read_but_once_is_not_looked_at_again(tmp_path: Path) -> None:
    """As in `--auth <(decrypt auth.toml)`."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    key, _ = api_key("ann")
    watch = AuthWatch(AuthConfig(keys=(key,)), pipe)
    assert (watch.follows, (await watch.current()).config.keys) == (False, (key,))


def test_a_file_alone_lets_nobody_in() -> None:
    with pytest.raises(DefinitionError, match="read_auth"):
        ApiConfig(auth_file=Path("auth.toml"))


# Streams


@pytest.fixture(scope="module")
async def worked(client: Client) -> AsyncGenerator[Api]:
    async with api_and_worker(client) as running:
        yield running


@pytest.mark.server
async def test_streams_end_with_the_key_or_with_its_rights(client: Client, worked: Api, tmp_path: Path) -> None:
    """Of those who follow: Ann's key is taken back, Root is no operator any more, Bob's file changed around him."""
    door = Door(tmp_path / "auth.toml")
    door.more = '[sign_in]\nsecret_file = "secret"\n'
    (tmp_path / "secret").write_text("s" * 32)
    door.add("ann", "bob")
    door.add("root", now=datetime.now(UTC))
    door.keys["root"] = door.keys["root"].model_copy(update={"roles": ("operator",)})
    door.write()
    sessions = {name: await created(worked, name) for name in ("ann", "bob")}
    auth = read_auth(door.file)
    async with served(client, worked.definition, worked.model, auth=auth, auth_file=door.file) as api:
        door.http = api.http
        cookie = await door.signed_in(door.texts["ann"])
        paths = {name: f"/v1{api.path(sessions[name], user=name)}/events/stream" for name in ("ann", "bob")}
        async with (
            api.http.stream("GET", paths["ann"], headers=door.header("ann")) as by_key,
            api.http.stream("GET", paths["ann"], headers=cookie) as by_cookie,
            api.http.stream("GET", paths["bob"], headers=door.header("root")) as by_role,
            api.http.stream("GET", paths["bob"], headers=door.header("bob")) as lasting,
            api.http.stream(
                "POST", "/run_sse", json=api.body(sessions["ann"], "wait"), headers=door.header("ann")
            ) as run,
        ):
            await worked.model.gate("wait").reached()
            page = f"/inbox{api.path(sessions['ann'], user='ann')}"
            page += f"/live?seen={await version_of(door, page, cookie)}"
            polled = asyncio.create_task(api.http.get(page, headers=cookie))
            door.keys["root"] = door.keys["root"].model_copy(update={"roles": ()})
            door.revoke("ann")
            began = time.monotonic()
            texts = await asyncio.gather(*(stream.aread() for stream in (by_key, by_cookie, by_role, run)))
            assert time.monotonic() - began < SOON
            for text in texts:
                assert b'data: {"error": "CredentialExpired: ' in text.strip().splitlines()[-1], text
            worked.model.gate("wait").open()
            # A page that waits for news gets none any more.
            assert (await polled).status_code in (204, 401)
            # Whoever may stay hears of what happens after it.
            body = {**api.body(sessions["bob"], "hello"), "userId": "bob"}
            assert (await api.http.post("/run", json=body, headers=door.header("bob"))).status_code == 200
            lines = lasting.aiter_lines()
            async with asyncio.timeout(SOON):
                while "you said: hello" not in await anext(lines):
                    pass
        assert (await api.http.get(paths["ann"], headers=door.header("ann"))).status_code == 401
        assert (await api.http.get(paths["bob"], headers=door.header("root"))).status_code == 404


@pytest.mark.server
async def test_a_key_that_gets_an_end_ends_its_streams(client: Client, worked: Api, tmp_path: Path) -> None:
    door = Door(tmp_path / "auth.toml")
    door.add("ann")
    door.write()
    session = await created(worked, "ann")
    auth = read_auth(door.file)
    async with served(client, worked.definition, worked.model, auth=auth, auth_file=door.file) as api:
        path = f"/v1{api.path(session, user='ann')}/events/stream"
        async with api.http.stream("GET", path, headers=door.header("ann")) as stream:
            soon = datetime.now(UTC) + timedelta(seconds=2)
            door.keys["ann"] = door.keys["ann"].model_copy(update={"expires": soon})
            door.write()
            assert b"CredentialExpired" in await stream.aread()


async def created(api: Api, user: str) -> str:
    answer = await api.http.post(api.path(user=user), json={})
    assert answer.status_code == 200, answer.text
    session: str = answer.json()["id"]
    return session


async def version_of(door: Door, page: str, headers: dict[str, str]) -> str:
    """Return how much of a session a page shows, as its script knows it."""
    found = re.search(r'data-version="(\d+)"', (await door.http.get(page, headers=headers)).text)
    assert found is not None
    return found[1]
