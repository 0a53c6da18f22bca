"""The house rules that a machine can check: who imports whom, sizes, names that workflow code may not touch.

A row a folder, no list of files. Each rule is a function that returns what breaks it, so a test can show that it does.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "perdure"

PURE = ("plan", "journal", "messages", "rules", "views", "trajectories")
"""Plain data and pure functions of it, each folder on those before it."""

_PURE = frozenset(PURE)
GROUND = ("errors", "logs", "escapes", "redaction", "tracebacks")
"""Modules of the root that anybody may import; they import one another alone."""

MAY_IMPORT: dict[str, frozenset[str]] = {
    **{name: frozenset() for name in GROUND},
    **{folder: frozenset(PURE[:index]) for index, folder in enumerate(PURE)},
    "artifacts": frozenset(),
    "credentials": frozenset({"journal", "messages.keys", "artifacts.names"}),
    "models": frozenset({"journal"}),
    "streams": frozenset({"plan.contents", "journal"}),
    "telemetry": frozenset({"plan", "journal", "messages"}),
    "agents": frozenset({"plan", "journal", "artifacts", "models.base"}),
    "compiler": frozenset({"plan", "journal", "agents", "models"}),
    "temporal": frozenset({"journal.compact_json"}),
    "recovery": _PURE | {"temporal.payloads", "temporal.refused_queries"},
    "steps": _PURE | {"agents", "compiler.registry", "models", "artifacts", "streams", "telemetry.step"},
    "adk": _PURE
    | {"steps", "agents", "compiler", "models", "artifacts", "credentials", "streams"}
    | {"programs.fast_api", "programs.runner"},
    "notices": _PURE,
    "activities": _PURE
    | {"steps", "agents", "compiler", "models", "artifacts", "streams", "telemetry.step", "temporal"}
    | {"recovery.slices", "recovery.rebuilding", "recovery.rebuilt_entries", "sessions", "notices"},
    "workflows": _PURE | {"temporal"},
    "sessions": _PURE | {"recovery", "temporal", "streams", "credentials"},
    "config": frozenset({"artifacts", "credentials", "notices", "temporal.payloads"}),
    "client": _PURE | {"sessions", "config", "streams", "credentials", "temporal.payloads"},
    "serving": frozenset({"config"}),
    "encryption": frozenset({"serving.http_server", "serving.sockets", "temporal.payloads"}),
    "doctor": _PURE | {"config", "serving", "encryption"},
}
"""By folder (or module of the root), what it may import beside itself and the ground. Who is not named here stands
at the end of the line: may import anything, and nothing imports it."""

ENDS = frozenset({"__main__", "api", "cli", "programs", "prove", "testing", "worker"})
MAY_USE_ENDS = {
    "__main__": {"cli"},
    "cli": {"api", "programs", "prove", "worker"},
    "programs": {"api", "worker"},
    "prove": {"worker"},
    "testing": {"prove", "worker"},
}

TEMPORAL_IN_WORKFLOWS = frozenset({"workflow", "common", "exceptions"})
BANNED_MODULES = frozenset({"time", "random", "uuid", "os", "secrets", "socket", "subprocess", "threading"})
HARMLESS = frozenset({"threading.local"})
BANNED_CALLS = re.compile(r"^(?:datetime\.)?(?:datetime|date)\.(?:now|utcnow|today)$|^(?:open|input)$")
IMPORTS_LATE = ("cli", "models.registry", "recovery.stuck", "testing.plugin")
"""Loading google-genai takes seconds: a command loads what it needs, a provider is loaded when it is asked for, what
rebuilds a journal when one is stuck, and the plugin is loaded by every pytest of a user's."""

MAX_MODULE, MAX_CLASS, MAX_BODY = 450, 300, 60
MAX_ROOT, MAX_FOLDER, MAX_FLOORS = 9, 25, 14


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


def name_of(path: Path) -> str:
    """Return a module's name below the package, as in `agents.custom`; the root's is empty."""
    parts = list(path.relative_to(PACKAGE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}
PACKAGES = {name for name, path in MODULES.items() if path.name == "__init__.py"}


def folder_of(name: str) -> str:
    return name.partition(".")[0]


def imports(path: Path) -> Iterator[tuple[str, int]]:
    """Yield the full names that a module imports, late and typing-only imports included, and their lines."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            yield from ((f"{'.' * node.level}{module}.{alias.name}", node.lineno) for alias in node.names)


def own_imports(path: Path) -> Iterator[tuple[str, int]]:
    """Yield the modules of Perdure that a module imports, as in `agents.custom`, and their lines."""
    for full, line in imports(path):
        if folder_of(full) != "perdure":
            continue
        inner = full.removeprefix("perdure").removeprefix(".")
        while inner not in MODULES:
            inner = inner.rpartition(".")[0]
        yield inner, line


def covers(allowed: str, module: str) -> bool:
    return module == allowed or module.startswith(f"{allowed}.")


def wrong_imports(name: str, path: Path) -> Iterator[str]:
    """Say which imports go up, into the insides of Temporal from a workflow, or to google.adk from elsewhere."""
    folder = folder_of(name)
    allowed = MAY_IMPORT.get(folder)
    for full, line in imports(path):
        parts = full.split(".")
        if full.startswith("."):
            yield f"perdure.{name}, line {line}: write the import in full"
        if parts[:2] == ["google", "adk"] and folder not in ("adk", "programs"):
            yield f"perdure.{name}, line {line}: imports {full}"
        if folder == "workflows" and parts[0] == "temporalio" and parts[1] not in TEMPORAL_IN_WORKFLOWS:
            yield f"perdure.{name}, line {line}: imports {full}"
    for module, line in own_imports(path):
        if allowed is not None:
            ok = any(covers(other, module) for other in (*allowed, folder, *GROUND))
        else:
            ok = folder in ("", folder_of(module)) or folder_of(module) not in ENDS
            ok = ok or folder_of(module) in MAY_USE_ENDS.get(folder, ())
        if not ok:
            yield f"perdure.{name}, line {line}: imports perdure.{module}"


def undeterministic(name: str, path: Path) -> Iterator[str]:
    """Say where a replay could differ. Workers run workflows without a sandbox, so this is what guards them."""
    if folder_of(name) not in (*PURE, "workflows"):
        return
    for full, line in imports(path):
        if folder_of(full) in BANNED_MODULES and full not in HARMLESS:
            yield f"perdure.{name}, line {line}: imports {full}"
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Call) and BANNED_CALLS.match(called := ast.unparse(node.func)):
            yield f"perdure.{name}, line {node.lineno}: calls {called}()"
        elif isinstance(node, ast.Call) and differs_by_python(node):
            yield f"perdure.{name}, line {node.lineno}: {ast.unparse(node.func)}() takes other steps in Python 3.12"


def differs_by_python(call: ast.Call) -> bool:
    called = ast.unparse(call.func)
    timed = called.endswith("wait_condition") and any(keyword.arg == "timeout" for keyword in call.keywords)
    return timed or called == "asyncio.wait_for"


def late_imports(name: str, path: Path) -> Iterator[str]:
    if not name or any(covers(allowed, name) for allowed in IMPORTS_LATE):
        return
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for inner in ast.walk(node):
                if isinstance(inner, ast.Import | ast.ImportFrom):
                    yield f"perdure.{name}, line {inner.lineno}"


def too_long(name: str, path: Path) -> Iterator[str]:
    """Say what is over the most that is allowed; half of it is what to aim for."""
    lines = len(path.read_text().splitlines())
    if lines > MAX_MODULE:
        yield f"perdure.{name} has {lines} lines"
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.ClassDef) and node.end_lineno is not None:
            length = node.end_lineno - node.lineno + 1 - docstring_lines(node)
            if length > MAX_CLASS:
                yield f"perdure.{name}: class {node.name} has {length} lines"
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = body_length(node)
            if length > MAX_BODY:
                yield f"perdure.{name}: function {node.name} has {length} lines"


def docstring_lines(node: ast.ClassDef) -> int:
    """Return the lines of the docstrings of a class and of what is in it: what a reader of the code skips."""
    documented = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    inside = (
        inner for inner in ast.walk(node) if isinstance(inner, documented) and ast.get_docstring(inner) is not None
    )
    return sum((first.end_lineno or first.lineno) - first.lineno + 1 for first in (inner.body[0] for inner in inside))


def body_length(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the lines of a function's body without its docstring."""
    body = node.body[1:] if ast.get_docstring(node) is not None else node.body
    if not body or body[-1].end_lineno is None:
        return 0
    return body[-1].end_lineno - body[0].lineno + 1


Rule = Callable[[str, Path], Iterator[str]]
"""Says what in the module of a name, at a path, breaks it."""

RULES: tuple[Rule, ...] = (wrong_imports, undeterministic, late_imports, too_long)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_house_rules_hold(rule: Rule) -> None:
    assert [wrong for name, path in MODULES.items() for wrong in rule(name, path)] == []


@pytest.mark.parametrize(
    ("rule", "code", "wrong"),
    [
        (
            wrong_imports,
            "def f():\n    from perdure.agents.custom import BaseAgent\n",
            "line 2: imports perdure.agents.custom",
        ),
        (wrong_imports, "def f():\n    from google.adk.apps import App\n", "line 2: imports google.adk.apps.App"),
        (wrong_imports, "from .plan import Plan\n", "line 1: write the import in full"),
        (wrong_imports, "from perdure.cli.main import main\n", "line 1: imports perdure.cli.main"),
        (undeterministic, "def f():\n    import time\n", "line 2: imports time"),
        (undeterministic, "stamp = datetime.now()\n", "line 1: calls datetime.now()"),
        (undeterministic, "wait_condition(f, timeout=3)\n", "line 1: wait_condition() takes other steps"),
        (undeterministic, "asyncio.wait_for(f, 3)\n", "line 1: asyncio.wait_for() takes other steps"),
        (late_imports, "def f():\n    import json\n", "line 2"),
        (too_long, "def f():\n" + "    print()\n" * 61, "function f has 61 lines"),
        (too_long, "class A:\n" + "    a = 1\n" * 300, "class A has 301 lines"),
        (too_long, 'class A:\n    """Says\n    much."""\n' + "    a = 1\n" * 300, "class A has 301 lines"),
        (too_long, "a = 1\n" * 451, "has 451 lines"),
    ],
)
def test_what_breaks_a_rule_would_be_found(tmp_path: Path, rule: Rule, code: str, wrong: str) -> None:
    path = tmp_path / "made_up.py"
    path.write_text(code)
    assert [wrong in found for found in rule("journal.made_up", path)] == [True]


def test_workflows_know_little_of_temporal(tmp_path: Path) -> None:
    """All I/O of workflow code goes through `temporalio.workflow`."""
    path = tmp_path / "made_up.py"
    path.write_text("from temporalio import workflow\nfrom temporalio.client import Client\n")
    assert [found for found in wrong_imports("workflows.made_up", path)] == [
        "perdure.workflows.made_up, line 2: imports temporalio.client.Client"
    ]


def test_every_folder_has_a_row() -> None:
    folders = {folder_of(name) for name in MODULES} - {"", *GROUND}
    assert folders | set(GROUND) == set(MAY_IMPORT) | ENDS


def in_order(graph: dict[str, set[str]]) -> list[str]:
    """Return the keys so that each stands behind those it imports; fails if some import each other in a circle."""
    try:
        return list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))


def test_no_import_circle_and_few_floors() -> None:
    # A package's own __init__ re-exports what lies below it, so it is not a step of a circle.
    inner = {name: path for name, path in MODULES.items() if name not in PACKAGES}
    graph = {name: {module for module, _ in own_imports(path)} - PACKAGES for name, path in inner.items()}
    in_order(graph)
    folders: dict[str, set[str]] = {}
    for name, below in graph.items():
        folders.setdefault(folder_of(name), set()).update({folder_of(module) for module in below} - {folder_of(name)})
    floors: dict[str, int] = {}
    for folder in in_order(folders):
        floors[folder] = 1 + max((floors[below] for below in folders[folder]), default=0)
    assert max(floors.values()) <= MAX_FLOORS, sorted(floors, key=floors.__getitem__)[-5:]


def test_folders_have_room() -> None:
    """A stranger finds a file by its name: the root has few, no folder is crowded, no pure file's name comes twice."""
    crowded = {
        str(folder.relative_to(ROOT)): count
        for folder, count in Counter(path.parent for path in MODULES.values()).items()
        if count > (MAX_ROOT if folder == PACKAGE else MAX_FOLDER)
    }
    assert crowded == {}
    names = Counter(path.name for name, path in MODULES.items() if folder_of(name) in PURE)
    assert [name for name, count in names.items() if count > 1 and name != "__init__.py"] == []


OF_EXTRAS = {"adk": "google.adk", "programs": "google.adk", "api.a2a": "a2a", "api.ag_ui": "ag_ui"}
"""What needs a library of an extra that not every environment of the tests has."""


def test_what_a_module_exports_exists() -> None:
    missing = [part for part, library in OF_EXTRAS.items() if importlib.util.find_spec(library) is None]
    for name in MODULES:
        if name == "__main__" or any(covers(part, name) for part in missing):
            continue
        module = importlib.import_module(f"perdure.{name}" if name else "perdure")
        exported: list[str] = getattr(module, "__all__", [])
        assert [f"perdure.{name}.{one}" for one in exported if not hasattr(module, one)] == []
        assert len(exported) == len(set(exported)), name
        assert exported or name not in ("", "agents")


def test_test_files_stay_readable() -> None:
    long = {path.name for path in (ROOT / "tests").rglob("*.py") if len(path.read_text().splitlines()) > 2 * MAX_MODULE}
    assert long == set()
