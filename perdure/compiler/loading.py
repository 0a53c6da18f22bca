"""Finds the app that a command line names: `MODULE:APP`, a Python file, or a folder as ADK lays agents out.

What is loaded gets the module name by which it can be imported again: workflows load custom agents afresh by name.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

from perdure.agents.adk_app import AdkApp, AnyApp
from perdure.agents.custom import BaseAgent
from perdure.agents.definitions import App
from perdure.compiler.adk_warnings import keep_quiet
from perdure.compiler.env_files import read_env
from perdure.compiler.folders import AGENT_NAMES, YAML, agents_in, imports_adk, imports_perdure
from perdure.compiler.sources import code_digest, note_code, where_it_begins
from perdure.errors import DefinitionError, error_text
from perdure.tracebacks import folded_error, is_of_app

__all__ = ["as_app", "load_app", "load_native_app", "trace_of"]

_INSTALL_ADK = "install google.adk with `pip install 'perdure[adk]'`"
_PACKAGE = Path(__file__).parent.parent
"""Where Perdure really is: a folder of somebody's may have its name."""
_ADKS_OWN_WORDS = re.compile(r"Fail to load '[^']*' (?:module|config)\. ")
"""What google.adk's loader writes in front of the text of an error."""


_ADK = "google.adk"
_TAKEN_BY = {_ADK: "perdure.adk.loading"}
"""By package, the module that takes its apps and agents; it is imported only where the package is in use."""


def load_native_app(target: str) -> App:
    """Import an app of Perdure's own agents, as `load_app` does.

    Raises:
        DefinitionError: As `load_app`; or its agents are google.adk's.
    """
    app = load_app(target)
    if not isinstance(app, App):
        raise DefinitionError(f"{target!r} is an app of google.adk's agents; this takes apps of Perdure's own only")
    return app


def load_app(target: str) -> AnyApp:
    """Import an app: of Perdure's classes, or of google.adk's. Its `.env` is read before.

    A `root_agent` without an `App` around it becomes an app named after its file or folder, and as in ADK it is not
    resumable: only an `App(…, resumability_config=ResumabilityConfig(is_resumable=True))` is. A google.adk app has the
    name of its file or folder, whatever it calls itself, as `adk web` has it.

    Args:
        target: `MODULE:APP`, where `APP` is the name of an `App` or of an agent; or the path of a `.py` file or of a
            folder (a package with `agent.py` or `__init__.py`), in which `app` is looked for, then `root_agent`; or
            of a folder with a `root_agent.yaml`.

    Raises:
        DefinitionError: Nothing is there, or it is no app. An error of the imported code itself is raised as it is.
    """
    keep_quiet()
    path = Path(target).resolve()
    if path.is_dir():
        app = _from_folder(path)
    elif path.suffix == ".py":
        app = _from_file(path)
    else:
        app, path = _named(target)
    note_code(app, code_digest(path))
    return app


def _named(target: str) -> tuple[AnyApp, Path]:
    """Import an app that is named as `MODULE:APP`, and return it with where its code is."""
    module_name, colon, attribute = target.partition(":")
    if not colon:
        raise DefinitionError(
            f"{target!r} is neither a folder, nor a .py file, nor MODULE:APP (looked in {str(Path.cwd())!r}); "
            "name an app as in `travel.agent:app` or `agents/travel`"
        )
    app = _from_module(module_name, attribute, target)
    file = sys.modules[module_name].__file__
    assert file is not None, "a module with an app in it has a file"
    return app, where_it_begins(Path(file).resolve())


def _from_module(module_name: str, attribute: str, target: str) -> AnyApp:
    if not all(part.isidentifier() for part in (*module_name.split("."), attribute)):
        raise DefinitionError(f"{target!r} is no MODULE:APP: both must be Python names, as in `travel.agent:app`")
    read_env(Path.cwd().joinpath(*module_name.split(".")[:-1]))
    module = _import(module_name, Path.cwd())
    found: object = getattr(module, attribute, None)
    if found is None:
        names = sorted(name for name, value in vars(module).items() if isinstance(value, App | BaseAgent))
        raise DefinitionError(
            f"module {module_name!r} ({module.__file__}) has no {attribute!r}; apps and agents in it: {names}"
        )
    app = as_app(found, _name_of(found, module_name))
    if app is None:
        raise DefinitionError(f"{target!r} is a {type(found).__name__}; it must be an App or an agent")
    return app


def _from_file(path: Path) -> AnyApp:
    if not path.is_file():
        raise DefinitionError(f"there is no file {str(path)!r}")
    read_env(path.parent)
    module = _import_path(path)
    app = _app_in(module)
    if app is None:
        raise DefinitionError(f"file {str(path)!r} holds no app: define `app = App(…)` or `root_agent = …` in it")
    return app


def _from_folder(folder: Path) -> AnyApp:
    if _is_installed() and imports_adk(folder) and not imports_perdure(folder):
        return _from_adk(folder)
    read_env(folder)
    files = [file for file in (folder / "__init__.py", folder / "agent.py") if file.is_file()]
    for file in files:
        app = _app_in(_import_path(file), folder.name)
        if app is not None:
            return app
    if (folder / YAML).is_file():
        return _from_adk(folder)
    if agents := [agent.name for agent in agents_in(folder)]:
        raise DefinitionError(
            f"folder {str(folder)!r} is no app, but holds apps: {', '.join(agents)}; name one of them, as in"
            f" {str(folder / agents[0])!r} (`perdure dev`, `worker` and `api` take the folder with all of them)"
        )
    if files:
        held = " nor ".join(file.name for file in files)
        raise DefinitionError(
            f"folder {str(folder)!r} holds no app: neither {held} defines `app = App(…)` or `root_agent = …`"
            if len(files) > 1
            else f"folder {str(folder)!r} holds no app: its {held} defines neither `app = App(…)` nor `root_agent = …`"
        )
    raise DefinitionError(
        f"folder {str(folder)!r} holds no app: it has neither an agent.py nor an __init__.py, nor has a folder in it"
    )


def _from_adk(folder: Path) -> AnyApp:
    """Load an agent's folder by google.adk's own loader."""
    if not _is_installed():
        raise DefinitionError(f"{str(folder)!r} is an agent of google.adk's, which is not installed; {_INSTALL_ADK}")
    try:
        return _taker().load_adk_folder(folder)
    except (Exception, SystemExit) as error:
        raise DefinitionError(_import_failure(folder.name, error)) from error


def _is_installed() -> bool:
    return importlib.util.find_spec(_ADK) is not None


def _taker() -> Any:
    return importlib.import_module(_TAKEN_BY[_ADK])


def _import_path(path: Path) -> ModuleType:
    """Import a file under its own name, or, if it stands in a package, under its name in there."""
    folder = path.parent
    is_init = path.name == "__init__.py"
    # ADK's layout makes a package of a folder with an agent.py, whether it has an __init__.py or not.
    in_package = is_init or (folder / "__init__.py").is_file() or path.name == "agent.py"
    parts = [] if is_init else [path.stem]
    while in_package:
        parts.insert(0, folder.name)
        folder = folder.parent
        in_package = (folder / "__init__.py").is_file()
    if not all(part.isidentifier() for part in parts):
        raise DefinitionError(
            f"{str(path)!r} cannot be imported: {'.'.join(parts)!r} is no Python name; rename the file or its folder"
        )
    module = _import(".".join(parts), folder)
    if module.__file__ is None or not Path(module.__file__).samefile(path):
        raise DefinitionError(
            f"{str(path)!r} cannot be imported as {module.__name__!r}: that name belongs to "
            f"{module.__file__ or 'a module of Python itself'}; rename the file or its folder"
        )
    return module


def _import(name: str, folder: Path) -> ModuleType:
    """Import a module with a folder on the module search path, where it stays: the module is imported again later."""
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not (name == error.name or name.startswith(f"{error.name}.")):
            raise DefinitionError(_import_failure(name, error)) from error
        raise DefinitionError(
            f"there is no module {name!r}: {error}; looked in {str(folder)!r} and on Python's module search path"
        ) from error
    except DefinitionError:
        raise
    except (Exception, SystemExit) as error:
        raise DefinitionError(_import_failure(name, error)) from error


def _import_failure(name: str, error: BaseException) -> str:
    """Return what went wrong in a module of the user's, and in which line."""
    where = _place_of(error)
    if isinstance(error, SyntaxError):
        where = f" ({error.filename}:{error.lineno})"
    hint = ""
    if isinstance(error, ModuleNotFoundError) and f"{error.name}.".startswith("google.adk.") and not _is_installed():
        hint = f"; {_INSTALL_ADK}"
    told = f"{type(error).__name__}: {error.msg}" if isinstance(error, SyntaxError) else error_text(error)
    return f"cannot import {name!r}: {_ADKS_OWN_WORDS.sub('', told)}{where}{hint}"


def trace_of(error: DefinitionError) -> str:
    """Return an error of loading with the frames of the user's code; empty if none of its code raised one."""
    return _ADKS_OWN_WORDS.sub("", folded_error(error.__cause__)) if error.__cause__ is not None else ""


def _place_of(error: BaseException) -> str:
    """Return the line of the user's that an error came from; of a library's, if there is none."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if is_of_app(frame.filename)]
    of_others = [frame for frame in frames if not _loads_code(frame.filename)]
    return "".join(f" ({frame.filename}:{frame.lineno})" for frame in (own or of_others)[-1:])


def _loads_code(file: str) -> bool:
    """Return whether a file is of what loads an app's code: Perdure, google.adk, or Python's import system."""
    return file.startswith("<") or "/google/adk/" in Path(file).as_posix() or Path(file).is_relative_to(_PACKAGE)


def _app_in(module: ModuleType, name: str = "") -> AnyApp | None:
    for attribute in AGENT_NAMES:
        found: object = getattr(module, attribute, None)
        app = as_app(found, name or _name_of(found, module.__name__))
        if app is not None:
            return app
    return None


def _name_of(value: object, module_name: str) -> str:
    """Return an app's own name; an agent has its module's, and in `agent.py` its package's."""
    own: str | None = _taker().own_name(value) if _is_adks(value) else None
    *packages, last = module_name.split(".")
    return own or (packages[-1] if last == "agent" and packages else last)


def _is_adks(value: object) -> bool:
    return any(f"{cls.__module__}.".startswith(f"{_ADK}.") for cls in type(value).__mro__)


def as_app(value: object, name: str) -> AnyApp | None:
    """Return an app, or a root agent under a name, of Perdure's or of google.adk's; `None` for anything else."""
    if isinstance(value, App):
        return value
    if isinstance(value, BaseAgent):
        return App(name=_identifier(name), root_agent=value)
    if _is_adks(value):
        taken: AdkApp | None = _taker().as_adk_app(value, name)
        return taken
    return None


def _identifier(name: str) -> str:
    cleaned = re.sub(r"\W", "_", name)
    return cleaned if cleaned.isidentifier() else f"_{cleaned}"
