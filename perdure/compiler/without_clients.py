"""Loads google-genai's types without its clients, which take longer, for a process that asks no model."""

from __future__ import annotations

import importlib
import sys
from importlib import util
from typing import Any

__all__ = ["load_types_only"]

_PACKAGE = "google.genai"


def load_types_only() -> None:
    """Have google-genai's clients loaded only where something asks for them.

    The package google.genai imports all of its clients. An app's code finds them nevertheless, however it imports them.
    Nothing of google-genai's is to be loaded before.
    """
    spec = util.find_spec(_PACKAGE)
    assert spec is not None, "a dependency is installed"
    assert spec.loader is not None, "a dependency is installed"
    package, load = util.module_from_spec(spec), spec.loader.exec_module

    def find(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        module = f"{_PACKAGE}.{name}"
        if util.find_spec(module) is not None:
            return importlib.import_module(module)
        # The package brings a function of its own for what it lacks.
        del package.__dict__["__getattr__"]
        load(package)
        return getattr(package, name)

    package.__dict__["__getattr__"] = find
    sys.modules[_PACKAGE] = package
    setattr(sys.modules["google"], "genai", package)  # noqa: B010 -- pyright
