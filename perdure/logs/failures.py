"""What log lines say of an exception of users' code: its type, where it was raised, and the frames of their code."""

from __future__ import annotations

import logging
import traceback
from collections import OrderedDict

from perdure.logs import shows_errors
from perdure.tracebacks import folded, raised

_MOST = 500

_told: OrderedDict[str, str] = OrderedDict()
"""By reference, the frames that were told last: an attempt that fails as the one before it did says no more."""


def fields_of(error: BaseException, logger: str, reference: str) -> dict[str, str | None]:
    """Return the fields of a line about an exception.

    What it says is among them only where `shows_errors` has it, or at debug level, whose lines show prompts and
    arguments anyway: it may quote them.

    Args:
        error: The exception; what its code raised is one of its causes.
        logger: The name of the line's logger.
        reference: That of the failure.
    """
    chain = raised(error, texts=bool(shows_errors) or logging.getLogger(logger).isEnabledFor(logging.DEBUG))
    own = next((one for one in chain if one.place is not None), None)
    # Perdure's own words stand around what a library raised.
    cause = error.__cause__ or error
    fields = {
        "error": own.kind if own is not None else type(cause).__name__,
        "reference": reference,
        "where": own.place if own is not None else _innermost(cause),
    }
    trace = folded(chain)
    if (own is not None or shows_errors) and _told.get(reference) != trace:
        # structlog prints a field of this name in lines of its own.
        fields["exception"] = trace
        _told[reference] = trace
        _told.move_to_end(reference)
        if len(_told) > _MOST:
            _told.popitem(last=False)
    return fields


def _innermost(error: BaseException) -> str | None:
    place = next(reversed(traceback.extract_tb(error.__traceback__)), None)
    return f"{place.filename.rpartition('/')[2]}:{place.lineno}" if place else None
