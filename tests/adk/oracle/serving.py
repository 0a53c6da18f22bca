"""Processes that drives need: `perdure dev` over the apps, and the small services beside them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path

from tests.adk.oracle.values import Json, many

_STARTS = 180.0
"""Seconds that a process has to answer."""


class NotServed(Exception):
    """A process does not answer; the message has the end of its output."""


class Process:
    """A process with a group of its own; its output goes to a file."""

    def __init__(self, command: list[str], env: dict[str, str], log: Path, cwd: Path) -> None:
        self._command, self.env, self._log, self._cwd = command, env, log, cwd
        self._running: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it."""
        with self._log.open("ab") as output:
            self._running = subprocess.Popen(
                self._command,
                env=self.env,
                cwd=self._cwd,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def kill(self) -> None:
        """Kill it with all that it started; nothing if it does not run."""
        if self._running is None:
            return
        with suppress(ProcessLookupError):  # It may have ended by itself.
            os.killpg(self._running.pid, signal.SIGKILL)
        self._running.wait()
        self._running = None

    def wait_for(self, url: str) -> None:
        """Wait until a URL answers, whatever.

        Raises:
            NotServed: The process has ended, or does not answer for long.
        """
        end = time.monotonic() + _STARTS
        while self._running is not None and self._running.poll() is None and time.monotonic() < end:
            try:
                with urllib.request.urlopen(url, timeout=5):
                    return
            except urllib.error.HTTPError:
                return
            except OSError:
                time.sleep(0.1)
        written = self._log.read_text(errors="replace") if self._log.exists() else ""
        raise NotServed(
            f"{' '.join(self._command)} does not answer at {url}; the end of its output:\n{written[-3000:]}"
        )


class Place:
    """All that runs while apps are driven; gone on leaving."""

    def __init__(self, folder: Path, drives: dict[str, Json], *, delay: float) -> None:
        """Prepare; nothing runs yet.

        Args:
            folder: Of the apps, and of the modules that they share.
            drives: Those that are driven, by app.
            delay: Seconds that each model call takes at least.
        """
        self._folder, self._drives = folder, drives
        self._scratch = Path(tempfile.mkdtemp(prefix="adk-apps-"))
        self.ledger = self._scratch / "ledger.jsonl"
        """Where models and tools note what they did."""
        self.ledger.touch()
        self.base = ""
        """The server's URL."""
        self._env = {**os.environ, "LEDGER": str(self.ledger), "SCRIPTED_DELAY": str(delay), "PYTHONUNBUFFERED": "1"}
        self._processes: list[Process] = []
        self._server: Process | None = None

    def __enter__(self) -> Place:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Kill all of it."""
        for process in reversed(self._processes):
            process.kill()
        shutil.rmtree(self._scratch, ignore_errors=True)

    def start(self) -> None:
        """Start the services, then the server.

        Raises:
            NotServed: One does not answer.
        """
        self._start_services()
        agents = self._copy()
        port, temporal, page = free_port(), free_port(), free_port()
        command = [sys.executable, "-m", "perdure", "dev", "--port", str(port), "--temporal-port", str(temporal)]
        command += ["--ui-port", str(page), "--data", str(self._scratch / "temporal.db"), str(agents)]
        self._server = Process(command, self._env, self._scratch / "server.log", self._scratch)
        self._processes.append(self._server)
        self.base = f"http://127.0.0.1:{port}"
        self._server.start()
        self._server.wait_for(f"{self.base}/list-apps")

    def restart(self) -> None:
        """Kill the server and start it again, on the same data.

        Raises:
            NotServed: It does not answer.
        """
        assert self._server is not None
        self._server.kill()
        self._server.start()
        self._server.wait_for(f"{self.base}/list-apps")

    def _copy(self) -> Path:
        """Copy the apps as a server gets them: without drives, truths and leftovers."""
        target = self._scratch / "agents"
        target.mkdir()
        ignored = shutil.ignore_patterns("__pycache__", "drive.json", "expect*.json", ".adk", "*.db")
        for name in self._drives:
            shutil.copytree(self._folder / name, target / name, ignore=ignored)
        for module in self._folder.glob("*.py"):
            shutil.copy(module, target / module.name)
        return target

    def _start_services(self) -> None:
        scripts = [
            str(self._folder / name / "script.py") for name, drive in self._drives.items() if drive.get("gemini")
        ]
        if scripts:
            port = self._start_service(self._folder / "gemini_server.py", scripts)
            self._env |= {"GOOGLE_GEMINI_BASE_URL": f"http://127.0.0.1:{port}", "GOOGLE_API_KEY": "not-a-key"}
            self._env["GOOGLE_GENAI_USE_VERTEXAI"] = "0"
        for name, drive in self._drives.items():
            for service in many(drive, "services"):
                self._env[service["env"]] = str(self._start_service(self._folder / name / service["run"], []))

    def _start_service(self, script: Path, more: list[str]) -> int:
        """Start a service; returns its port."""
        port = free_port()
        path = os.pathsep.join([str(self._folder), *filter(None, [os.environ.get("PYTHONPATH")])])
        log = self._scratch / f"service-{len(self._processes)}.log"
        command = [sys.executable, str(script), str(port), *more]
        process = Process(command, {**self._env, "PYTHONPATH": path}, log, script.parent)
        self._processes.append(process)
        process.start()
        process.wait_for(f"http://127.0.0.1:{port}/")
        return port


def free_port() -> int:
    """Return a port that nothing listened on a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def read_drives(folder: Path, names: list[str]) -> dict[str, Json]:
    """Return the drives of a folder of apps, by name.

    Args:
        folder: The folder.
        names: Only these; all if there are none.

    Raises:
        FileNotFoundError: An app of a name has none, or the folder none at all.
    """
    found: dict[str, Json] = {
        item.parent.name: json.loads(item.read_text()) for item in sorted(folder.glob("*/drive.json"))
    }
    missing = [name for name in names if name not in found]
    if missing or not found:
        raise FileNotFoundError(f"{folder} has no drive.json of {', '.join(missing) or 'any app'}")
    return {name: drive for name, drive in found.items() if not names or name in names}
