"""Notes effects in the file named by LEDGER, one JSON line each, so that doubled effects are seen.

Without LEDGER nothing is noted.
"""

from __future__ import annotations

import json
import os
from typing import Any


def note(effect: str, /, **args: Any) -> None:
    """An effect on the world: a tool calls this once each time that it runs."""
    write({"effect": effect, "args": args})


def write(line: dict[str, Any]) -> None:
    path = os.environ.get("LEDGER")
    if not path:
        return
    text = json.dumps(line, ensure_ascii=False, sort_keys=True, default=str) + "\n"
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(file, text.encode())
    finally:
        os.close(file)
