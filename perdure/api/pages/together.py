"""The routes of several calls of one tool that are answered at once, and what they show."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated
from urllib.parse import unquote

from fastapi import APIRouter, HTTPException, Query, Request, Response

from perdure.api.auth.access import answers
from perdure.api.auth.identity import Identity, IdentityOf
from perdure.api.auth.middleware import SignedIn
from perdure.api.base.attribution import answer_metadata
from perdure.api.base.backend import Backend, BackendOf
from perdure.api.pages.form_checks import check_same_origin, read_form, request_id_of
from perdure.api.pages.reading import read_call
from perdure.api.pages.rendering import TOGETHER, PageRoute, page
from perdure.errors import CallAnswered, CallNotFound, InvalidMessage
from perdure.messages.keys import SessionKey
from perdure.views.forms.answers import WHY, AnswerForm, read_answer
from perdure.views.forms.fields import NotFilledIn

MOST = 50
"""Calls that are answered at once."""

_AT_ONCE = 10
"""Sessions that are asked at the same time."""
_CALL = "call."
"""Begins the names of the fields that name the calls."""

router = APIRouter(route_class=PageRoute, include_in_schema=False)


@dataclass(frozen=True)
class Named:
    """A call, by its session and id."""

    key: SessionKey
    id: str

    @classmethod
    def read(cls, text: str) -> Named:
        """Return the call that a form names.

        Raises:
            HTTPException: The text names none. 400.
        """
        parts = [unquote(part) for part in text.split("/")]
        if len(parts) != 4:
            raise HTTPException(400, "the form names no call; choose the calls in the inbox again")
        return cls(SessionKey(*parts[:3]), parts[3])


@dataclass(frozen=True)
class Chosen:
    """A call that was chosen, and its form; without one, it is not open."""

    named: Named
    form: AnswerForm | None


@dataclass(frozen=True)
class Outcome:
    """What became of the answer to a call."""

    named: Named
    taken: bool
    why: str = ""
    """Why it was not taken."""


@router.get(TOGETHER)
async def choose(
    backend: BackendOf,
    identity: IdentityOf,
    signed_in: SignedIn,
    call: Annotated[list[str] | None, Query()] = None,
) -> Response:
    """Show the calls that were chosen, and one form for all."""
    named = [Named.read(text) for text in call or ()]
    async with backend.patience():
        chosen = await _read(backend, named, {})
    return _page(identity, chosen, signed_in=signed_in)


@router.post(TOGETHER)
@answers
async def answer(request: Request, backend: BackendOf, identity: IdentityOf, signed_in: SignedIn) -> Response:
    """Answer all of them."""
    check_same_origin(request)
    given = await read_form(request)
    named = [Named.read(text) for name, text in given.items() if name.startswith(_CALL)]
    async with backend.patience():
        chosen = await _read(backend, named, given)
        form = _form_of_all(chosen)
        try:
            if form is not None:
                read_answer(form)
        except NotFilledIn as error:
            wrong = [replace(one, form=replace(one.form, errors=error.errors)) for one in chosen if one.form]
            return _page(identity, wrong, signed_in=signed_in, status=422)
        outcomes = await _answer(backend, identity, chosen, given)
    return page("together.html", identity=identity, signed_in=signed_in, outcomes=outcomes, chosen=[], form=None)


async def _read(backend: Backend, named: Sequence[Named], given: dict[str, str]) -> list[Chosen]:
    """Return the calls with their forms.

    Raises:
        HTTPException: There are none, or too many. 400. One is of another user's session. 404.
    """
    if not named:
        raise HTTPException(400, "choose calls in the inbox first")
    if len(named) > MOST:
        raise HTTPException(400, f"{MOST} calls can be answered at once; these are {len(named)}")
    gate = asyncio.Semaphore(_AT_ONCE)

    async def read(one: Named) -> Chosen:
        async with gate:
            return Chosen(one, await read_call(backend, one.key, one.id, given))

    return list(await asyncio.gather(*map(read, named)))


def _form_of_all(chosen: Sequence[Chosen]) -> AnswerForm | None:
    """Return the form that answers all that are open; `None` if none is.

    Raises:
        HTTPException: One answer cannot be that of all. 400.
    """
    forms = [one.form for one in chosen if one.form is not None]
    if not forms:
        return None
    first = forms[0]
    if any((one.tool, one.takes, one.schema) != (first.tool, first.takes, first.schema) for one in forms):
        raise HTTPException(400, "the calls are of several tools; choose those of one")
    if first.takes in ("verdict", "credential") or any(one.payload is not None for one in forms):
        raise HTTPException(400, f"each call of {first.tool!r} needs an answer of its own; answer them one by one")
    return first


async def _answer(
    backend: Backend, identity: Identity, chosen: Sequence[Chosen], given: dict[str, str]
) -> list[Outcome]:
    gate = asyncio.Semaphore(_AT_ONCE)
    sent = request_id_of(given)
    metadata = answer_metadata(identity, given.get(WHY, "").strip() or None)

    async def one(chosen: Chosen) -> Outcome:
        named, form = chosen.named, chosen.form
        if form is None:
            return Outcome(named, False, "it takes no answer any more")
        try:
            async with gate:
                await backend.runner_of(named.key).respond(
                    **named.key.arguments,
                    responses={named.id: read_answer(form)},
                    # Two of one session are two requests.
                    request_id=f"{sent}-{form.form_id}" if sent else None,
                    metadata=metadata,
                )
        except (CallAnswered, CallNotFound):
            return Outcome(named, False, "it takes no answer any more")
        except InvalidMessage as error:
            return Outcome(named, False, str(error))
        return Outcome(named, True)

    return list(await asyncio.gather(*map(one, chosen)))


def _page(identity: Identity, chosen: Sequence[Chosen], *, signed_in: bool, status: int = 200) -> Response:
    form = _form_of_all(chosen)
    return page("together.html", status, identity=identity, signed_in=signed_in, outcomes=[], chosen=chosen, form=form)
