"""Each refused request says where the documentation tells of it: of an error of Perdure's, its section."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator

import httpx2
import pytest
from temporalio.client import Client

from perdure.api.app import create_app
from perdure.api.base.config import ApiConfig
from perdure.api.base.refusals import PAGE_OF_STATUSES
from perdure.api.base.statuses import STATUSES, error_frame
from perdure.errors import PerdureError, page_of
from perdure.plan.nodes import AdkRules
from tests.docs.blocks import ROOT

JSON = {"content-type": "application/json"}
RAISED = sorted(
    {cls for base in STATUSES if issubclass(base, PerdureError) for cls in (base, *base.__subclasses__())},
    key=lambda cls: cls.__name__,
)


def anchors(page: str) -> set[str]:
    """Return the anchors of a page's headings."""
    headings = re.findall(r"^#+ (.+)$", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


def made(cls: type[Exception]) -> Exception:
    """Return an error of a class, whatever it is made of."""
    error = cls.__new__(cls)
    Exception.__init__(error, "no")
    vars(error).setdefault("cause", "ValueError: no")
    return error


@pytest.fixture
async def http() -> AsyncGenerator[httpx2.AsyncClient]:
    """Client of an API whose Temporal is never asked."""
    lazy = await Client.connect("127.0.0.1:1", lazy=True)
    app = create_app(lazy, config=ApiConfig(max_body_bytes=1000))
    for cls in (*RAISED, TimeoutError):

        def fail(cls: type[Exception] = cls) -> None:
            raise made(cls)

        app.get(f"/raise/{cls.__name__}")(fail)
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url="http://127.0.0.1") as client:
        yield client


@pytest.mark.parametrize("cls", RAISED)
async def test_an_error_names_its_section(http: httpx2.AsyncClient, cls: type[PerdureError]) -> None:
    answer = await http.get(f"/raise/{cls.__name__}")
    said = answer.json()["type"]
    error = made(cls)
    assert isinstance(error, PerdureError)
    assert said == page_of(error)
    page, _, anchor = said.partition("#")
    assert anchor in anchors(page)
    assert error_frame(error)["type"] == said


@pytest.mark.parametrize(
    ("method", "path", "content", "status"),
    [
        ("GET", "/raise/TimeoutError", b"", 503),
        ("GET", "/no-such", b"", 404),
        ("DELETE", "/list-apps", b"", 405),
        ("GET", "/apps/1x/users/u/sessions/s", b"", 400),
        ("GET", "/apps/__x/app-info", b"", 403),
        ("POST", "/run", b"{", 422),
        ("POST", "/run", b"{}", 422),
        ("POST", "/run", b" " * 1001, 413),
        ("GET", "/apps/%ff/users/u/sessions/s", b"", 400),
        ("GET", "/v1/apps/shop/users/u/sessions/s/events?since=x", b"", 422),
    ],
)
async def test_any_other_refusal_names_the_section_of_the_statuses(
    http: httpx2.AsyncClient, method: str, path: str, content: bytes, status: int
) -> None:
    answer = await http.request(method, path, content=content or None, headers=JSON)
    assert answer.status_code == status
    assert (answer.json()["type"], "detail" in answer.json()) == (PAGE_OF_STATUSES, True)
    page, _, anchor = PAGE_OF_STATUSES.partition("#")
    assert anchor in anchors(page)


def test_a_frame_of_an_adk_app_is_as_in_adk() -> None:
    error = made(next(cls for cls in RAISED if cls.__name__ == "InvocationFailed"))
    assert "type" not in error_frame(error, AdkRules(major=2))
