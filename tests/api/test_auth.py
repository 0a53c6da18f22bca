"""Who is let in: API keys, tokens, the cookie of a sign-in; and the file that says so."""

from __future__ import annotations

import base64
import hmac
import json
import re
import stat
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx2
import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from fastapi import FastAPI
from temporalio.client import Client

from perdure.api.app import create_app
from perdure.api.auth.api_keys import ApiKey, ApiKeys, append_key
from perdure.api.auth.authenticator import COOKIE
from perdure.api.auth.config import AuthConfig, SignInConfig, read_auth
from perdure.api.auth.identity import IdentityOf
from perdure.api.auth.middleware import OPEN_PATHS
from perdure.api.auth.sign_in import local_path
from perdure.api.auth.tokens import IssuerKeys, KeysUnavailable, parse_jwks
from perdure.api.base.config import ApiConfig
from perdure.cli.main import run_command
from perdure.errors import DefinitionError
from tests.api.auth_support import AUDIENCE, ISSUER, Issuer, Keys, api_key
from tests.cli.support import Perdure, perdure

__all__ = ["perdure"]

NOW = datetime(2026, 11, 22, 9, 0, tzinfo=UTC)
ORIGIN = {"origin": "http://localhost"}


@pytest.fixture(scope="module")
async def lazy() -> Client:
    """A client that has never connected; these requests end before Temporal is asked."""
    return await Client.connect("127.0.0.1:1", lazy=True)


@pytest.fixture(scope="module")
def keys() -> Keys:
    return Keys()


@pytest.fixture(scope="module")
def issuer() -> Issuer:
    return Issuer()


def telling(lazy: Client, auth: AuthConfig) -> FastAPI:
    """Return an API with two routes that tell who asks."""
    app = create_app(lazy, config=ApiConfig(auth=auth))

    @app.get("/who")
    async def who(identity: IdentityOf) -> dict[str, Any]:
        return {"subject": identity.subject, "roles": sorted(identity.roles)}

    @app.post("/change")
    async def change(identity: IdentityOf) -> str | None:
        return identity.subject

    return app


@asynccontextmanager
async def client_of(app: FastAPI) -> AsyncGenerator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url="http://localhost") as http:
        yield http


@pytest.fixture(scope="module")
async def http(lazy: Client, keys: Keys, issuer: Issuer, tmp_path_factory: pytest.TempPathFactory) -> Any:
    jwks = tmp_path_factory.mktemp("keys") / "jwks.json"
    auth = issuer.auth(jwks).model_copy(update={"keys": keys.known})
    async with client_of(telling(lazy, auth)) as http:
        yield http


async def who(http: httpx2.AsyncClient, credential: str) -> tuple[int, Any]:
    answer = await http.get("/who", headers={"authorization": f"Bearer {credential}"})
    return answer.status_code, answer.json()


# API keys


@pytest.mark.parametrize(("name", "roles"), [("ann", []), ("eve", ["approver"]), ("root", ["operator"])])
async def test_a_key_says_who_it_is(http: httpx2.AsyncClient, keys: Keys, name: str, roles: list[str]) -> None:
    assert await who(http, keys.texts[name]) == (200, {"subject": name, "roles": roles})


async def test_without_a_credential_it_is_401(http: httpx2.AsyncClient) -> None:
    answer = await http.get("/who")
    assert (answer.status_code, answer.headers["www-authenticate"]) == (401, 'Bearer realm="perdure"')
    assert answer.json() == {
        "type": "docs/http.md#errors",
        "detail": "send a credential: Authorization: Bearer API_KEY_OR_TOKEN",
    }


async def test_a_path_that_is_not_there_tells_strangers_nothing(http: httpx2.AsyncClient, keys: Keys) -> None:
    assert (await http.get("/no-such")).status_code == 401
    assert (await http.get("/no-such", headers=keys.of("ann"))).status_code == 404
    assert (await http.get("/openapi.json")).status_code == 401


@pytest.mark.parametrize(
    "header",
    ["Bearer x", "Bearer ", "Bearer", "", "Basic YTpi", "pdk_", "Bearer pdk_", "Bearer pdk_00000000_x", "Bearer \xff"],
)
async def test_what_is_no_credential_is_401(http: httpx2.AsyncClient, header: str) -> None:
    answer = await http.get("/who", headers=[(b"authorization", header.encode("latin-1"))])
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == 'Bearer realm="perdure", error="invalid_token"'


async def test_a_key_that_is_nearly_right_is_401(http: httpx2.AsyncClient, keys: Keys) -> None:
    right = keys.texts["ann"]
    other = "A" if right[-1] != "A" else "B"
    for wrong in (right[:-1], right + "A", right[:-1] + other, right.upper(), right.replace("pdk_", "pdk_0")):
        assert (await who(http, wrong))[0] == 401
    headers = [("authorization", f"Bearer {right}"), ("authorization", f"Bearer {right}")]
    assert (await http.get("/who", headers=headers)).status_code == 401


async def test_open_paths_need_no_credential(http: httpx2.AsyncClient) -> None:
    for path in ("/health", "/version", "/sign-in"):
        assert path in OPEN_PATHS
        assert (await http.get(path)).status_code == 200
        assert (await http.get(path, headers={"authorization": "Bearer wrong"})).status_code == 200


@pytest.mark.parametrize("path", ["/health/../who", "/health%2F..%2Fwho", "/health/", "//health", "/who?x=/health"])
async def test_no_other_path_is_open(http: httpx2.AsyncClient, path: str) -> None:
    assert (await http.get(path)).status_code == 401


def test_an_expired_key_opens_nothing() -> None:
    key, text = ApiKey.new("ann", now=NOW, lasts=timedelta(days=1))
    known = ApiKeys([key])
    assert known.find(text, NOW) == key
    assert known.find(text, NOW + timedelta(days=1)) is None
    assert text not in repr(key)
    assert key.sha256 not in repr(key)


# Tokens


async def test_a_token_says_who_it_is(http: httpx2.AsyncClient, issuer: Issuer) -> None:
    assert await who(http, issuer.token()) == (200, {"subject": "ann", "roles": []})
    assert await who(http, issuer.token(roles=["approver", "x", 1])) == (200, {"subject": "ann", "roles": ["approver"]})
    assert await who(http, issuer.token(roles="x operator")) == (200, {"subject": "ann", "roles": ["operator"]})
    assert (await who(http, issuer.token(key=issuer.ec_key, alg="ES256", kid="two", aud=["a", AUDIENCE])))[0] == 200
    # Without a kid, the only key that fits the algorithm is meant.
    assert (await who(http, issuer.token(kid=None)))[0] == 200
    assert (await who(http, issuer.token(alg="PS512")))[0] == 200


def unsigned(issuer: Issuer, algorithm: str) -> str:
    def part(value: dict[str, Any]) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()

    return f"{part({'alg': algorithm, 'kid': 'one'})}.{part(issuer.claims())}."


def signed_with_the_public_key(issuer: Issuer) -> str:
    """Return a token by the classic confusion: HS256, its secret being the public key."""
    public = issuer.key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    head, claims, _ = unsigned(issuer, "HS256").split(".")
    signature = hmac.digest(public, f"{head}.{claims}".encode(), "sha256")
    return f"{head}.{claims}.{base64.urlsafe_b64encode(signature).rstrip(b'=').decode()}"


async def test_tokens_that_are_forged_are_refused(http: httpx2.AsyncClient, issuer: Issuer) -> None:
    token = issuer.token()
    head, claims, signature = token.split(".")
    other = issuer.token(sub="bob").split(".")[1]
    deep = base64.urlsafe_b64encode(b"[" * 10_000).rstrip(b"=").decode()
    odd = base64.urlsafe_b64encode(b'{"alg": ["RS256"], "kid": {}}').rstrip(b"=").decode()
    for forged in (
        issuer.token(key=issuer.stranger),
        issuer.token(key=issuer.stranger, kid="none-such"),
        issuer.token(kid="two"),
        unsigned(issuer, "none"),
        unsigned(issuer, "RS256"),
        signed_with_the_public_key(issuer),
        f"{head}.{other}.{signature}",
        f"{head}.{claims}.",
        f"{head}.{claims}",
        f"{deep}.{claims}.{signature}",
        f"{odd}.{claims}.{signature}",
        "...",
        "a" * 20_000,
    ):
        status, body = await who(http, forged)
        assert (status, list(body)) == (401, ["type", "detail"]), forged


@pytest.mark.parametrize(
    ("claims", "reason"),
    [
        ({"exp": None}, "no claim 'exp'"),
        ({"exp": 1_000_000}, "has expired"),
        ({"exp": "soon"}, "not valid"),
        ({"nbf": 9_000_000_000}, "not valid"),
        ({"iss": "https://evil.example/"}, "another issuer"),
        ({"iss": None}, "no claim 'iss'"),
        ({"aud": "other"}, "somebody else"),
        ({"aud": None}, "no claim 'aud'"),
        ({"sub": None}, "names nobody"),
        ({"sub": ""}, "names nobody"),
    ],
)
async def test_tokens_for_others_or_without_an_end_are_refused(
    http: httpx2.AsyncClient, issuer: Issuer, claims: dict[str, Any], reason: str
) -> None:
    status, body = await who(http, issuer.token(**claims))
    assert (status, reason in body["detail"]) == (401, True), body


async def test_a_token_is_good_for_some_seconds_more_than_it_says(http: httpx2.AsyncClient, issuer: Issuer) -> None:
    assert (await who(http, issuer.token(exp=int(time.time()) - 5)))[0] == 200
    assert (await who(http, issuer.token(exp=int(time.time()) - 30)))[0] == 401


async def test_roles_may_have_other_names_and_lie_deeper(lazy: Client, issuer: Issuer, tmp_path: Path) -> None:
    auth = issuer.auth(
        tmp_path / "jwks.json",
        subject_claim="email",
        roles_claim="realm.roles",
        roles={"approver": ("managers",)},
    )
    async with client_of(telling(lazy, auth)) as http:
        token = issuer.token(email="ann@shop.example", realm={"roles": ["managers", "operator"]})
        assert await who(http, token) == (200, {"subject": "ann@shop.example", "roles": ["approver"]})
        whole: dict[str, Any] = {"email": "ann", "realm.roles": ["managers"]}
        token = issuer.token(**whole)
        assert (await who(http, token))[1]["roles"] == ["approver"]
        assert (await who(http, issuer.token(email="ann", realm=[])))[1]["roles"] == []
        assert (await who(http, issuer.token()))[0] == 401
        assert (await who(http, "pdk_00000000_x"))[0] == 401


class Document:
    """A JWKS document that is fetched."""

    def __init__(self, content: bytes) -> None:
        self.content: bytes | Exception = content
        self.fetched = 0

    def __call__(self) -> bytes:
        self.fetched += 1
        if isinstance(self.content, Exception):
            raise self.content
        return self.content


async def test_keys_are_fetched_once_and_again_when_an_unknown_one_is_named(issuer: Issuer) -> None:
    """An issuer that rotates its keys is followed; whoever makes ids up causes no flood of requests."""
    document = Document(issuer.jwks(["one"]))
    known = IssuerKeys(document, pause=0)
    for _ in range(3):
        assert await known.find("one", "RS256") is not None
    assert document.fetched == 1
    document.content = issuer.jwks(["one", "two"])
    assert await known.find("two", "ES256") is not None
    assert document.fetched == 2
    calm = IssuerKeys(document, pause=60)
    for number in range(20):
        assert await calm.find(f"made-up-{number}", "RS256") is None
    assert document.fetched == 3


async def test_keys_grow_old(issuer: Issuer) -> None:
    """A key that the issuer takes back is forgotten; one that cannot be asked for is kept."""
    document = Document(issuer.jwks())
    known = IssuerKeys(document, pause=0, max_age=0)
    assert await known.find("one", "RS256") is not None
    document.content = OSError("the network is away")
    assert await known.find("one", "RS256") is not None
    document.content = issuer.jwks(["two"])
    assert await known.find("one", "RS256") is None


@pytest.mark.parametrize("content", [OSError("away"), b"{", b"[]", b'{"keys": 1}', b"\xff"])
async def test_without_keys_nothing_can_be_said(content: Any) -> None:
    document = Document(b"")
    document.content = content
    known = IssuerKeys(document)
    for _ in range(3):
        with pytest.raises(KeysUnavailable):
            await known.find("one", "RS256")
    assert document.fetched == 1


async def test_an_issuer_that_is_away_is_503(lazy: Client, issuer: Issuer, tmp_path: Path) -> None:
    file = issuer.auth(tmp_path / "jwks.json")
    assert file.jwt is not None
    auth = AuthConfig(jwt=file.jwt.model_copy(update={"jwks": "http://127.0.0.1:1/jwks.json"}))
    async with client_of(telling(lazy, auth)) as http:
        status, body = await who(http, issuer.token())
        assert (status, "cannot be fetched" in body["detail"]) == (503, True)
        signed_in = await http.post("/sign-in", data={"credential": issuer.token()}, headers=ORIGIN)
        assert (signed_in.status_code, "does not answer" in signed_in.text) == (503, True)


def test_shared_secrets_are_no_keys_of_an_issuer() -> None:
    """What stands in a public document is no secret."""
    keys = parse_jwks(b'{"keys": [{"kty": "oct", "k": "c2VjcmV0", "kid": "one"}, "x"]}')
    assert keys == ({"kty": "oct", "k": "c2VjcmV0", "kid": "one"},)


# Browsers


async def sign_in(http: httpx2.AsyncClient, credential: str, **fields: Any) -> httpx2.Response:
    headers = fields.pop("headers", ORIGIN)
    return await http.post("/sign-in", data={"credential": credential, **fields}, headers=headers)


async def test_a_browser_signs_in_and_out(lazy: Client, keys: Keys) -> None:
    async with client_of(telling(lazy, keys.auth)) as http:
        page = await http.get("/who?a=b", headers={"accept": "text/html"})
        assert (page.status_code, page.headers["location"]) == (303, "/sign-in?next=%2Fwho%3Fa%3Db")
        form = await http.get(page.headers["location"])
        assert 'name="next" value="/who?a=b"' in form.text
        answer = await sign_in(http, f" {keys.texts['eve']} ", next="/who?a=b")
        assert (answer.status_code, answer.headers["location"]) == (303, "/who?a=b")
        cookie = answer.headers["set-cookie"]
        assert re.search(r"; HttpOnly; Max-Age=(43199|43200); Path=/; SameSite=strict$", cookie), cookie
        assert keys.texts["eve"] not in cookie
        assert (await http.get("/who")).json() == {"subject": "eve", "roles": ["approver"]}
        shown = (await http.get("/sign-in")).text
        assert ("<strong>eve</strong> (approver)" in shown, "/sign-out" in shown) == (True, True)
        left = await http.post("/sign-out", headers=ORIGIN)
        assert (left.status_code, left.headers["location"]) == (303, "/sign-in")
        assert (await http.get("/who")).status_code == 401


async def test_a_link_from_elsewhere_finds_people_signed_in(lazy: Client, keys: Keys) -> None:
    """A browser withholds a strict cookie from a link of another site, so the page asks again by itself, once."""
    async with client_of(telling(lazy, keys.auth)) as http:
        page = {"accept": "text/html"}
        linked = await http.get("/who", headers={**page, "sec-fetch-site": "cross-site"})
        assert (linked.status_code, 'http-equiv="refresh" content="0"' in linked.text) == (200, True)
        assert (await http.get("/who", headers={**page, "sec-fetch-site": "same-origin"})).status_code == 303
        await sign_in(http, keys.texts["ann"])
        assert (await http.get("/who", headers={**page, "sec-fetch-site": "cross-site"})).json()["subject"] == "ann"


async def test_a_wrong_key_is_told_and_shown_nowhere(lazy: Client, keys: Keys) -> None:
    async with client_of(telling(lazy, keys.auth)) as http:
        answer = await sign_in(http, "pdk_<script>")
        assert (answer.status_code, "set-cookie" in answer.headers) == (401, False)
        assert ("not valid here" in answer.text, "<script>" in answer.text) == (True, False)


async def test_another_page_makes_nobody_sign_in_or_out(lazy: Client, keys: Keys) -> None:
    async with client_of(telling(lazy, keys.auth)) as http:
        evil = {"origin": "https://evil.example"}
        assert (await sign_in(http, keys.texts["ann"], headers=evil)).status_code == 403
        assert (await http.post("/sign-out", headers=evil)).status_code == 403


async def test_a_cookie_changes_things_from_pages_of_its_own_only(lazy: Client, keys: Keys) -> None:
    async with client_of(telling(lazy, keys.auth)) as http:
        await sign_in(http, keys.texts["ann"])
        for headers in ({}, {"sec-fetch-site": "same-site"}, {"origin": "null"}, {"origin": "http://localhost:81"}):
            assert (await http.post("/change", headers=headers)).status_code == 403, headers
        for headers in (ORIGIN, {"sec-fetch-site": "same-origin"}):
            assert (await http.post("/change", headers=headers)).status_code == 200, headers
        # A header is not sent by itself, so it needs no more.
        assert (await http.post("/change", headers=keys.of("bob"))).json() == "bob"
        assert (await http.get("/who", headers={"authorization": "Bearer wrong"})).status_code == 401


async def test_behind_tls_the_cookie_is_for_tls(lazy: Client, keys: Keys) -> None:
    async with client_of(telling(lazy, keys.auth)) as http:
        headers = {"host": "localhost", "origin": "https://localhost"}
        answer = await sign_in(http, keys.texts["ann"], headers=headers)
        assert answer.headers["set-cookie"].endswith("; SameSite=strict; Secure")


async def test_a_sign_in_ends_with_its_token(lazy: Client, issuer: Issuer, tmp_path: Path) -> None:
    async with client_of(telling(lazy, issuer.auth(tmp_path / "jwks.json"))) as http:
        answer = await sign_in(http, issuer.token(exp=int(time.time()) + 100, roles=["approver"]))
        found = re.search(r"Max-Age=(\d+)", answer.headers["set-cookie"])
        assert found is not None
        assert 90 <= int(found[1]) <= 100
        assert (await http.get("/who")).json() == {"subject": "ann", "roles": ["approver"]}
        big = await sign_in(http, issuer.token(sub="a" * 4000))
        assert (big.status_code, "fit into a cookie" in big.text) == (400, True)


async def test_a_cookie_of_another_secret_or_of_a_key_that_was_taken_back_is_nothing(
    lazy: Client, keys: Keys, issuer: Issuer
) -> None:
    sign_ins = SignInConfig(secret=b"s" * 32)
    auth = keys.auth.model_copy(update={"sign_in": sign_ins})
    async with client_of(telling(lazy, auth)) as http:
        await sign_in(http, keys.texts["ann"])
        cookie = {"cookie": f"other=1; {COOKIE}={http.cookies[COOKIE]}"}
    fewer = auth.model_copy(update={"keys": keys.known[1:]})
    changed = auth.model_copy(update={"keys": (keys.known[0].model_copy(update={"roles": ("approver",)}),)})
    forged = jwt.encode(issuer.claims(aud="perdure:sign-in", key=None, roles=["operator"]), "x" * 32)
    token = {"cookie": f"{COOKIE}={forged}"}
    for config, given, status in [
        (auth, cookie, 200),
        (changed, cookie, 200),
        (fewer, cookie, 401),
        (keys.auth, cookie, 401),
        (auth, token, 401),
        (auth, {"cookie": f"{COOKIE}=x"}, 401),
        (auth, {"cookie": "\x01;=;"}, 401),
        # A cookie is no token.
        (auth, {"authorization": f"Bearer {cookie['cookie'].partition('=')[2].partition('=')[2]}"}, 401),
    ]:
        async with client_of(telling(lazy, config)) as http:
            answer = await http.get("/who", headers=given)
            assert answer.status_code == status, (given, answer.text)
            if config is changed:
                assert answer.json()["roles"] == ["approver"]


@pytest.mark.parametrize(
    ("wanted", "gone"),
    [
        ("/v1/x?a=b#c", "/v1/x?a=b#c"),
        ("//evil.example", "/"),
        ("/\\evil.example", "/"),
        ("https://evil.example", "/"),
        ("javascript:alert(1)", "/"),
        ("/\t/evil.example", "/"),
        ("/a\r\nset-cookie: x", "/"),
        ("", "/"),
    ],
)
def test_a_sign_in_leads_nowhere_else(wanted: str, gone: str) -> None:
    assert local_path(wanted) == gone


async def test_answers_are_neither_stored_nor_guessed_nor_framed(http: httpx2.AsyncClient, keys: Keys) -> None:
    headers = (await http.get("/who", headers=keys.of("ann"))).headers
    assert headers["cache-control"] == "no-store"
    assert (headers["x-content-type-options"], headers["x-frame-options"]) == ("nosniff", "DENY")
    page = (await http.get("/sign-in")).headers
    assert "frame-ancestors 'none'" in page["content-security-policy"]


async def test_without_auth_everybody_is_an_operator_and_there_is_no_sign_in(lazy: Client) -> None:
    app = create_app(lazy)

    @app.get("/who")
    async def who(identity: IdentityOf) -> list[str]:
        return sorted(identity.roles)

    async with client_of(app) as http:
        assert (await http.get("/who")).json() == ["operator"]
        assert (await http.get("/sign-in")).status_code == 404


# The file


async def test_keys_are_made_by_a_command_and_kept_as_hashes(perdure: Perdure, tmp_path: Path) -> None:
    file = tmp_path / "auth.toml"
    made = await perdure("api-keys", "new", str(file), "--subject", 'Ann "ä" #1')
    assert made.code == 0
    text = made.out.strip()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    again = await perdure(
        "api-keys", "new", str(file), "--subject", "bob", "--role", "approver", "--days", "1", "--json"
    )
    [bob] = again.json_lines
    assert (bob["subject"], bob["roles"]) == ("bob", ["approver"])
    assert text not in file.read_text()
    assert bob["key"] not in file.read_text()
    auth = read_auth(file)
    now = datetime.now(UTC)
    known = ApiKeys(auth.keys)
    found = known.find(text, now)
    assert found is not None
    assert found.subject == 'Ann "ä" #1'
    assert known.find(bob["key"], now + timedelta(hours=23)) is not None
    assert known.find(bob["key"], now + timedelta(hours=25)) is None
    listed = await perdure("api-keys", "list", str(file))
    assert re.search(r"bob\s+approver\s+\d{4}-\d\d-\d\d\s+\d{4}", listed.out)
    assert [line["subject"] for line in (await perdure("api-keys", "list", str(file), "--json")).json_lines] == [
        'Ann "ä" #1',
        "bob",
    ]
    refused = await perdure("api-keys", "new", str(file), "--subject", "a\nb")
    assert (refused.code, "is no subject" in refused.err) == (1, True)


def test_a_key_is_added_to_a_file_that_says_more(tmp_path: Path) -> None:
    file = tmp_path / "auth.toml"
    file.write_text('[jwt]\nissuer = "i"\naudience = "a"\njwks = "https://login.example/keys"  # theirs')
    append_key(file, api_key("ann")[0])
    auth = read_auth(file)
    assert ([key.subject for key in auth.keys], auth.jwt is not None) == (["ann"], True)
    file.write_text("keys = 1\n")
    with pytest.raises(DefinitionError, match="takes no key"):
        append_key(file, api_key("ann")[0])
    assert file.read_text() == "keys = 1\n"
    with pytest.raises(DefinitionError, match="cannot be written"):
        append_key(tmp_path / "no" / "such", api_key("ann")[0])
    with pytest.raises(DefinitionError, match="cannot be read"):
        append_key(tmp_path, api_key("ann")[0])


HASH = "0f" * 32
KEY = f'[[keys]]\nid = "0a0a0a0a"\nsubject = "ann"\nsha256 = "{HASH}"\ncreated = 2026-01-01T00:00:00Z\n'
JWT = f'[jwt]\nissuer = "{ISSUER}"\naudience = "a"\n'


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "lets nobody in"),
        ("[jwt", "is no TOML"),
        ("\x00", "is no TOML"),
        (KEY + KEY, "two keys have the id '0a0a0a0a'"),
        (KEY.replace("subject", "subjekt"), "keys.0.subject: Field required; keys.0.subjekt: Extra inputs"),
        (KEY.replace(HASH, "secret"), "keys.0.sha256: String should match"),
        (KEY + 'roles = ["admin"]', "keys.0.roles.0: Input should be 'operator' or 'approver'"),
        (KEY + "expires = 2027-01-01T00:00:00", "keys.0.expires: Input should have timezone info"),
        (JWT, "jwt.jwks: Field required"),
        (JWT + 'jwks = "http://login.example/keys"', "keys that come by http can be replaced"),
        (JWT + 'jwks = "k"\nleeway = 1', "jwt.leeway: Extra inputs"),
        (JWT + 'jwks = "k"\nroles = {boss = ["x"]}', "jwt.roles.boss"),
        (KEY + '[sign_in]\nsecret_file = "none"', "the file that it names cannot be read: No such file"),
        (KEY + '[sign_in]\nsecret_file = "short"', "less than 32 bytes"),
        (KEY + '[sign_in]\nsecret = "in the clear"', "a file of its own"),
        (KEY + "[sign_in]\nhours = 0", "sign_in.hours: Input should be greater than 0"),
        (KEY + "sign_in = 3", "keys.0.sign_in: Extra inputs"),
        ("sign_in = 3\n" + KEY, "sign_in: Input should be a valid"),
    ],
)
def test_a_file_that_says_something_else_is_explained(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "short").write_text("short")
    file = tmp_path / "auth.toml"
    file.write_text(text)
    with pytest.raises(DefinitionError) as caught:
        read_auth(file)
    assert reason in str(caught.value)
    assert "secret_file" in reason or HASH not in str(caught.value)


def test_a_file_may_name_files_beside_it(tmp_path: Path, issuer: Issuer) -> None:
    (tmp_path / "secret").write_bytes(b"s" * 32 + b"\n")
    (tmp_path / "keys.json").write_bytes(issuer.jwks())
    file = tmp_path / "auth.toml"
    file.write_text(JWT + 'jwks = "keys.json"\n[sign_in]\nhours = 1\nsecret_file = "secret"')
    auth = read_auth(file)
    assert auth.jwt is not None
    assert (auth.jwt.jwks, auth.sign_in.secret) == (str(tmp_path / "keys.json"), b"s" * 32)
    assert "ssss" not in repr(auth)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "cannot be read"),
        (b"{", "is no JSON"),
        (b'{"keys": []}', "holds no public key"),
        (b'{"keys": [{"kty": "oct", "k": "YQ"}]}', "holds no public key"),
        (b"[]", "is not of the form"),
    ],
)
def test_wrong_files_end_the_command_before_it_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes | None, reason: str
) -> None:
    if content is not None:
        (tmp_path / "keys.json").write_bytes(content)
    file = tmp_path / "auth.toml"
    file.write_text(JWT + 'jwks = "keys.json"')
    assert run_command(["api", "--port", "0", "--auth", str(file)]) == 64
    told = capsys.readouterr().err
    assert ("--auth: " in told, reason in told) == (True, True), told
    assert run_command(["api", "--auth", str(tmp_path / "none")]) == 64
