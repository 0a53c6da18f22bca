"""Who answered, when and why, by a request's identity; and that no client writes it itself."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from fastapi import HTTPException

from perdure.api.identity import OPERATOR, Identity
from perdure.attribution import ATTRIBUTION, attribution


def answer_metadata(identity: Identity, why: str | None, when: datetime) -> dict[str, Any]:
    """Return the metadata of an answer's event: who answered, when, and why."""
    return attribution(identity.subject, why, when)


def check_metadata(metadata: Mapping[str, Any] | None) -> None:
    """Refuse a client's metadata that says who answered.

    Raises:
        HTTPException: 400.
    """
    if metadata and ATTRIBUTION in metadata:
        raise HTTPException(400, f"the metadata {ATTRIBUTION!r} is the server's own: it says who answered")


def check_log(identity: Identity, lines: Iterable[str | bytes]) -> None:
    """Refuse a log that says who answered, unless an operator brings it: whoever brings it could have written it.

    Raises:
        HTTPException: 403.
    """
    if OPERATOR in identity.roles:
        return
    for line in lines:
        try:
            json.loads(line, object_pairs_hook=_check_pairs)
        except (ValueError, RecursionError):
            # It is malformed, and refused as such by whoever reads the log.
            continue


def _check_pairs(pairs: list[tuple[str, Any]]) -> None:
    if any(key == ATTRIBUTION for key, _ in pairs):
        raise HTTPException(403, f"the log says who answered ({ATTRIBUTION!r}), so only an operator may bring it")
