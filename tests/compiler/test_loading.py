"""An app is found by `MODULE:APP`, in a file, or in a folder as ADK lays agents out; what is not found is explained."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from perdure.compiler.loading import load_app, load_native_app
from perdure.errors import DefinitionError

pytestmark = pytest.mark.usefixtures("imports_as_they_were")

AGENT = "from perdure.agents import LlmAgent\nroot_agent = LlmAgent(name='greeter', model='gemini-2.5-flash')\n"
APP = AGENT + (
    "from perdure.agents import App, ResumabilityConfig\n"
    "app = App(name='named', root_agent=root_agent, resumability_config=ResumabilityConfig(is_resumable=True))\n"
)

Write = Callable[[str, str], Path]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes a file below the working directory of the test."""
    monkeypatch.chdir(tmp_path)

    def write_file(name: str, text: str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        importlib.invalidate_caches()
        return path

    return write_file


def test_a_module_and_the_name_of_its_app(write: Write) -> None:
    write("one_module.py", APP)
    app = load_app("one_module:app")
    assert app.name == "named"
    assert app.is_resumable


def test_an_agent_without_an_app_takes_the_modules_name_and_is_not_resumable(write: Write) -> None:
    write("pack/agents_of.py", AGENT)
    app = load_app("pack.agents_of:root_agent")
    assert app.name == "agents_of"
    assert not app.is_resumable


def test_a_file_is_imported_under_a_name_that_imports_again(write: Write) -> None:
    path = write("elsewhere/greeting_file.py", AGENT)
    app = load_native_app(str(path))
    assert app.name == "greeting_file"
    assert importlib.import_module("greeting_file").root_agent is app.root_agent


def test_a_file_in_a_package_is_imported_as_a_part_of_it(write: Write) -> None:
    write("outer/__init__.py", "")
    write("outer/inner/__init__.py", "")
    write("outer/inner/words.py", "NAME = 'from_a_sibling'\n")
    path = write("outer/inner/thing.py", "from .words import NAME\n" + AGENT.replace("'greeter'", "NAME"))
    assert load_native_app(str(path)).root_agent.name == "from_a_sibling"
    assert "outer.inner.thing" in sys.modules


def test_a_folder_with_adks_layout(write: Write) -> None:
    write("weather/__init__.py", "from . import agent\n")
    write("weather/agent.py", AGENT)
    app = load_native_app("weather")
    assert app.name == "weather"
    assert importlib.import_module("weather.agent").root_agent is app.root_agent


def test_an_agent_in_a_module_named_agent_has_the_name_of_its_package(write: Write) -> None:
    """By whatever it is named; two of such agents in one worker would else have one name."""
    write("rainy/__init__.py", "")
    path = write("rainy/agent.py", AGENT)
    assert [load_app(str(target)).name for target in ("rainy.agent:root_agent", path, path.parent)] == ["rainy"] * 3


def test_a_folder_without_an_init_file(write: Write) -> None:
    path = write("plain_folder/agent.py", AGENT)
    assert load_app(str(path.parent)).name == "plain_folder"
    assert "plain_folder.agent" in sys.modules


def test_a_folder_whose_init_file_holds_the_app(write: Write) -> None:
    write("initial/__init__.py", APP)
    assert load_app("initial").name == "named"


def test_an_app_comes_before_a_root_agent(write: Write) -> None:
    path = write("both_of_them.py", APP)
    assert load_app(str(path)).name == "named"


def test_the_folder_of_a_file_stays_on_the_search_path(write: Write) -> None:
    path = write("lookup/late_import.py", AGENT)
    load_app(str(path))
    assert str(path.parent) in sys.path


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("nothing_here", r"'nothing_here' is neither a folder, nor a \.py file, nor MODULE:APP \(looked in '.*'\)"),
        ("no_such_module:app", r"no module 'no_such_module'.*looked in"),
        ("no_such_package.part:app", r"no module 'no_such_package\.part'"),
        ("not a name:app", "both must be Python names"),
        ("absent.py", r"there is no file '.*absent\.py'"),
    ],
)
def test_what_is_not_there_is_named_with_where_it_was_looked_for(write: Write, target: str, says: str) -> None:
    with pytest.raises(DefinitionError, match=says):
        load_app(target)


def test_a_module_without_the_attribute_lists_what_it_has(write: Write) -> None:
    write("other_names.py", AGENT.replace("root_agent", "greeter"))
    with pytest.raises(DefinitionError, match=r"has no 'app'; apps and agents in it: \['greeter'\]"):
        load_app("other_names:app")


def test_an_attribute_that_is_no_app(write: Write) -> None:
    write("wrong_kind.py", "app = 3\n")
    with pytest.raises(DefinitionError, match="is a int; it must be an App or an agent"):
        load_app("wrong_kind:app")


def test_a_file_and_folders_without_an_app(write: Write) -> None:
    path = write("empty_file.py", "")
    with pytest.raises(DefinitionError, match=r"holds no app: define `app = App"):
        load_app(str(path))
    folder = write("empty_folder/agent.py", "").parent
    with pytest.raises(DefinitionError, match=r"its agent\.py defines neither"):
        load_app(str(folder))
    folder = write("two_empty/agent.py", "").parent
    write("two_empty/__init__.py", "")
    with pytest.raises(DefinitionError, match=r"neither __init__\.py nor agent\.py defines"):
        load_app(str(folder))
    folder = write("no_files/readme.txt", "").parent
    with pytest.raises(DefinitionError, match=r"neither an agent\.py nor an __init__\.py"):
        load_app(str(folder))


def test_a_file_whose_name_is_taken_is_not_confused_with_the_other_module(write: Write) -> None:
    path = write("json.py", AGENT)
    with pytest.raises(DefinitionError, match=r"cannot be imported as 'json'.*rename the file"):
        load_app(str(path))


def test_a_file_whose_name_is_no_python_name(write: Write) -> None:
    path = write("my-agent.py", AGENT)
    with pytest.raises(DefinitionError, match=r"'my-agent' is no Python name; rename"):
        load_app(str(path))


def test_errors_of_the_imported_code_are_not_hidden(write: Write) -> None:
    write("needs_more.py", "import a_library_that_is_missing\n")
    with pytest.raises(DefinitionError, match=r"a_library_that_is_missing.*needs_more\.py:1"):
        load_app("needs_more:app")
    write("broken_code.py", "1 / 0\n")
    with pytest.raises(DefinitionError, match=r"ZeroDivisionError: division by zero .*broken_code\.py:1"):
        load_app("broken_code:app")
    write("broken_text.py", "x = (\n")
    with pytest.raises(DefinitionError, match=r"SyntaxError: .*broken_text\.py:1"):
        load_app("broken_text:app")


def test_who_has_no_google_adk_is_told_what_to_install(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("google.adk")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "google.adk", None)
    code = "from google.adk.agents import Agent\nroot_agent = Agent(name='a', model='gemini-2.5-flash')\n"
    write("from_adk.py", code)
    write("shop/agent.py", code)
    write("guide/root_agent.yaml", "name: guide\n")
    for target in ("from_adk:app", "shop", "guide"):
        with pytest.raises(DefinitionError, match=r"install google\.adk with `pip install 'perdure\[adk\]'`"):
            load_app(target)


@pytest.mark.parametrize("folder", ["perdure", "temporalio", "perdure/temporalio", "site-packages/perdure/agents"])
def test_a_users_folder_may_have_a_packages_name(write: Write, folder: str) -> None:
    """The line is told by where the packages are, not by what a folder is called."""
    name = f"broken_in_{re.sub(r'[^a-z]', '_', folder)}"
    path = write(f"{folder}/{name}.py", "def divide():\n    1 / 0\n\ndivide()\n")
    with pytest.raises(DefinitionError, match=rf"ZeroDivisionError: division by zero .*{name}\.py:2"):
        load_app(str(path))


def test_the_packages_own_lines_are_passed_over(write: Write) -> None:
    write("calls_in.py", "from perdure.journal.packing import unpack\n\nunpack('nothing')\n")
    with pytest.raises(DefinitionError, match=r"this is no packed journal.* \(.*calls_in\.py:3\)"):
        load_app("calls_in:app")
