"""Functions that give another value each time: those of clocks, and of chance."""

from __future__ import annotations

import inspect
from types import ModuleType
from typing import Any

CLOCK = "reads the clock"
RANDOM = "draws randomness"

_REASONS: dict[str, str] = {
    "time": CLOCK,
    **dict.fromkeys(("datetime.datetime.now", "datetime.datetime.utcnow"), CLOCK),
    **dict.fromkeys(("datetime.datetime.today", "datetime.date.today"), CLOCK),
    **dict.fromkeys(("random", "secrets", "numpy.random", "os.urandom", "os.getrandom"), RANDOM),
    **dict.fromkeys((f"uuid.{name}" for name in ("uuid1", "uuid4", "uuid6", "uuid7", "uuid8", "getnode")), RANDOM),
}
_PURE = frozenset(("time.strptime", "time.struct_time", "time.sleep"))
_RENAMED = {"posix": "os", "nt": "os"}


def why_impure(path: str, value: Any) -> str | None:
    """Return why a function gives another value each time, or `None` if it does not.

    Args:
        path: Its dotted name, as the code that calls it reaches it.
        value: What it is, or `None` if that is unknown.
    """
    names = [path] if value is None else [path, canonical_name(value)]
    if any(name in _PURE for name in names):
        return None
    return next((reason for name in names if (reason := _reason(name)) is not None), None)


def _reason(name: str) -> str | None:
    parts = name.split(".")
    prefixes = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((_REASONS[prefix] for prefix in prefixes if prefix in _REASONS), None)


def canonical_name(value: Any) -> str:
    """Return the dotted name of a module, class or function, or of the class of another value."""
    if isinstance(value, ModuleType):
        return value.__name__
    if inspect.isroutine(value):
        owner = getattr(value, "__self__", None)
        if owner is not None and not isinstance(owner, ModuleType):
            return f"{canonical_name(owner)}.{value.__name__}"
    elif not inspect.isclass(value):
        return canonical_name(type(value))
    module = (getattr(value, "__module__", None) or "").lstrip("_")
    return f"{_RENAMED.get(module, module)}.{value.__qualname__}"
