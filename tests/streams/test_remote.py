"""Workers in other processes: what crosses the wire, who is let in, and what a lost connection costs (nothing)."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from click import ClickException

from perdure.cli.streaming import told
from perdure.encryption.codec import EncryptionCodec
from perdure.encryption.keys import Key, KeyRing
from perdure.streams import remote, wire
from perdure.streams.hub import Draft, News, Piece, Subscription, TokenHub, Writer
from perdure.streams.remote import StreamClient, split_address
from perdure.streams.server import StreamServer
from tests.streams.test_hub import SESSION, draft, next_news, texts
from tests.workflows.support import eventually

KEY = "a key of some length"


@asynccontextmanager
async def joined(hub: TokenHub, *addresses: str, **options: Any) -> AsyncGenerator[tuple[TokenHub, StreamClient]]:
    """A client's hub, connected with the workers at these addresses."""
    theirs = TokenHub()
    async with StreamClient(theirs, addresses, **options) as client:
        await eventually(lambda: client.connected == len(addresses))
        yield theirs, client


async def begun(hub: TokenHub, begin: Draft) -> Writer:
    """Begin a draft as soon as the client's wish has arrived."""
    found: list[Writer] = []

    def try_it() -> bool:
        writer = hub.begin(begin)
        found.extend([writer] if writer is not None else [])
        return writer is not None

    await eventually(try_it)
    return found[0]


async def all_of(reader: Subscription) -> tuple[str, Draft]:
    """Read one draft to its end."""
    text = ""
    while True:
        for news in await next_news(reader):
            text += texts([news])[0]
            if news.ended:
                return text, news.draft


async def some_of(reader: Subscription) -> News:
    """Return the next news that hold anything."""
    while True:
        for news in await next_news(reader):
            if news.pieces:
                return news


async def test_what_one_process_writes_another_reads(caplog: pytest.LogCaptureFixture) -> None:
    hub = TokenHub()
    async with StreamServer(hub, key=KEY) as server, joined(hub, server.address, key=KEY) as (theirs, _):
        reader = theirs.subscribe(SESSION)
        writer = await begun(hub, draft(offset=7))
        writer.add(Piece("hm ", thought=True))
        assert await some_of(reader) == News(draft(offset=7), [Piece("hm ", thought=True)], False)
        for number in range(100):
            writer.add(Piece(f"ü{number} "))
        writer.end()
        assert await all_of(reader) == ("".join(f"ü{number} " for number in range(100)), draft(offset=7))
        # Another who comes when nobody follows any more asks again.
        reader.close()
        await eventually(lambda: not hub.wanted())
        other = theirs.subscribe(SESSION)
        (await begun(hub, draft("e2"))).end()
        assert await all_of(other) == ("", draft("e2"))
    assert not caplog.records


async def test_only_what_is_asked_for_is_sent() -> None:
    hub = TokenHub()
    local = hub.subscribe("app/u/local")
    async with StreamServer(hub) as server, joined(hub, server.address) as (theirs, _):
        reader = theirs.subscribe(SESSION)
        await eventually(lambda: hub.wanted() == {SESSION, "app/u/local"})
        secret = hub.begin(draft("e9", session="app/u/local"))
        assert secret is not None
        secret.add(Piece("secret"))
        (await begun(hub, draft())).end()
        assert await all_of(reader) == ("", draft())
        assert texts(local.take()) == ["secret"]
        assert theirs.subscribe("app/u/local").take() == []


async def test_a_late_client_gets_the_answer_from_its_beginning_and_two_get_it_both() -> None:
    hub = TokenHub()
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(StreamServer(hub))
        first, _ = await stack.enter_async_context(joined(hub, server.address))
        readers = [first.subscribe(SESSION)]
        writer = await begun(hub, draft())
        writer.add(Piece("Hello "))
        second, _ = await stack.enter_async_context(joined(hub, server.address))
        readers.append(second.subscribe(SESSION))
        await eventually(lambda: len(hub._readers[SESSION]) == 2)  # pyright: ignore[reportPrivateUsage] -- no other sign
        writer.add(Piece("you"))
        writer.end()
        assert [(await all_of(reader))[0] for reader in readers] == ["Hello you"] * 2


async def test_a_client_hears_of_several_workers() -> None:
    hubs = [TokenHub(), TokenHub()]
    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(StreamServer(hub)) for hub in hubs]
        theirs, _ = await stack.enter_async_context(joined(hubs[0], *(server.address for server in servers)))
        reader = theirs.subscribe(SESSION)
        for number, hub in enumerate(hubs):
            writer = await begun(hub, draft(f"e{number}"))
            writer.add(Piece(f"{number}"))
            writer.end()
            assert (await all_of(reader))[0] == f"{number}"


async def test_a_worker_that_comes_back_is_heard_again_and_no_answer_goes_on_in_the_middle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(remote, "_LAST_PAUSE", 0.2)
    hub = TokenHub()
    async with AsyncExitStack() as outer:
        async with StreamServer(hub) as server:
            port = split_address(server.address)[1]
            theirs, client = await outer.enter_async_context(joined(hub, server.address))
            reader = theirs.subscribe(SESSION)
            writer = await begun(hub, draft())
            writer.add(Piece("Hel"))
            assert texts([await some_of(reader)]) == ["Hel"]
        assert (await all_of(reader))[0] == ""
        await eventually(lambda: client.connected == 0)
        writer.add(Piece("lo"))
        async with StreamServer(hub, port=port):
            await eventually(lambda: client.connected == 1)
            (await begun(hub, draft("e2"))).end()
            assert await all_of(reader) == ("", draft("e2"))


async def test_a_follower_that_comes_back_in_the_middle_sees_the_answer_once_and_whole() -> None:
    hub = TokenHub()
    async with StreamServer(hub) as server, joined(hub, server.address) as (theirs, _):
        reader = theirs.subscribe(SESSION)
        writer = await begun(hub, draft())
        writer.add(Piece("Hello "))
        assert texts([await some_of(reader)]) == ["Hello "]
        reader.close()
        await eventually(lambda: not hub.wanted())
        writer.add(Piece("wor"))
        again = theirs.subscribe(SESSION)
        assert texts([await some_of(again)]) == ["Hello wor"]
        writer.add(Piece("ld"))
        writer.end()
        assert (await all_of(again))[0] == "ld"


async def test_what_nobody_follows_to_its_end_takes_no_memory() -> None:
    hub = TokenHub()
    async with StreamServer(hub) as server, joined(hub, server.address) as (theirs, _):
        for number in range(3):
            reader = theirs.subscribe(SESSION)
            writer = await begun(hub, draft(f"e{number}"))
            writer.add(Piece("x" * 1000))
            assert await some_of(reader)
            reader.close()
            await eventually(lambda: not hub.wanted())
            writer.end()
        assert (theirs._size, theirs._entries, list(theirs._known)) == (0, {}, [])  # pyright: ignore[reportPrivateUsage] -- nobody is told


async def test_an_answer_that_was_opened_before_the_drop_was_read_goes_on_under_its_new_number() -> None:
    """The worker's frames and the client's wishes cross each other."""
    speaking: asyncio.Queue[wire.Connection] = asyncio.Queue()

    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = wire.Connection(reader, writer)
        await wire.greet_client(connection, "")
        speaking.put_nowait(connection)

    worker = await asyncio.start_server(speak, "127.0.0.1", 0)
    theirs = TokenHub()
    address = f"127.0.0.1:{worker.sockets[0].getsockname()[1]}"
    async with worker, StreamClient(theirs, [address]):
        reader = theirs.subscribe(SESSION)
        connection = await speaking.get()
        for number in (1, 2):
            await connection.send(
                {"open": number, "draft": draft().model_dump()},
                {"add": number, **await wire.sealed([Piece("Hello ")], None)},
            )
            if number == 1:
                assert texts([await some_of(reader)]) == ["Hello "]
        await connection.send({"add": 2, **await wire.sealed([Piece("world")], None)}, {"end": 2})
        assert (await all_of(reader))[0] == "world"
        connection.close()


async def test_a_client_that_does_not_read_holds_up_nobody() -> None:
    """Its part waits in the hub, within the hub's bounds, while another client gets everything."""
    hub = TokenHub()
    async with StreamServer(hub) as server, joined(hub, server.address) as (theirs, _):
        reader = theirs.subscribe(SESSION)
        stuck = wire.Connection(*await asyncio.open_connection(*split_address(server.address), limit=1000))
        await wire.greet_server(stuck, "")
        await stuck.send({"want": SESSION})
        await eventually(lambda: len(hub._readers.get(SESSION, ())) == 2)  # pyright: ignore[reportPrivateUsage] -- no other sign
        for number in range(20):
            writer = await begun(hub, draft(f"e{number}"))
            writer.add(*(Piece("x" * 10_000) for _ in range(50)))
            writer.end()
            assert len((await all_of(reader))[0]) == 500_000
        stuck.close()
        await eventually(lambda: len(hub._readers[SESSION]) == 1)  # pyright: ignore[reportPrivateUsage] -- no other sign


# Who is let in.


@pytest.mark.parametrize(("servers", "clients"), [(KEY, ""), (KEY, "another"), ("", KEY)])
async def test_both_sides_must_know_the_key(servers: str, clients: str, caplog: pytest.LogCaptureFixture) -> None:
    hub, theirs = TokenHub(), TokenHub()
    async with StreamServer(hub, key=servers) as server, StreamClient(theirs, [server.address], key=clients) as client:
        theirs.subscribe(SESSION)
        with caplog.at_level(logging.WARNING, "perdure.streams"):
            await eventually(lambda: any("the same PERDURE_STREAM_KEY" in reason for reason in reasons(caplog)))
        assert "the client does not know the key" in reasons(caplog)
        assert client.connected == 0
        assert hub.wanted() == set()
    assert KEY not in caplog.text


def reasons(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [str(vars(record).get("reason")) for record in caplog.records]


async def exchange(address: str, *lines: bytes) -> list[bytes]:
    """Send lines to a server, and read until it hangs up."""
    reader, writer = await asyncio.open_connection(*split_address(address))
    found = [await reader.readline()]
    try:
        for line in lines:
            writer.write(line)
            await writer.drain()
        async with asyncio.timeout(10):
            while line := await reader.readline():
                found.append(line)
    except ConnectionError:
        pass
    finally:
        writer.close()
    return found


@pytest.mark.parametrize(
    "line",
    [
        b'{"want": "app/u/s"}\n',
        b'{"nonce": 1, "proof": null}\n',
        b"[]\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"\xff\xfe\n",
        b"[" * 15_000 + b"\n",
        b"x" * 20_000,
    ],
)
async def test_who_does_not_know_the_key_learns_nothing(line: bytes) -> None:
    hub = TokenHub()
    async with StreamServer(hub, key=KEY) as server:
        found = await exchange(server.address, line)
        assert [list(json.loads(one)) for one in found] == [["perdure", "nonce"]]
        assert hub.wanted() == set()


async def test_a_proof_is_good_for_one_connection() -> None:
    """What was overheard opens nothing."""
    hub = TokenHub()
    async with StreamServer(hub, key=KEY) as server:
        async with joined(hub, server.address, key=KEY):
            pass
        nonce = "0" * 32
        overheard = wire._proof(KEY, "client", "1" * 32, nonce)  # pyright: ignore[reportPrivateUsage] -- an attack
        line = json.dumps({"nonce": nonce, "proof": overheard}).encode() + b"\n"
        assert len(await exchange(server.address, line)) == 1


async def test_one_who_wants_too_much_is_sent_away(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(wire, "MAX_SESSIONS", 2)
    hub = TokenHub()
    async with StreamServer(hub) as server:
        greedy = wire.Connection(*await asyncio.open_connection(*split_address(server.address)))
        await wire.greet_server(greedy, "")
        with caplog.at_level(logging.WARNING, "perdure.streams"):
            await greedy.send(*({"want": f"app/u/{number}"} for number in range(3)))
            await eventually(lambda: bool(reasons(caplog)))
        greedy.close()
        assert reasons(caplog) == ["it wants more than 2 sessions over one connection"]
        assert hub.wanted() == set()


async def test_a_client_wants_no_more_than_it_may_until_there_is_room(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(wire, "MAX_SESSIONS", 2)
    hub = TokenHub()
    async with StreamServer(hub) as server, joined(hub, server.address) as (theirs, client):
        with caplog.at_level(logging.WARNING, "perdure.streams"):
            readers = [theirs.subscribe(f"app/u/{number}") for number in range(3)]
            await eventually(lambda: hub.wanted() == {"app/u/0", "app/u/1"})
        assert reasons(caplog) == ["more than 2 sessions are followed; the others get no tokens"]
        readers[0].close()
        await eventually(lambda: hub.wanted() == {"app/u/1", "app/u/2"})
        assert client.connected == 1


async def test_one_who_says_nothing_is_sent_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "GREETING_SECONDS", 0.1)
    async with StreamServer(TokenHub()) as server:
        assert len(await exchange(server.address)) == 1


@pytest.mark.parametrize("said", [b"SSH-2.0-OpenSSH_9.6\r\n", b'{"perdure": 99, "nonce": "x"}\n'])
async def test_what_is_no_worker_is_told_of_once(said: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(said)
        await writer.drain()
        writer.close()

    other = await asyncio.start_server(speak, "127.0.0.1", 0)
    async with other, StreamClient(TokenHub(), [f"127.0.0.1:{other.sockets[0].getsockname()[1]}"]):
        with caplog.at_level(logging.WARNING, "perdure.streams"):
            await eventually(lambda: "no tokens are streamed from a worker" in caplog.text)


async def test_a_worker_that_falls_silent_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "PATIENCE_SECONDS", 0.2)
    hub = TokenHub()
    async with StreamServer(hub) as server, StreamClient(TokenHub(), [server.address]) as client:
        await eventually(lambda: client.connected == 1)
        await eventually(lambda: client.connected == 0)


async def test_a_worker_that_has_nothing_to_say_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "PATIENCE_SECONDS", 1.0)
    monkeypatch.setattr(wire, "BEAT_SECONDS", 0.1)
    hub = TokenHub()
    async with StreamServer(hub) as server, joined(hub, server.address) as (_, client):
        await asyncio.sleep(1.5)
        assert client.connected == 1


# Encryption.


async def test_what_encrypts_histories_encrypts_tokens() -> None:
    codec = EncryptionCodec(KeyRing((Key.new(),)))
    [frame] = [await wire.sealed([Piece("secret"), Piece("thought", thought=True)], codec)]
    assert "secret" not in json.dumps(frame)
    assert list(frame) == ["sealed"]
    assert await wire.unsealed(frame, codec) == [Piece("secret"), Piece("thought", thought=True)]
    hub = TokenHub()
    async with (
        StreamServer(hub, codec=codec) as server,
        joined(hub, server.address, codec=codec) as (theirs, _),
        joined(hub, server.address) as (without, _),
    ):
        readers = [theirs.subscribe(SESSION), without.subscribe(SESSION)]
        await eventually(lambda: len(hub._readers.get(SESSION, ())) == 2)  # pyright: ignore[reportPrivateUsage] -- no other sign
        writer = await begun(hub, draft())
        writer.add(Piece("secret"))
        writer.end()
        assert [(await all_of(reader))[0] for reader in readers] == ["secret", ""]


@pytest.mark.parametrize("frame", [{}, {"pieces": [["a"]]}, {"pieces": 1}, {"sealed": "?"}, {"sealed": 1}])
async def test_pieces_that_are_none_are_refused(frame: dict[str, Any]) -> None:
    with pytest.raises(wire.WireError):
        await wire.unsealed(frame, None)


# Addresses.


def test_addresses() -> None:
    assert split_address("worker:7400") == ("worker", 7400)
    assert split_address("[::1]:7400") == ("::1", 7400)
    for wrong in ("worker", ":7400", "worker:", "worker:x", "worker:70000"):
        with pytest.raises(ValueError, match="write HOST:PORT"):
            split_address(wrong)


async def test_a_name_may_stand_for_other_workers_tomorrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a headless service: workers come and go under one name, which may be unknown for a moment."""
    monkeypatch.setattr(remote, "_RESOLVE_SECONDS", 0.05)
    loop = asyncio.get_running_loop()
    ports: list[int] = []
    known = True

    async def getaddrinfo(host: str, port: int, **options: Any) -> list[Any]:
        if not known:
            raise socket.gaierror("no such name")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", one)) for one in ports]

    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(StreamServer(TokenHub())) for _ in range(3)]
        ports.extend(split_address(server.address)[1] for server in servers[:2])
        monkeypatch.setattr(loop, "getaddrinfo", getaddrinfo)
        client = await stack.enter_async_context(StreamClient(TokenHub(), ["workers:7400"]))
        await eventually(lambda: client.connected == 2)
        known = False
        await asyncio.sleep(0.2)
        assert client.connected == 2
        ports[:] = [split_address(servers[2].address)[1]]
        known = True
        await eventually(lambda: client.connected == 1)


@pytest.mark.parametrize("host", ["nowhere.invalid", "a..b", "x" * 70])
async def test_a_name_that_leads_nowhere_keeps_no_other_from_being_found(host: str) -> None:
    """Python refuses to encode names with an empty or a long label, by an error of its own."""
    async with (
        StreamServer(TokenHub(), "127.0.0.1", 0) as server,
        StreamClient(TokenHub(), [f"{host}:7400", server.address]) as client,
    ):
        assert await client.connects(10)


@pytest.mark.parametrize("host", ["nowhere.invalid", "a..b"])
async def test_tokens_that_cannot_be_offered_are_told_of(host: str) -> None:
    with pytest.raises(ClickException, match=rf"cannot be offered at {host}:7400: .+; name another"):
        async with told(f"{host}:7400", None):
            pass
