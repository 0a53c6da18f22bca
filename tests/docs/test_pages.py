"""The pages of the documentation do what they say, block by block, as they are printed."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import AsyncGenerator, Generator
from pathlib import Path

import pytest
from google.protobuf.duration_pb2 import Duration
from temporalio.api.workflowservice.v1 import RegisterNamespaceRequest
from temporalio.client import Client

from perdure import Runner
from perdure.config import ConnectionConfig, connect
from perdure.serving.dev_server import find_temporal
from tests.docs.blocks import PAGES, ROOT, blocks_of
from tests.docs.forks import programs
from tests.docs.playing import Page

PLAYED = [page for page in PAGES if any(block.reason is None for block in blocks_of(page))]
FOLDERS = Path(__file__).parent / "given" / "folders"
"""What lies in the folder of every page, and of one."""

[TRAVEL] = [block for block in blocks_of(ROOT / "docs" / "start.md") if block.file == "travel/agent.py"]
"""The app that all pages are about."""


@pytest.fixture(scope="module")
def bin_folder() -> Generator[Path]:
    """A folder with `perdure`, `python` and `pytest`."""
    with programs() as folder:
        yield folder


@pytest.fixture
async def namespace(client: Client, request: pytest.FixtureRequest) -> str:
    """A namespace of the page's own, since all pages have an app `travel`."""
    name = re.sub(r"\W+", "-", request.node.name)
    registration = RegisterNamespaceRequest(
        namespace=name, workflow_execution_retention_period=Duration(seconds=86_400)
    )
    await client.workflow_service.register_namespace(registration)
    return name


@pytest.fixture
async def page(
    path: Path,
    tmp_path: Path,
    bin_folder: Path,
    namespace: str,
    temporal_server: str,
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncGenerator[Page]:
    """The page, before its first block, in a folder with the app that all pages are about, and one of google.adk's."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("GOOGLE_", "PERDURE_"))}
    environment |= {
        "TEMPORAL_ADDRESS": temporal_server,
        "TEMPORAL_NAMESPACE": namespace,
        "PYTHONUNBUFFERED": "1",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "PYTEST_PLUGINS": "perdure.testing.plugin",
        "PATH": os.pathsep.join((str(bin_folder), str(find_temporal().parent), os.environ["PATH"])),
    }
    monkeypatch.chdir(tmp_path)
    for folder in [FOLDERS / "all", FOLDERS / path.stem]:
        if folder.exists():
            shutil.copytree(folder, tmp_path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "travel").mkdir()
    (tmp_path / "travel" / "agent.py").write_text(TRAVEL.text, encoding="utf-8")
    client = await connect(ConnectionConfig(address=temporal_server, namespace=namespace, tls=False))
    page = Page(path.stem, tmp_path, environment, {"client": client, "runner": Runner("travel", client)})
    try:
        yield page
    finally:
        page.close()


@pytest.mark.server
@pytest.mark.timeout(240)
@pytest.mark.parametrize("path", PLAYED, ids=lambda path: path.stem)
async def test_a_page_does_what_it_says(path: Path, page: Page) -> None:
    for block in blocks_of(path):
        await page.play(block)
