"""Routes of health checks. They ask for no credentials and tell nothing but yes or no."""

from __future__ import annotations

from fastapi import APIRouter, HTTPException

from perdure.api.base.backend import BackendOf

router = APIRouter(tags=["service"])


@router.get("/livez")
async def livez() -> dict[str, str]:
    """Say that the process answers; Temporal is not asked, since a restart would not mend it."""
    return {"status": "ok"}


@router.get(
    "/readyz", responses={503: {"description": "Temporal does not answer, or does not write, or the server ends."}}
)
async def readyz(backend: BackendOf) -> dict[str, str]:
    """Say whether requests can be served: Temporal answers and writes, and the server does not end."""
    if backend.draining.is_set():
        raise HTTPException(503, "the server ends")
    if (trouble := await backend.pulse.trouble()) is not None:
        raise HTTPException(503, trouble)
    return {"status": "ready"}
