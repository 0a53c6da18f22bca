"""google-genai's `types`; in a process that only shows sessions small ones of the same JSON (`light_contents.py`)."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from perdure.plan.only_shown import only_shows

if TYPE_CHECKING or not only_shows():
    from google.genai import types

    # It warns of each value of an enumeration that it does not know, and quotes it: a model, or whoever sends a log,
    # would write what they like, of any length, on the terminal of whoever reads it.
    warnings.filterwarnings("ignore", "(?s).* is not a valid ", UserWarning, r"google\.genai\._common")
else:
    from perdure.plan import light_contents as types

__all__ = ["types"]
