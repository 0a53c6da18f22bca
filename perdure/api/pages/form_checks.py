"""Checks forms before they do anything: they come from this server's own pages, and can be read."""

from __future__ import annotations

from urllib.parse import parse_qsl

from fastapi import HTTPException, Request

from perdure.api.base.guard import is_own

_MAX_FIELDS = 500
_MAX_REQUEST_ID = 100


def check_same_origin(request: Request) -> None:
    """Refuse a form that another site's page sent, whatever origins may call the API.

    Browsers say where a request comes from by `Sec-Fetch-Site`, or over plain HTTP by `Origin` alone. Programs say
    neither; the API is for them.

    Raises:
        HTTPException: It did not come from a page of this server. 403.
    """
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        is_same = site == "same-origin"
    else:
        origins = request.headers.getlist("origin")
        is_same = len(origins) == 1 and is_own(origins[0], request.headers.get("host", ""))
    if not is_same:
        raise HTTPException(
            403, "the form was not sent by a page of this server; open the page again, or use the API from a program"
        )


async def read_form(request: Request) -> dict[str, str]:
    """Return the fields of a filled form; of a name that is there twice, the last value.

    Raises:
        HTTPException: It is no form. 415 or 400.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise HTTPException(415, "send the form as application/x-www-form-urlencoded")
    try:
        text = (await request.body()).decode("ascii")
        return dict(parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=_MAX_FIELDS))
    except ValueError as error:
        raise HTTPException(400, "the form is malformed, is no UTF-8, or has too many fields") from error


def request_id_of(form: dict[str, str]) -> str | None:
    """Return what a form is known by if it is sent twice."""
    return form.get("request_id", "")[:_MAX_REQUEST_ID] or None
