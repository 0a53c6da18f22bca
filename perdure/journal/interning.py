"""Shares pydantic's note of which fields were given between models: almost half of a small entry's memory."""

from __future__ import annotations

from typing import cast

from pydantic import BaseModel

_MAX_KEPT = 1_000
"""Combinations of fields that are remembered; what comes from outside may name any."""

_PLAIN = frozenset({str, int, float, bool, type(None), dict, list, tuple, frozenset})
"""Most fields, told from models quickly."""

_KNOWN: dict[frozenset[str], set[str]] = {}


def share_field_sets(model: BaseModel) -> None:
    """Share the field set of a frozen model and those of the frozen models that are its fields.

    Only of frozen ones, since pydantic adds to the set of a model that is changed; a copy gets a set of its own.
    """
    given = model.model_fields_set
    known = _KNOWN.get(names := frozenset(given))
    if known is None and len(_KNOWN) < _MAX_KEPT and not model.model_extra:
        known = _KNOWN.setdefault(names, given)
    if known is not None:
        object.__setattr__(model, "__pydantic_fields_set__", known)
    # A copy, since another thread may read a cached property of a plan for the first time.
    fields = cast("tuple[object, ...]", tuple(model.__dict__.values()))
    for value in fields:
        if type(value) not in _PLAIN and isinstance(value, BaseModel) and value.model_config.get("frozen"):
            share_field_sets(value)
