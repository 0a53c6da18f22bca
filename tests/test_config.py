"""A connection takes what it is given, then Temporal's environment variables and profile, then the defaults."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Generator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from temporalio.client import Client
from temporalio.service import GrpcCompression, TLSConfig

from perdure.config import ConnectionConfig, WorkerConfig, connect
from perdure.errors import ConnectionFailed, DefinitionError

PROFILES = """
[profile.default]
address = "profile.example:7233"
namespace = "from-profile"

[profile.cloud]
address = "cloud.example:7233"
namespace = "team.abc"
api_key = "s3cret"

[profile.mutual]
address = "mutual.example:7233"
[profile.mutual.tls]
server_name = "temporal.internal"
"""


@pytest.fixture(autouse=True)
def _no_temporal_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in os.environ:
        if name.startswith("TEMPORAL_"):
            monkeypatch.delenv(name)
    # Temporal looks for its file under these.
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


@pytest.fixture
def profiles(tmp_path: Path) -> Path:
    path = tmp_path / "temporal.toml"
    path.write_text(PROFILES)
    return path


@contextmanager
def silent_server() -> Generator[str]:
    """A server that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def test_without_any_setting_it_is_the_local_default() -> None:
    resolved = ConnectionConfig().resolve()
    assert (resolved.address, resolved.namespace) == ("localhost:7233", "default")
    assert resolved.tls is False


def test_a_profile_fills_in_what_is_not_given(profiles: Path) -> None:
    resolved = ConnectionConfig(config_file=profiles, namespace="given").resolve()
    assert (resolved.address, resolved.namespace) == ("profile.example:7233", "given")


def test_environment_variables_come_before_the_profile(profiles: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEMPORAL_CONFIG_FILE", str(profiles))
    monkeypatch.setenv("TEMPORAL_ADDRESS", "env.example:7233")
    resolved = ConnectionConfig().resolve()
    assert (resolved.address, resolved.namespace) == ("env.example:7233", "from-profile")


def test_a_profile_is_chosen_by_name_and_an_api_key_switches_tls_on(profiles: Path) -> None:
    resolved = ConnectionConfig(config_file=profiles, profile="cloud").resolve()
    assert (resolved.address, resolved.namespace) == ("cloud.example:7233", "team.abc")
    assert (resolved.api_key, resolved.tls) == ("s3cret", True)
    assert ConnectionConfig(api_key="k").resolve().tls is True
    assert ConnectionConfig(api_key="k", tls=False).resolve().tls is False


def test_the_profiles_tls_settings_are_taken(profiles: Path) -> None:
    tls = ConnectionConfig(config_file=profiles, profile="mutual").resolve().tls
    assert isinstance(tls, TLSConfig)
    assert tls.domain == "temporal.internal"


def test_secrets_are_not_in_its_repr(profiles: Path) -> None:
    assert "s3cret" not in repr(ConnectionConfig(config_file=profiles, profile="cloud").resolve())


def test_an_unknown_profile_says_which(profiles: Path) -> None:
    with pytest.raises(ConnectionFailed, match=r"profile 'nope'.*TEMPORAL_PROFILE"):
        ConnectionConfig(config_file=profiles, profile="nope").resolve()


def test_a_missing_file_is_not_passed_over(tmp_path: Path) -> None:
    with pytest.raises(ConnectionFailed, match=r"no file '.*absent\.toml'"):
        ConnectionConfig(config_file=tmp_path / "absent.toml").resolve()


def test_a_broken_file_says_so(tmp_path: Path) -> None:
    path = tmp_path / "broken.toml"
    path.write_text("[profile")
    with pytest.raises(ConnectionFailed, match=r"broken\.toml"):
        ConnectionConfig(config_file=path).resolve()


async def test_an_address_where_nothing_listens_is_named_with_the_remedy() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
    with pytest.raises(ConnectionFailed, match=rf"'{address}' \(namespace 'default'\).*`perdure dev`"):
        await connect(ConnectionConfig(address=address))


async def test_a_server_that_says_nothing_is_given_up() -> None:
    with silent_server() as address, pytest.raises(ConnectionFailed, match=r"within 0\.3 s"):
        await connect(ConnectionConfig(address=address, timeout=timedelta(seconds=0.3)))


async def test_a_lazy_client_connects_at_its_first_call() -> None:
    client = await connect(ConnectionConfig(address="127.0.0.1:1"), lazy=True)
    assert isinstance(client, Client)


@pytest.mark.parametrize(
    ("tls", "asked", "compression"),
    [
        (False, None, GrpcCompression.NONE),
        (True, None, GrpcCompression.GZIP),
        (False, True, GrpcCompression.GZIP),
        (True, False, GrpcCompression.NONE),
    ],
)
async def test_messages_are_compressed_over_tls_or_if_one_says_so(
    tls: bool, asked: bool | None, compression: GrpcCompression
) -> None:
    config = ConnectionConfig(address="127.0.0.1:1", tls=tls, grpc_compression=asked)
    client = await connect(config, lazy=True)
    assert client.service_client.config.grpc_compression is compression


@pytest.mark.server
async def test_it_connects_to_a_running_server(temporal_server: str) -> None:
    client = await connect(ConnectionConfig(address=temporal_server))
    assert await client.service_client.check_health()
    assert client.namespace == "default"


CUT_SHORT = """
import asyncio, sys
from perdure.config import ConnectionConfig, connect

async def main():
    client = await connect(ConnectionConfig(address=sys.argv[1]))
    asked = [asyncio.create_task(client.get_workflow_handle(f"w{i}").describe()) for i in range(100)]
    await asyncio.sleep(0.01)

asyncio.run(main())
"""


@pytest.mark.server
@pytest.mark.process
async def test_a_program_ends_that_leaves_while_it_asks(temporal_server: str) -> None:
    # Without a pause at its exit it hung as a rule.
    program = await asyncio.create_subprocess_exec(sys.executable, "-c", CUT_SHORT, temporal_server)
    try:
        assert await asyncio.wait_for(program.wait(), 30) == 0
    finally:
        if program.returncode is None:
            program.kill()
            await program.wait()


@pytest.mark.parametrize("tasks", [-1, 0, 1])
def test_a_worker_needs_places_for_workflow_tasks(tasks: int) -> None:
    with pytest.raises(DefinitionError, match="at least 2"):
        WorkerConfig(max_concurrent_workflow_tasks=tasks)


def test_a_session_waits_for_its_worker_for_some_time() -> None:
    with pytest.raises(DefinitionError, match="above 0"):
        WorkerConfig(sticky_timeout=timedelta(0))


def test_configs_are_frozen() -> None:
    with pytest.raises(AttributeError):
        WorkerConfig().max_cached_workflows = 1  # pyright: ignore[reportAttributeAccessIssue]  # the point of the test
