"""google-genai's `types`; in a process that only shows sessions small ones of the same JSON (`light_contents.py`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perdure.plan.only_shown import only_shows

if TYPE_CHECKING or not only_shows():
    from google.genai import types
else:
    from perdure.plan import light_contents as types

__all__ = ["types"]
