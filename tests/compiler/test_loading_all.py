"""A folder of agents' folders is served whole, as `adk web` does it; what cannot be loaded says why."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest
from google.genai import types
from temporalio.client import Client

from perdure.agents.broken import BrokenApp, RefusedAt
from perdure.cli.output import warn_of_broken
from perdure.client import Runner
from perdure.compiler.folders import agents_in, imports_adk, imports_perdure, is_agent
from perdure.compiler.loading import load_app
from perdure.compiler.loading_all import load_apps
from perdure.compiler.registry import NotRegistered, Registry, register
from perdure.errors import DefinitionError, InvocationFailed
from perdure.journal.projection import Projection
from perdure.messages.keys import SessionKey
from perdure.plan.nodes import LlmNode, Plan, RefusedNode
from perdure.steps.base import Place, Snapshot
from perdure.steps.native import NativeSteps
from perdure.steps.prompt import PromptMemo
from perdure.steps.tool_results import ToolResults
from perdure.steps.user_code import CodeRunner
from perdure.worker import create_workers
from tests.cli.support import Perdure, perdure

pytestmark = pytest.mark.usefixtures("imports_as_they_were")

__all__ = ["perdure"]

AGENT = "from perdure.agents import LlmAgent\nroot_agent = LlmAgent(name='greeter', model='gemini-2.5-flash')\n"
TWICE = (
    "from perdure.agents import LlmAgent, SequentialAgent\n"
    "one, two = LlmAgent(name='same', model='gemini-2.5-flash'), LlmAgent(name='same', model='gemini-2.5-flash')\n"
    "root_agent = SequentialAgent(name='root', sub_agents=[one, two])\n"
)


def write(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    importlib.invalidate_caches()
    return folder


@pytest.fixture
def mixed(tmp_path: Path, app_name: str) -> Path:
    """A folder with an app that is served, one that cannot be imported, and one that cannot be compiled."""
    return write(
        tmp_path / "agents",
        {
            f"{app_name}/agent.py": AGENT,
            f"{app_name}_syntax/agent.py": "x = (\n",
            f"{app_name}_twice/__init__.py": TWICE,
            "helpers.py": "raise RuntimeError('nobody imports a file beside the folders')\n",
        },
    )


def test_which_folders_are_agents_is_told_by_their_files(tmp_path: Path) -> None:
    """ADK's rules, less those that cannot be an agent: hidden folders, caches, and packages of helpers."""
    write(
        tmp_path,
        {
            "by_agent/agent.py": "",
            "by_yaml/root_agent.yaml": "",
            "by_package/__init__.py": "from .inner import root_agent\n",
            "by_try/__init__.py": "try:\n    app = 1\nexcept ImportError:\n    pass\n",
            "by_star/__init__.py": "from .inner import *\n",
            "broken/__init__.py": "x = (\n",
            "annotated/__init__.py": "root_agent: object = None\n",
            "helpers/__init__.py": "def make():\n    app = 1\n    return app\n",
            "empty/__init__.py": "",
            "texts/notes.txt": "",
            ".hidden/agent.py": "",
            "__pycache__/agent.py": "",
            "alone.py": "",
        },
    )
    names = [folder.name for folder in agents_in(tmp_path)]
    assert names == ["annotated", "broken", "by_agent", "by_package", "by_star", "by_try", "by_yaml"]
    assert agents_in(tmp_path / "by_agent") == []
    assert not is_agent(tmp_path / "helpers")


@pytest.mark.parametrize(
    ("code", "adks", "perdures"),
    [
        ("from google.adk.agents import Agent\n", True, False),
        ("import google.adk\n", True, False),
        ("from google import adk\n", True, False),
        ("try:\n    from google.adk import Agent\nexcept ImportError:\n    from perdure import LlmAgent\n", True, True),
        ("# from google.adk import Agent\nfrom google import genai\nimport perdure_like\n", False, False),
    ],
)
def test_whose_agents_a_folder_has_is_told_by_its_imports(
    tmp_path: Path, code: str, adks: bool, perdures: bool
) -> None:
    write(tmp_path, {"agent.py": "from . import parts\n", "parts/__init__.py": code, ".venv/lib.py": "import perdure"})
    assert (imports_adk(tmp_path), imports_perdure(tmp_path)) == (adks, perdures)
    assert imports_adk(tmp_path / "parts" / "__init__.py") is adks


def test_one_that_fails_does_not_keep_the_others_from_being_served(mixed: Path, app_name: str) -> None:
    apps = load_apps([str(mixed)])
    assert [app.name for app in apps] == [app_name, f"{app_name}_syntax", f"{app_name}_twice"]
    served, syntax, twice = apps
    assert register(served).plan.root.name == "greeter"
    assert isinstance(syntax, BrokenApp)
    assert syntax.step == "import"
    assert re.search(r"SyntaxError: .*agent\.py:1", syntax.reason)
    assert isinstance(twice, BrokenApp)
    assert twice.step == "compile"
    assert "two agents are named 'same'" in twice.reason
    assert not twice.is_resumable


def test_named_alone_it_ends_the_command(mixed: Path, app_name: str) -> None:
    with pytest.raises(DefinitionError, match="SyntaxError"):
        load_apps([str(mixed / f"{app_name}_syntax")])
    with pytest.raises(DefinitionError, match="two agents are named 'same'"):
        load_apps([str(mixed / f"{app_name}_twice")])


def test_an_app_that_ends_the_process_is_broken_too(tmp_path: Path) -> None:
    write(tmp_path, {"quitter/agent.py": "import sys\nsys.exit('no key')\n", "greeter/agent.py": AGENT})
    greeter, quitter = load_apps([str(tmp_path)])
    assert greeter.name == "greeter"
    assert isinstance(quitter, BrokenApp)
    assert re.search(r"SystemExit: no key \(.*agent\.py:2\)", quitter.reason)


def test_a_folder_whose_name_is_no_module_is_broken(tmp_path: Path) -> None:
    write(tmp_path, {"my-agent/agent.py": AGENT})
    [app] = load_apps([str(tmp_path)])
    assert isinstance(app, BrokenApp)
    assert "is no Python name; rename" in app.reason


def test_two_of_one_name_are_refused(tmp_path: Path) -> None:
    write(tmp_path, {"a/greeter/agent.py": AGENT})
    with pytest.raises(DefinitionError, match="two of the apps are named 'greeter'"):
        load_apps([str(tmp_path / "a"), str(tmp_path / "a" / "greeter")])


def test_where_one_app_is_needed_the_folder_of_many_names_them(mixed: Path, app_name: str) -> None:
    with pytest.raises(DefinitionError, match=f"holds apps: {app_name}, {app_name}_syntax, .*as in '.*{app_name}'"):
        load_app(str(mixed))


def test_each_that_cannot_run_is_told_in_a_line(mixed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    warn_of_broken(load_apps([str(mixed)]))
    lines = capsys.readouterr().err.splitlines()
    assert [re.sub(r"_?app_\w+?(?=_|\b)", "", line).split(":")[0] for line in lines] == ["perdure", "perdure"]
    assert "_syntax cannot run: cannot import" in lines[0]
    assert "_twice cannot run: two agents are named 'same'" in lines[1]


def test_the_code_of_what_a_session_began_is_missing_there(app_name: str) -> None:
    """Also a model that is known by its name: the plan of a session that waits may be of another make."""
    broken = BrokenApp(app_name, "no such key", "import")
    registry = register(broken)
    assert isinstance(registry, Registry)
    assert register(broken) is registry
    for ask in (
        lambda: registry.model(LlmNode(name="greeter", model="gemini-2.5-flash")),
        lambda: registry.tool("greeter", "look"),
        lambda: registry.instruction("greeter"),
        lambda: registry.custom_agent("greeter"),
        lambda: registry.activity("fetch"),
    ):
        with pytest.raises(NotRegistered, match=f"app '{app_name}' cannot be imported in this worker.*: no such key"):
            ask()


def test_its_plan_is_read_again_as_it_was_written() -> None:
    plan = Plan(app="shop", root=RefusedNode(name="shop", step="compile", reason="two agents"))
    assert Plan.model_validate_json(plan.model_dump_json()) == plan


@pytest.mark.server
@pytest.mark.parametrize("step", ["import", "compile"])
async def test_its_runs_answer_with_the_reason(client: Client, app_name: str, step: RefusedAt) -> None:
    app = BrokenApp(app_name, "cannot import 'shop': NameError: gone (agent.py:3)", step)
    [worker] = create_workers(client, [app])
    async with worker:
        runner = Runner(app_name, client)
        await runner.create_session(user_id="ann", session_id="s")
        message = types.Content(parts=[types.Part(text="hello")])
        for _ in range(2):
            with pytest.raises(
                InvocationFailed, match=r"NameError: gone \(agent\.py:3\).*send a new message"
            ) as failed:
                async for _ in runner.run_async(user_id="ann", session_id="s", new_message=message):
                    pass
            assert failed.value.step == step
        view = await runner.get_session(user_id="ann", session_id="s")
        assert [invocation.status for invocation in view.invocations] == ["failed", "failed"]


async def test_callbacks_of_what_a_session_began_are_not_passed_over(app_name: str) -> None:
    """The plan that is pinned may be of google.adk's agents, whose callbacks wait for their code, too."""
    registry = register(BrokenApp(app_name, "no such key", "import"))
    assert isinstance(registry, Registry)
    code = CodeRunner("tools", 1)
    steps = NativeSteps(registry, code, code, ToolResults(code, None))
    at = Place(SessionKey(app_name, "ann", "s"), "i-1", "greeter")
    with pytest.raises(NotRegistered, match="'greeter' has no callback 'before': no such key"):
        await steps.callback(at, Snapshot(Projection(), PromptMemo()), "before")


async def test_plan_takes_one_app_of_the_folder(mixed: Path, app_name: str, perdure: Perdure) -> None:
    done = await perdure("plan", str(mixed / app_name))
    assert (done.code, "greeter" in done.out) == (0, True)
    done = await perdure("plan", str(mixed))
    assert (done.code, "holds apps" in done.err) == (1, True)
