"""The normal form of FORMAT.md, as the proofs have it too."""

from perdure.prove.normal_form import (
    FAILED,
    Item,
    call_ids,
    diff,
    fixed_order,
    normalize_event,
    normalize_log,
    normalize_part,
    normalize_request,
    rename_ids,
)

__all__ = [
    "FAILED",
    "Item",
    "call_ids",
    "diff",
    "fixed_order",
    "normalize_event",
    "normalize_log",
    "normalize_part",
    "normalize_request",
    "rename_ids",
]
