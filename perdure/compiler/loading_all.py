"""Loads and compiles the apps that a process serves; one of a folder that fails stands there with the reason."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from perdure.agents.adk_app import AnyApp
from perdure.agents.broken import BrokenApp
from perdure.compiler.folders import agents_in
from perdure.compiler.loading import load_app, trace_of
from perdure.compiler.registry import register
from perdure.errors import DefinitionError

__all__ = ["load_apps"]


def load_apps(targets: Sequence[str]) -> list[AnyApp]:
    """Load apps and register them.

    Args:
        targets: Each as for `load_app`, or a folder of agents' folders, as `adk web` serves it: then what cannot be
            imported or compiled there becomes a `BrokenApp`, and the others are served.

    Raises:
        DefinitionError: An app that is named itself cannot be imported or compiled, or two have one name.
    """
    apps: list[AnyApp] = []
    for target in targets:
        folders = agents_in(Path(target).resolve()) if Path(target).is_dir() else []
        apps += map(_one_of_many, folders) if folders else [load_app(target)]
    names = [app.name for app in apps]
    for name in sorted({name for name in names if names.count(name) > 1}):
        raise DefinitionError(f"two of the apps are named {name!r}; give each its own name")
    for app in apps:
        register(app)
    return apps


def _one_of_many(folder: Path) -> AnyApp:
    try:
        app = load_app(str(folder))
    except DefinitionError as error:
        return BrokenApp(folder.name, str(error), "import", trace_of(error))
    try:
        register(app)
    except DefinitionError as error:
        return BrokenApp(app.name, str(error), "compile")
    return app
