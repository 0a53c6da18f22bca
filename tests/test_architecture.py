"""The house rules that a machine can check: who imports whom, sizes, names that workflow code may not touch."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Callable, Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "perdure"

VALUES = frozenset(
    {
        "errors",
        "bounds",
        "brevity",
        "claims",
        "events",
        "plan",
        "journal",
        "packing",
        "rollout",
        "live_events",
        "strict_json",
        "levels",
        "projection",
        "facts",
        "field_sets",
        "messages",
        "sent_ahead",
        "state_messages",
        "attribution",
        "responses",
        "run_paths",
        "run_tree",
        "runs",
        "invocations",
        "open_calls",
        "questions",
        "no_answers",
        "tool_output",
        "budget",
        "doubts",
        "ledger",
        "expiry",
        "task_timeouts",
        "plain",
        "result_messages",
    }
)
"""Plain data and pure functions of it."""
PURE = frozenset({"requests", "views", "search", "tool_effects", "imports", "trajectory", "exports"}) | frozenset(
    {
        "driven_log",
        "given_logs",
        "wholeness",
        "plan_diff",
        "large_results",
        "rebuilt_failures",
        "answers",
        "repeats",
        "rebuilding",
        "salvage",
        "starts",
        "doubt_questions",
        "failures",
        "steps",
        "explaining",
        "outlook",
    }
)
"""What workflows compute that needs no workflow: outside of the sandbox, where it costs nothing."""

MAY_IMPORT: dict[str, frozenset[str]] = {
    "values": VALUES,
    "pure": VALUES | PURE,
    "escapes": frozenset(),
    "logs": frozenset({"escapes"}),
    "observing": frozenset(),
    "health": frozenset(),
    "durations": frozenset(),
    "metering": VALUES | {"observing"},
    "core_log": frozenset(),
    "event_loop": frozenset(),
    "telemetry": VALUES | PURE | {"telemetry", "metering", "observing", "logs"},
    "redaction": frozenset({"logs"}),
    "payloads": frozenset({"brevity", "errors", "redaction"}),
    "private_files": frozenset(),
    "detours": frozenset(),
    "query_guard": frozenset(),
    "keys": frozenset({"errors", "private_files"}),
    "codec_server": frozenset({"errors", "http_server"}),
    "http_server": frozenset({"http_connections"}),
    "http_connections": frozenset(),
    "encryption": frozenset({"errors", "keys", "payloads"}),
    "artifacts": frozenset({"artifacts", "errors", "redaction"}),
    "config": frozenset({"errors", "payloads", "artifacts", "logs", "redaction"}),
    "ui_guard": frozenset(),
    "devserver": frozenset({"errors", "config", "ui_guard"}),
    "doctor": VALUES | PURE | {"doctor", "config", "devserver", "keys"},
    "sharing": VALUES,
    "archive": VALUES,
    "models": VALUES | {"models", "logs"},
    "agents": VALUES | {"agents", "artifacts", "models.base", "logs"},
    "loading": VALUES | {"agents"},
    "workflows": VALUES
    | PURE
    | {"workflows", "detours", "agents.custom", "agents.context", "logs"}
    | {"agents.frames", "agents.registry"},
    "activities": VALUES
    | PURE
    | {"activities", "agents", "artifacts", "models", "logs", "sharing", "archive", "observing", "streams"}
    | {"query_guard"},
    "sandbox": VALUES | {"agents.registry", "query_guard"},
    "replay": VALUES | {"agents", "payloads", "sandbox", "workflows"},
    "rescue": VALUES | PURE | {"archive", "payloads"},
    "journals": VALUES | PURE | {"archive", "rescue", "query_guard"},
    "lifecycle": VALUES | PURE | {"journals", "sharing"},
    "calls": VALUES | PURE | {"lifecycle", "rescue", "query_guard", "logs"},
    "sessions": VALUES | PURE | {"calls", "lifecycle", "rescue", "sharing", "logs"},
    "waiting": VALUES | PURE | {"sessions", "lifecycle", "payloads"},
    "streams": VALUES | {"streams", "logs"},
    "following": VALUES | {"logs"},
    "feeds": VALUES | {"following"},
    "reading": VALUES | {"sessions", "following", "feeds", "streams"},
    "transfers": VALUES | PURE | {"lifecycle", "sharing", "logs"},
    "inspecting": VALUES | PURE | {"sessions", "reading", "waiting", "logs"},
    "client": VALUES
    | PURE
    | {"inspecting", "config", "payloads", "sessions", "reading", "logs", "transfers", "streams"},
    "api": VALUES
    | PURE
    | {"api", "artifacts", "http_server", "client", "inspecting", "sessions", "waiting", "transfers", "logs"}
    | {"agents.compile", "agents.definitions", "health", "metering", "private_files", "streams"},
}
"""By group or module, which modules and folders of Perdure it may import; what is not named here may import all."""

UNRESTRICTED = frozenset({"", "__main__", "cli", "worker", "prove"})
"""The root re-exports, and nothing imports the others."""
NOT_IMPORTED = frozenset({"cli", "worker", "__main__", "prove", "api"})
MAY_END = frozenset({"cli", "prove"})
"""Which of them import others of them."""

TEMPORAL_IN_WORKFLOWS = frozenset({"workflow", "common", "exceptions"})
EXTERNAL_IN_VALUES = ("pydantic", "pydantic_core", "google.genai.types")
BANNED_MODULES = frozenset({"time", "random", "uuid", "os", "secrets", "socket", "subprocess", "threading"})
BANNED_CALLS = re.compile(r"^(?:datetime\.)?(?:datetime|date)\.(?:now|utcnow|today)$|^(?:open|input)$")

LOOK_UP = ("models.base", "models.gemini")
"""The look-up of models by name imports a provider when it is asked for one, and the provider knows the look-up."""

MAX_MODULE, MAX_CLASS, MAX_BODY = 450, 300, 60


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


def name_of(path: Path) -> str:
    """Return a module's name below the package, as in `agents.custom`; the root's is empty."""
    parts = list(path.relative_to(PACKAGE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def group_of(name: str) -> str:
    top = name.partition(".")[0]
    if top in VALUES:
        return "values"
    return "pure" if top in PURE else top


def each_module(chosen: Callable[[str], bool] = lambda name: True) -> pytest.MarkDecorator:
    """Run a test for each module of which a condition holds."""
    return pytest.mark.parametrize("name", list(filter(chosen, MODULES)), ids=lambda name: name or "perdure")


def imports(name: str) -> Iterator[tuple[str, int]]:
    """Yield the full names that a module imports, late and typing-only imports included, and their lines."""
    for node in ast.walk(tree(MODULES[name])):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"perdure.{name}, line {node.lineno}: write the import in full"
            assert node.module is not None
            yield from ((f"{node.module}.{alias.name}", node.lineno) for alias in node.names)


def own_imports(name: str) -> Iterator[tuple[str, int]]:
    """Yield the modules of Perdure that a module imports, as in `agents.custom`, and their lines."""
    for full, line in imports(name):
        if full.partition(".")[0] != "perdure":
            continue
        inner = full.removeprefix("perdure").removeprefix(".")
        while inner not in MODULES:
            inner = inner.rpartition(".")[0]
        yield inner, line


def covers(allowed: str, module: str) -> bool:
    return module == allowed or module.startswith(f"{allowed}.")


@each_module(lambda name: group_of(name) not in UNRESTRICTED)
def test_imports_go_one_way(name: str) -> None:
    group = group_of(name)
    assert group in MAY_IMPORT, f"say in MAY_IMPORT what {group!r} may import"
    wrong = [
        f"perdure.{name}, line {line}: imports perdure.{module}"
        for module, line in own_imports(name)
        if not any(covers(allowed, module) for allowed in MAY_IMPORT[group])
    ]
    assert wrong == []


@each_module(lambda name: name not in ("", "__main__") and group_of(name) not in MAY_END)
def test_nothing_imports_the_ends_of_the_line(name: str) -> None:
    ends = NOT_IMPORTED - {group_of(name)}
    wrong = [f"line {line}: perdure.{module}" for module, line in own_imports(name) if group_of(module) in ends]
    assert wrong == []


def test_no_import_cycle() -> None:
    # A package's own __init__ re-exports what lies below it, so it is not a step of a cycle.
    packages = {name for name, path in MODULES.items() if path.name == "__init__.py"}
    graph = {
        name: {module for module, _ in own_imports(name) if module not in packages and (name, module) != LOOK_UP}
        for name in MODULES
        if name not in packages
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))


@each_module(lambda name: group_of(name) == "workflows")
def test_workflows_know_little_of_temporal(name: str) -> None:
    """All I/O of workflow code goes through `temporalio.workflow`."""
    for full, line in imports(name):
        parts = full.split(".")
        if parts[0] == "temporalio":
            assert parts[1] in TEMPORAL_IN_WORKFLOWS, f"perdure.{name}, line {line}: imports {full}"


@each_module(lambda name: group_of(name) == "values")
def test_values_are_made_of_plain_data(name: str) -> None:
    standard = importlib.import_module("sys").stdlib_module_names
    for full, line in imports(name):
        if full.partition(".")[0] in standard or full.startswith("perdure."):
            continue
        ok = any(covers(allowed, full) for allowed in EXTERNAL_IN_VALUES)
        assert ok, f"perdure.{name}, line {line}: imports {full}"


@each_module(lambda name: group_of(name) in ("workflows", "values", "pure"))
def test_no_clock_randomness_or_io_where_a_replay_would_differ(name: str) -> None:
    """Values pass through Temporal's sandbox, which guards nothing that does; so this test does."""
    wrong = [f"line {line}: imports {full}" for full, line in imports(name) if full.partition(".")[0] in BANNED_MODULES]
    wrong += [
        f"line {node.lineno}: calls {called}()"
        for node in ast.walk(tree(MODULES[name]))
        if isinstance(node, ast.Call) and BANNED_CALLS.match(called := ast.unparse(node.func))
    ]
    assert wrong == []


@each_module(lambda name: group_of(name) != "cli" and name not in ("", "models.base"))
def test_only_the_command_line_and_the_model_look_up_import_late(name: str) -> None:
    late = [
        f"line {inner.lineno}"
        for node in ast.walk(tree(MODULES[name]))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for inner in ast.walk(node)
        if isinstance(inner, ast.Import | ast.ImportFrom)
    ]
    assert late == []


@each_module()
def test_sizes(name: str) -> None:
    """The most that is allowed; half of it is what to aim for."""
    lines = len(MODULES[name].read_text().splitlines())
    too_long = [f"the module has {lines} lines"] if lines > MAX_MODULE else []
    for node in ast.walk(tree(MODULES[name])):
        if isinstance(node, ast.ClassDef) and node.end_lineno is not None:
            length = node.end_lineno - node.lineno + 1
            if length > MAX_CLASS:
                too_long.append(f"class {node.name} has {length} lines")
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = body_length(node)
            if length > MAX_BODY:
                too_long.append(f"function {node.name} has {length} lines")
    assert too_long == []


def body_length(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the lines of a function's body without its docstring."""
    body = node.body[1:] if ast.get_docstring(node) is not None else node.body
    if not body or body[-1].end_lineno is None:
        return 0
    return body[-1].end_lineno - body[0].lineno + 1


@each_module(lambda name: name != "__main__")
def test_what_a_module_exports_exists(name: str) -> None:
    module = importlib.import_module(f"perdure.{name}" if name else "perdure")
    exported: list[str] = getattr(module, "__all__", [])
    assert [missing for missing in exported if not hasattr(module, missing)] == []
    assert len(exported) == len(set(exported))


@pytest.mark.parametrize("name", ["", "agents"], ids=["perdure", "perdure.agents"])
def test_the_packages_that_users_import_say_what_they_export(name: str) -> None:
    module = importlib.import_module(f"perdure.{name}".rstrip("."))
    assert module.__all__


@pytest.mark.parametrize("path", sorted((ROOT / "tests").rglob("*.py")), ids=lambda path: path.name)
def test_test_files_stay_readable(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 2 * MAX_MODULE


def test_a_forbidden_import_would_be_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checks above look: late and typing-only imports included."""
    path = tmp_path / "events.py"
    path.write_text("def f():\n    from perdure.agents.custom import BaseAgent\n    import time\n")
    monkeypatch.setitem(MODULES, "events", path)
    with pytest.raises(AssertionError, match=r"line 2: imports perdure\.agents\.custom"):
        test_imports_go_one_way("events")
    with pytest.raises(AssertionError, match="line 3: imports time"):
        test_no_clock_randomness_or_io_where_a_replay_would_differ("events")
    path.write_text("stamp = datetime.now()\n")
    tree.cache_clear()
    with pytest.raises(AssertionError, match=r"line 1: calls datetime\.now\(\)"):
        test_no_clock_randomness_or_io_where_a_replay_would_differ("events")


def test_a_late_import_would_be_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "events.py"
    path.write_text("def f():\n    import json\n")
    monkeypatch.setitem(MODULES, "events", path)
    with pytest.raises(AssertionError, match="line 2"):
        test_only_the_command_line_and_the_model_look_up_import_late("events")
