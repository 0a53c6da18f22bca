"""Which model the examples use."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from perdure import ScriptedModel

GEMINI = "gemini-2.5-flash"


def on_gemini() -> bool:
    """Return whether a key for Gemini is set."""
    return bool(os.environ.get("GOOGLE_API_KEY"))


def model_or_script(*script: Mapping[str, Any]) -> str | ScriptedModel:
    """Return Gemini where a key is set, or else a model that answers an agent's calls from a script."""
    return GEMINI if on_gemini() else ScriptedModel(script)
