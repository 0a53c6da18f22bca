"""What a refused request gets: why, and where the documentation tells of it, in the form of RFC 9457."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse

from perdure.errors import PerdureError, page_of

__all__ = ["PAGE_OF_STATUSES", "refusal", "refused_by_route", "type_of"]

PAGE_OF_STATUSES = "docs/http.md#errors"
"""Where the documentation tells of what is no error of Perdure's tree."""


def refusal(
    status: int, detail: Any, headers: Mapping[str, str] | None = None, *, error: BaseException | None = None
) -> JSONResponse:
    """Return the answer to a request that is refused.

    Args:
        status: The status.
        detail: What is wrong, and what to do.
        headers: Of the answer.
        error: What was raised, if anything was.
    """
    return JSONResponse({"type": type_of(error), "detail": detail}, status, dict(headers or {}))


def type_of(error: BaseException | None) -> str:
    """Return where the documentation tells of an error: its section, or that of the statuses."""
    return page_of(error) if isinstance(error, PerdureError) else PAGE_OF_STATUSES


async def refused_by_route(request: Request, error: Exception) -> JSONResponse:
    """Answer for a route that has raised an `HTTPException`, itself or for an error of Perdure's."""
    status, detail = getattr(error, "status_code", 500), getattr(error, "detail", "")
    return refusal(status, detail, getattr(error, "headers", None), error=error.__cause__)
