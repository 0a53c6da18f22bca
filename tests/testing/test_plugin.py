"""The plugin in folders of one's own: with each plugin for async tests or with none, and at no cost where unused."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from perdure import DefinitionError
from perdure.testing import Perdure
from tests.testing import shop

pytestmark = [pytest.mark.process, pytest.mark.timeout(200)]

ASYNC = """
from perdure.testing import Perdure, call, say
from tests.testing.shop import app

LOOK = [call("look_up", order="17"), say("On its way.")]

{mark}
async def test_async(perdure: Perdure) -> None:
    talk = await perdure.start(app, models={{"clerk": LOOK}})
    assert (await talk.send("Where is 17?")).text == "On its way."

async def test_without_a_mark(perdure: Perdure) -> None:
    talk = await perdure.start(app, models={{"clerk": LOOK}})
    assert (await talk.send("Where is 17?")).text == "On its way."

def test_plain(perdure: Perdure) -> None:
    talk = perdure.run(perdure.start(app, models={{"clerk": LOOK}}))
    assert perdure.run(talk.send("Where is 17?")).text == "On its way."
"""

ANYIO = """
import pytest

@pytest.fixture
def anyio_backend():
    return "asyncio"
"""

WITHOUT = ("-p", "no:asyncio", "-p", "no:anyio")


def run(folder: Path, *options: str) -> str:
    """Run the tests of a folder, as its owner does; returns what is printed."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", "/dev/null"]
    command += ["--rootdir", str(folder), str(folder), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    return done.stdout + done.stderr


@pytest.mark.server
@pytest.mark.parametrize(
    ("mark", "options"),
    [
        pytest.param("", WITHOUT, id="no plugin"),
        pytest.param("", ("-o", "asyncio_mode=auto"), id="pytest-asyncio, auto"),
        pytest.param("@pytest.mark.asyncio", ("-o", "asyncio_mode=strict"), id="pytest-asyncio, strict"),
        pytest.param("@pytest.mark.anyio", ("-p", "no:asyncio"), id="anyio"),
    ],
)
def test_async_tests_run_with_any_plugin(tmp_path: Path, mark: str, options: tuple[str, ...]) -> None:
    head = ANYIO if "anyio" in mark else "import pytest\n"
    (tmp_path / "test_shop.py").write_text(head + ASYNC.format(mark=mark))
    # The last failures of other libraries are their affair; what is left behind by this one is not.
    printed = run(tmp_path, *options, "-W", "error::RuntimeWarning", "-W", "error::ResourceWarning")
    assert "3 passed" in printed, printed


def test_what_asks_for_no_fixture_loads_nothing(tmp_path: Path) -> None:
    (tmp_path / "test_sum.py").write_text(
        "import sys\n"
        "def test_sum(request):\n"
        "    assert request.config.pluginmanager.has_plugin('perdure')\n"
        "    heavy = ('pydantic', 'temporalio', 'google.genai', 'asyncio', 'perdure.testing.fixture')\n"
        "    assert [name for name in heavy if name in sys.modules] == []\n"
    )
    others = ("asyncio", "anyio", "timeout", "xdist", "hypothesispytest", "schemathesis", "pytest_cov")
    printed = run(tmp_path, *(word for name in others for word in ("-p", f"no:{name}")))
    assert "1 passed" in printed, printed


@pytest.mark.server
def test_a_failed_test_shows_what_its_agents_did_and_not_how_they_were_served(tmp_path: Path) -> None:
    (tmp_path / "test_shop.py").write_text(
        "from perdure.testing import assert_calls, call, say\n"
        "from tests.testing.shop import app\n"
        "LOOK = [call('look_up', order='17'), say('On its way.')]\n"
        "async def test_a_tool_raises(perdure):\n"
        "    talk = await perdure.start(app, models={'clerk': [call('look_up', order='0')]})\n"
        "    await talk.send('Where is 0?')\n"
        "async def test_calls_differ(perdure):\n"
        "    talk = await perdure.start(app, models={'clerk': LOOK})\n"
        "    assert_calls(await talk.send('Where is 17?'), [('look_up', {'order': '18'})])\n"
        "async def test_it_passes(perdure):\n"
        "    talk = await perdure.start(app, models={'clerk': LOOK})\n"
        "    await talk.send('Where is 17, then?')\n"
    )
    printed = run(tmp_path, *WITHOUT)
    assert "2 failed, 1 passed" in printed, printed
    assert "InvocationFailed: agent 'clerk' failed in step 'look_up': LookupError: there is no order 0" in printed
    assert 'raise LookupError("there is no order 0")' in printed
    for line in ('- look_up(order="18")', '+ look_up(order="17")', '[clerk] calls look_up(order="17")'):
        assert line in printed
    assert "Where is 17, then?" not in printed, "of a test that passes nothing is shown"
    for frame in ("Completing activity as failed", "log_reader.py", "conversation.py", "_activity.py"):
        assert frame not in printed, printed


def test_another_kind_of_loop_is_refused(perdure: Perdure) -> None:
    """Of the plugins for async tests, anyio's runs each on trio, too, unless it is told not to."""

    def step(coroutine: Coroutine[Any, Any, Any]) -> None:
        coroutine.send(None)

    with pytest.raises(DefinitionError, match="needs asyncio; for anyio's plugin, write a fixture anyio_backend"):
        step(perdure.start(shop.app))
